"""The gate in front of a simulated Kinesis, with a clock that the test moves."""

import asyncio
import base64
import json

import httpx
import pytest
from botocore import xform_name

from infra.laptop.kinesis_gate import KinesisGate
from infra.laptop.roles import Roles

SIGNED = "AWS4-HMAC-SHA256 Credential=laptop/20261122/eu-central-1/kinesis/aws4_request, Signature=x"
HIGHEST = str(2**128 - 1)
HALF = 2**127


class Kinesis:
    """A Kinesis behind the gate, which records its requests, and has the given number of open shards."""

    def __init__(self):
        self.asked = []
        self.shards = [("all", "0", HIGHEST)]
        self.iterators = 0

    def __call__(self, request):
        operation = request.headers["x-amz-target"].rpartition(".")[2]
        body = json.loads(request.content)
        self.asked.append((operation, body))
        return httpx.Response(200, json=getattr(self, xform_name(operation))(body))

    def list_shards(self, _):
        return {
            "Shards": [
                {
                    "ShardId": name,
                    "HashKeyRange": {"StartingHashKey": first, "EndingHashKey": last},
                    "SequenceNumberRange": {"StartingSequenceNumber": "1"},
                }
                for name, first, last in self.shards
            ]
        }

    def put_records(self, body):
        records = [{"SequenceNumber": "1", "ShardId": self.shards[0][0], "ErrorCode": None} for _ in body["Records"]]
        return {"FailedRecordCount": 0, "Records": records}

    def get_shard_iterator(self, _):
        self.iterators += 1
        return {"ShardIterator": f"iterator-{self.iterators}"}

    def get_records(self, _):
        return {"Records": [], "MillisBehindLatest": 0, "NextShardIterator": "next"}

    def split_shard(self, _):
        self.shards = [("low", "0", str(HALF - 1)), ("high", str(HALF), HIGHEST)]
        return {}


class GateClient:
    def __init__(self, folder):
        self.kinesis = Kinesis()
        self.now = 100.0
        self._gate = KinesisGate("http://kinesis", Roles(folder / "roles.json"), limits=True, clock=lambda: self.now)
        self._gate._upstream = httpx.AsyncClient(transport=httpx.MockTransport(self.kinesis), base_url="http://kinesis")

    def __call__(self, operation, **body):
        return asyncio.run(self._ask(operation, body))

    def code(self, operation, **body):
        return self(operation, **body).get("__type", "")

    async def _ask(self, operation, body):
        headers = {"authorization": SIGNED, "x-amz-target": f"Kinesis_20131202.{operation}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._gate), base_url="http://gate") as client:
            return (await client.post("/", headers=headers, json={"StreamName": "s", **body})).json()

    def put(self, *sizes, key="a"):
        records = [{"Data": base64.b64encode(b"x" * size).decode(), "PartitionKey": key} for size in sizes]
        return [each.get("ErrorCode") for each in self("PutRecords", Records=records)["Records"]]


@pytest.fixture
def ask(tmp_path):
    return GateClient(tmp_path)


MEGABYTE = 1024 * 1024
TOO_MUCH = "ProvisionedThroughputExceededException"


def test_a_shard_is_read_five_times_a_second_by_all_together(ask):
    """The reads of all iterators of a shard count together; a fifth of a second later, one more read is permitted."""
    iterators = [ask("GetShardIterator", ShardId="all", ShardIteratorType="LATEST")["ShardIterator"] for _ in range(2)]
    codes = [ask.code("GetRecords", ShardIterator=iterators[number % 2]) for number in range(6)]
    assert codes == [""] * 5 + [TOO_MUCH]
    ask.now += 0.2
    assert ask.code("GetRecords", ShardIterator="next") == ""


def test_an_iterator_is_good_for_five_minutes(ask):
    """An iterator expires after five minutes; then, and after an unknown one, the reader needs another."""
    iterator = ask("GetShardIterator", ShardId="all", ShardIteratorType="LATEST")["ShardIterator"]
    ask.now += 299
    assert ask.code("GetRecords", ShardIterator=iterator) == ""
    ask.now += 2
    assert ask.code("GetRecords", ShardIterator=iterator) == "ExpiredIteratorException"
    assert ask.code("GetRecords", ShardIterator="never") == "ExpiredIteratorException"


def test_iterators_are_given_five_times_a_second(ask):
    """A shard gives five iterators a second; they count separately from reads."""
    codes = [ask.code("GetShardIterator", ShardId="all", ShardIteratorType="LATEST") for _ in range(6)]
    assert codes == [""] * 5 + [TOO_MUCH]


def test_what_a_shard_does_not_take_is_refused_record_by_record(ask):
    """Only the accepted records are passed on; if there are none, the service is not called."""
    assert ask.put(MEGABYTE // 2, MEGABYTE, 100) == [None, TOO_MUCH, None]
    assert ask.put(MEGABYTE) == [TOO_MUCH]
    assert [len(body["Records"]) for operation, body in ask.kinesis.asked if operation == "PutRecords"] == [2]
    ask.now += 1
    assert ask.put(MEGABYTE, 1) == [None, TOO_MUCH]


def test_after_a_split_each_shard_takes_as_much(ask):
    """The gate reads the list of shards again when it changes."""
    assert ask.put(MEGABYTE - 1, key="a") == [None]
    assert ask.put(1, key="b") == [TOO_MUCH]
    ask("SplitShard", ShardToSplit="all", NewStartingHashKey=str(HALF))
    assert ask.put(MEGABYTE - 1, key="a") == [None]
    assert ask.put(MEGABYTE - 1, key="b") == [None]
    assert ask.put(1, key="b") == [TOO_MUCH]
