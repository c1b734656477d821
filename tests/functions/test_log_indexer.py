"""The log indexer: however Lambda cuts a shard into batches and repeats them, the result is the same."""

import base64
import json
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import boto3
import pytest

from nakadi.app.engines import LogDependencies, open_event_log, open_log_index
from nakadi.app.log_indexer import index_batch
from nakadi.common.waiting import run_blocking
from nakadi.engines.archive import member_format
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.indexing import IndexingResult
from nakadi.engines.kinesis.stream import to_milliseconds
from nakadi.model.events import Record
from nakadi.ports.clock import SystemClock
from tests.support.aws import REGION, error_before_effect, timeout_after_effect, timeout_before_effect
from tests.support.functions import load_recorded_event
from tests.support.kinesis import ON_MOTO, create_stream

INDEX = f"dynamodb://live?region={REGION}"
ARCHIVE = f"s3://archive/events?region={REGION}"
TOPIC = "orders"
PARTITIONS = 3


class RecordedShards:
    """A stream with events, and its records as Lambda passes them to the function."""

    def __init__(self, broker, monkeypatch):
        self.broker = broker
        self.client = boto3.client("kinesis", region_name=REGION)
        self.stream = create_stream(self.client, shards=1)
        self.s3 = boto3.client("s3", region_name=REGION)
        self.s3.create_bucket(Bucket="archive", CreateBucketConfiguration={"LocationConstraint": REGION})
        self.url = ON_MOTO.format(stream=self.stream)
        self.index = open_log_index(INDEX)
        self.index.create_topic(TOPIC, PARTITIONS)
        for name, value in {"EVENT_LOG": self.url, "LOG_INDEX": INDEX, "ARCHIVE": ARCHIVE}.items():
            monkeypatch.setenv(f"NAKADI_{name}", value)

    def a_log(self):
        beside = LogDependencies(open_index=lambda: open_log_index(INDEX), open_archive=lambda: open_archive(ARCHIVE))
        return open_event_log(self.url, SystemClock(), beside)

    def publish(self, count: int) -> None:
        log = self.a_log()
        for number in range(count):
            run_blocking(
                log.append(
                    TOPIC, {number % PARTITIONS: [Record(b'{"n":%d,"m":%d}' % (number, more)) for more in range(2)]}
                )
            )
        log.close()

    def put(self, data: bytes, key: str = f"{TOPIC}/0") -> None:
        self.client.put_record(StreamName=self.stream, Data=data, PartitionKey=key, ExplicitHashKey="0")

    def event(self, first: int = 0, last: int | None = None, stream: str | None = None) -> dict:
        """The event of an invocation with some of a shard's records."""
        stream = stream or self.stream
        [shard] = self.client.list_shards(StreamName=stream)["Shards"]
        iterator = self.client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = self.client.get_records(ShardIterator=iterator)["Records"]
        return {"Records": [to_lambda_record(stream, shard["ShardId"], record) for record in records[first:last]]}

    def read_progress(self) -> dict:
        """For each partition, the offset up to which it is indexed, and the events in the archive to which its segments
        refer.
        """
        heads = self.index.index_heads([(TOPIC, partition) for partition in range(PARTITIONS)])
        store = open_archive(ARCHIVE)
        found = {}
        for partition in range(PARTITIONS):
            segments = self.index.segments_from(TOPIC, partition, 0, 1000)
            events = [
                event for each in segments for event in member_format.parse_member(store.read_range(each.location))
            ]
            found[partition] = (
                heads[TOPIC, partition].state.next_offset,
                [(event.offset, event.record.value) for event in events],
            )
        return found

    def objects(self, prefix: str) -> list[str]:
        listed = self.s3.list_objects_v2(Bucket="archive", Prefix=f"events/{prefix}")
        return [each["Key"] for each in listed.get("Contents", [])]


