"""An event source mapping on a local Kinesis whose shards are split."""

import base64
from contextlib import closing
from unittest.mock import patch

import pytest

from infra.laptop import mapping
from infra.laptop.functions import FunctionDefinition, InvocationFailed
from infra.laptop.mapping import EventSource
from tests.support.kinesis import create_stream, session, wait_until_active
from tests.support.kinesis_local import REGION, kinesis_local
from tests.support.patience import started_threads, until

HALF = str(2**127)


class RecordingFunction:
    """A function that records its invocations, and fails at the given records."""

    def __init__(self):
        self.definition = FunctionDefinition(
            name="indexer", folder=None, handler="", timeout=1, memory=1, environment={}
        )
        self.seen = []
        self.poison = set()

    def invoke(self, event):
        names = [base64.b64decode(each["kinesis"]["data"]).decode() for each in event["Records"]]
        if self.poison & set(names):
            raise InvocationFailed("ValueError", "poison")
        self.seen += [
            (each["eventID"].partition(":")[0], name) for each, name in zip(event["Records"], names, strict=True)
        ]
        return {"batchItemFailures": []}

    @property
    def names(self):
        return [name for _, name in self.seen]


@pytest.fixture
def kinesis():
    with kinesis_local() as endpoint:
        client = session().create_client("kinesis", REGION, endpoint_url=endpoint)
        yield client
        client.close()


@pytest.fixture
def stream(kinesis):
    name = create_stream(kinesis, shards=1)
    yield name
    kinesis.delete_stream(StreamName=name)


@pytest.fixture
def source(kinesis, stream):
    """The mapping works inside a block `with source(invoked, told):`, and waits less than Lambda does."""

    def start(invoked, told, **more):
        properties = {
            "EventSourceArn": f"arn:aws:kinesis:{REGION}:000000000000:stream/{stream}",
            "StartingPosition": "TRIM_HORIZON",
            "BatchSize": 10,
            "BisectBatchOnFunctionError": True,
            "MaximumRetryAttempts": 0,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
            "DestinationConfig": {"OnFailure": {"Destination": "arn:aside"}},
            **more,
        }
        return closing(EventSource(properties, kinesis, invoked, lambda *what: told.append(what)))

    with patch.object(mapping, "POLL_SECONDS", 0.05), patch.object(mapping, "SHARDS_SECONDS", 0.05):
        yield start


def put(kinesis, stream, *names):
    for name in names:
        kinesis.put_record(StreamName=stream, Data=name.encode(), PartitionKey="k")


def test_records_come_in_order_also_across_a_split(kinesis, stream, source):
    """Child shards are read after their parents, and no record comes twice."""
    invoked, told = RecordingFunction(), []
    put(kinesis, stream, *map(str, range(25)))
    kinesis.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=HALF)
    wait_until_active(kinesis, stream)
    put(kinesis, stream, *map(str, range(25, 40)))
    with source(invoked, told):
        until(lambda: len(invoked.seen) == 40)
    assert invoked.names == list(map(str, range(40)))
    assert len({shard for shard, _ in invoked.seen}) == 2
    assert told == []


def test_a_poisonous_record_is_set_aside_and_blocks_no_one(kinesis, stream, source):
    """The batch of a poisonous record is split until the record is alone; its place in the shard is sent to the
    destination.
    """
    invoked, told = RecordingFunction(), []
    invoked.poison = {"3"}
    put(kinesis, stream, *map(str, range(9)))
    with source(invoked, told):
        until(lambda: len(invoked.seen) == 8)
        until(lambda: told)
    assert invoked.names == ["0", "1", "2", "4", "5", "6", "7", "8"]
    [(destination, obituary)] = told
    assert destination == "arn:aside"
    batch = obituary["KinesisBatchInfo"]
    assert batch["batchSize"] == 1
    assert batch["startSequenceNumber"] == batch["endSequenceNumber"]
    assert obituary["requestContext"]["condition"] == "RetryAttemptsExhausted"


def test_a_mapping_ends_when_it_is_closed(kinesis, stream, source):
    """The mapping ends even if it would otherwise retry for a long time."""
    invoked = RecordingFunction()
    invoked.poison = {"0"}
    put(kinesis, stream, "0")
    with started_threads() as started:
        with source(invoked, [], MaximumRetryAttempts=-1):
            until(lambda: [each for each in started() if each.startswith("shardId-")])
        assert [each for each in started() if each.startswith("shard")] == []