def to_lambda_record(stream: str, shard: str, record: dict) -> dict:
    return {
        "eventID": f"{shard}:{record['SequenceNumber']}",
        "eventSource": "aws:kinesis",
        "eventName": "aws:kinesis:record",
        "eventVersion": "1.0",
        "awsRegion": REGION,
        "eventSourceARN": f"arn:aws:kinesis:{REGION}:123456789012:stream/{stream}",
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": record["PartitionKey"],
            "sequenceNumber": record["SequenceNumber"],
            "data": base64.b64encode(record["Data"]).decode(),
            "approximateArrivalTimestamp": to_milliseconds(record["ApproximateArrivalTimestamp"]) / 1000,
        },
    }


def expected_answer(count: int) -> dict:
    values = {partition: [] for partition in range(PARTITIONS)}
    for number in range(count):
        values[number % PARTITIONS] += [b'{"n":%d,"m":%d}' % (number, more) for more in range(2)]
    return {partition: (len(found), list(enumerate(found))) for partition, found in values.items()}


NOTHING_FAILED = {"batchItemFailures": []}


@pytest.fixture
def recorded_shards(functions, broker, monkeypatch):  # noqa: ARG001  # functions set up AWS
    return RecordedShards(broker, monkeypatch)


def test_a_batch_is_counted_and_archived(functions, recorded_shards):
    """Every event of a batch has its offset in the index, and is in the archive object of the batch."""
    recorded_shards.publish(12)
    assert functions.invoke("log_indexer", recorded_shards.event()) == NOTHING_FAILED
    assert recorded_shards.read_progress() == expected_answer(12)
    assert len(recorded_shards.objects("log/")) == 1


ORDERS_ARE_LONG = pytest.mark.long("tests/functions/test_log_indexer.py::test_the_same_comes_of_every_order")


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param([(0, 12), (0, 12)], id="redelivered", marks=ORDERS_ARE_LONG),
        pytest.param([(0, 12), (0, 6), (6, 12)], id="redelivered in halves"),
        pytest.param([(0, 3), (3, 6), (6, 9), (9, 12)], id="bisected", marks=ORDERS_ARE_LONG),
        pytest.param([(6, 12), (0, 6)], id="the second half first", marks=ORDERS_ARE_LONG),
        pytest.param([(0, 4), (8, 12), (4, 8)], id="the middle last"),
        pytest.param([(11, 12)], id="the last record alone", marks=ORDERS_ARE_LONG),
        pytest.param([(0, 8), (4, 12)], id="overlapping"),
    ],
)
def test_the_same_comes_of_every_order(functions, recorded_shards, cuts):
    """Repeated, bisected, overlapping and reordered batches have the same result as one batch, without duplicates or
    gaps.
    """
    recorded_shards.publish(12)
    for first, last in cuts:
        assert functions.invoke("log_indexer", recorded_shards.event(first, last)) == NOTHING_FAILED
    assert recorded_shards.read_progress() == expected_answer(12)


def test_batches_at_the_same_time_count_once(functions, recorded_shards):
    """Simultaneous invocations with the same or overlapping records have the result of a single one."""
    recorded_shards.publish(30)
    functions.invoke("log_indexer", recorded_shards.event(0, 1))
    batches = [recorded_shards.event(random.randrange(0, 15), random.randrange(15, 30) + 1) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda batch: functions.invoke("log_indexer", batch), batches))
    for batch, answer in zip(batches, answers, strict=True):
        if answer != NOTHING_FAILED:
            assert functions.invoke("log_indexer", batch) == NOTHING_FAILED
    functions.invoke("log_indexer", recorded_shards.event())
    assert recorded_shards.read_progress() == expected_answer(30)


POISON = [
    pytest.param(b"what is this?", f"{TOPIC}/0", id="no record of ours"),
    pytest.param(b"", f"{TOPIC}/0", id="nothing"),
    pytest.param(envelopes.pack_frame(1, 0, b"nf\x01\x00"), "no place", id="no partition"),
    pytest.param(envelopes.pack_frame(1, 0, b"nf\x01\x00"), "unknown/0", id="an unknown topic"),
]


@pytest.mark.parametrize(("data", "key"), POISON)
def test_what_is_not_ours_does_not_stop_the_shard(functions, recorded_shards, data, key):
    """A record that is not the broker's takes no offset, and everything around it is indexed."""
    recorded_shards.publish(3)
    if not data:
        data = b"\x00"
    recorded_shards.put(data, key)
    recorded_shards.publish(9)
    assert functions.invoke("log_indexer", recorded_shards.event()) == NOTHING_FAILED
    found = recorded_shards.read_progress()
    assert {partition: counted for partition, (counted, _) in found.items()} == {0: 8, 1: 8, 2: 8}
    log = recorded_shards.a_log()
    assert log.bounds(TOPIC, [0])[0].next_offset == 8
    log.close()


def test_what_cannot_be_read_is_set_aside_and_reported(functions, recorded_shards, capsys):
    """A damaged frame keeps its offsets for all readers; the indexer sets its bytes aside, and a metric counts it."""
    recorded_shards.publish(3)
    recorded_shards.put(envelopes.pack_frame(5, 0, b"nf\x01\x02 not what it was"))
    recorded_shards.put(b"what is this?")
    recorded_shards.publish(3)
    capsys.readouterr()
    assert functions.invoke("log_indexer", recorded_shards.event()) == NOTHING_FAILED
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["SetAside"] for line in told if "SetAside" in line] == [[2]]
    assert len(recorded_shards.objects("set-aside/")) == 2
    log = recorded_shards.a_log()
    found = log.read(TOPIC, 0, 0)
    log.close()
    assert [event.offset for event in found.events] == [0, 1, 7, 8]
    assert recorded_shards.read_progress()[0][0] == 9


FAULTS_ARE_LONG = pytest.mark.long("tests/functions/test_log_indexer.py::test_a_fault_in_between_changes_nothing")


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("TransactWriteItems", timeout_after_effect),
        ("GetRecords", error_before_effect),
        pytest.param("TransactWriteItems", error_before_effect, marks=FAULTS_ARE_LONG),
        pytest.param("PutItem", timeout_after_effect, marks=FAULTS_ARE_LONG),
        pytest.param("BatchGetItem", timeout_before_effect, marks=FAULTS_ARE_LONG),
        pytest.param("GetShardIterator", timeout_before_effect, marks=FAULTS_ARE_LONG),
    ],
)
def test_a_fault_in_between_changes_nothing(functions, recorded_shards, operation, fault):
    """If a call fails, before or after its effect, another attempt or the next delivery makes up for it."""
    recorded_shards.publish(12)
    functions.invoke("log_indexer", recorded_shards.event(0, 2))
    recorded_shards.broker.goes_wrong(operation, fault)
    for _ in range(2):
        functions.invoke("log_indexer", recorded_shards.event())
    assert recorded_shards.read_progress() == expected_answer(12)


def test_a_batch_that_cannot_be_indexed_comes_again_from_where_it_ended(functions, recorded_shards):
    """While the index fails, the function reports the first record of the batch that is not indexed, so Lambda
    repeats from there.
    """
    recorded_shards.publish(6)
    functions.invoke("log_indexer", recorded_shards.event(0, 2))
    event = recorded_shards.event()
    recorded_shards.broker.goes_wrong("TransactWriteItems", *[error_before_effect] * 4)
    answer = functions.invoke("log_indexer", event)
    assert answer == {"batchItemFailures": [{"itemIdentifier": event["Records"][2]["kinesis"]["sequenceNumber"]}]}
    assert functions.invoke("log_indexer", event) == NOTHING_FAILED
    assert recorded_shards.read_progress() == expected_answer(6)


def test_a_shard_that_fails_does_not_keep_the_others(caplog):
    """If indexing one shard of a batch fails, the function logs that, has its records delivered again, and indexes
    those of other shards.
    """

    class FailingIndexer:
        def __init__(self):
            self.read_progress = []

        def index(self, shard, records):
            if shard == "shard-0":
                raise KeyError("a mistake")
            self.read_progress.append((shard, len(records)))
            return IndexingResult()

        def last_indexed_sequence(self, _shard):
            raise ValueError("another one")

    found = [to_lambda_record("s", shard, a_record(number)) for number, shard in enumerate(("shard-0", "shard-1"))]
    indexer = FailingIndexer()
    assert index_batch(indexer, {"Records": found}) == {"batchItemFailures": [{"itemIdentifier": "0"}]}
    assert indexer.read_progress == [("shard-1", 1)]
    assert "Indexing of shard-0 failed" in caplog.text


def a_record(number):
    return {
        "SequenceNumber": str(number),
        "PartitionKey": f"{TOPIC}/0",
        "Data": b"",
        "ApproximateArrivalTimestamp": datetime.now(UTC),
    }


def test_a_long_frame_that_came_in_several_batches_is_one(functions, recorded_shards):
    """An append of several records counts when its last record comes, even if they are in different batches."""
    stored = {"n": "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=4000))}
    log = open_event_log(
        f"{recorded_shards.url}&record_bytes=1000",
        SystemClock(),
        LogDependencies(open_index=lambda: open_log_index(INDEX), open_archive=lambda: open_archive(ARCHIVE)),
    )
    run_blocking(log.append(TOPIC, {0: [Record(json.dumps(stored).encode())]}))
    log.close()
    records = len(recorded_shards.event()["Records"])
    assert records > 2
    for number in range(records):
        assert recorded_shards.read_progress()[0] == (0, [])
        functions.invoke("log_indexer", recorded_shards.event(number, number + 1))
    assert recorded_shards.read_progress()[0] == (1, [(0, json.dumps(stored).encode())])


def test_events_of_deleted_topics_are_passed_over(functions, recorded_shards):
    """Events of a topic that has been deleted meanwhile are neither counted nor archived."""
    recorded_shards.publish(6)
    recorded_shards.index.delete_topic(TOPIC)
    assert functions.invoke("log_indexer", recorded_shards.event()) == NOTHING_FAILED
    assert recorded_shards.objects("log/") == []
    assert recorded_shards.index.index_heads([(TOPIC, 0)])[TOPIC, 0].revision == 0


def test_event_types_live_in_streams_of_their_own(functions, recorded_shards, environment):
    """A storage may name another stream. Events of its event types go there, and each stream is indexed separately."""
    environment.setenv("NAKADI_COORDINATION", "memory:")
    own = create_stream(recorded_shards.client, shards=1)
    a_storage = {"id": "own", "storage_type": "kinesis", "kinesis_configuration": {"stream": own}}
    for method, path, body in (("POST", "/storages", a_storage), ("PUT", "/storages/default/own", None)):
        answer = functions.invoke("admin", asked_by_an_admin(method, path, body))
        assert answer["statusCode"] < 300, answer
    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201

    assert functions.invoke("publish", "apigateway/publish_batch")["statusCode"] == 200

    assert recorded_shards.event()["Records"] == []
    published = recorded_shards.event(stream=own)
    assert published["Records"]
    assert functions.invoke("log_indexer", published) == NOTHING_FAILED
    [topic] = {record["kinesis"]["partitionKey"].partition("/")[0] for record in published["Records"]}
    counted = [
        head.state.next_offset
        for head in recorded_shards.index.index_heads([(topic, number) for number in range(8)]).values()
    ]
    assert sum(counted) == len(json.loads(load_recorded_event("apigateway/publish_batch")["body"]))


def asked_by_an_admin(method: str, path: str, body: object) -> dict:
    event = load_recorded_event("apigateway/switch_feature")
    return event | {"httpMethod": method, "path": path, "body": None if body is None else json.dumps(body)}
