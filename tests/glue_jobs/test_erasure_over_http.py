"""Events published over HTTP to a broker that is killed repeatedly, archived, merged, compacted and read into tables:
once a value is erased, no byte of any file, object or version has it."""

import json
from contextlib import ExitStack, closing, suppress
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from nakadi.engines.archive.evacuation import Evacuation
from nakadi.ports.clock import SystemClock
from nakadi_jobs import follow, retention
from nakadi_jobs.erasure import Rewriter
from nakadi_jobs.tables import Change
from tests.support import everything, workers
from tests.support.api import a_business_definition, a_definition
from tests.support.bytes_left import find_files_with_text, list_file_kinds, list_files_in, objects_in
from tests.support.dynamodb_service import CREDENTIALS, PREFIX, a_bucket
from tests.support.jobs import DataFolder, Jobs, open_reading_session, order
from tests.support.patience import PATIENCE, until
from tests.support.s3_files import buckets_in_spark
from tests.support.tiers import ARCHIVE_MANUALLY, TieredLogParts

# No other test uses this value: all tests of the jobs share the folder of tables, and some leave their values there.
NAME = "customer-4712-erased-over-http"
ORDERS, PAYMENTS, CUSTOMERS = "order.placed", "order.paid", "customer.changed"
FOUR_PARTITIONS = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 4, "write_parallelism": 4}
EVENT_TYPES = (
    a_definition(
        name=ORDERS,
        partition_strategy="hash",
        partition_key_fields=["order_number"],
        default_statistic=FOUR_PARTITIONS,
    ),
    a_definition(name=PAYMENTS),
    a_business_definition(name=CUSTOMERS, cleanup_policy="compact"),
)
ERASURE = ("--do", "erase", "--event-type", ORDERS, "--path", "customer.id", "--value", NAME)
BATCH = 10

KILLS_OF_BROKER = everything.choose_by_suite(1, 5)
ROUNDS_WHILE_IT_LIVES = everything.choose_by_suite(20, 60)
"""The rounds of publishing before each kill. Each leaves one or two small segments, so there are enough to merge."""

KILLED_AT = (
    (Rewriter, "_store_erased"),
    (Evacuation, "vacate_object"),
    (Change, "publish"),
    (retention, "remove_parked_events"),
)
KILLS_OF_ERASURE = KILLED_AT if everything.WANTED else KILLED_AT[1:2]


class JobKilled(BaseException):
    """Raised in a job to simulate a kill."""


def raise_job_killed(*_, **__):
    raise JobKilled


class FilesOfDeployment:
    """The places in which a broker and jobs have their files. `urls` has the URLs of the archive and of the tables."""

    def __init__(self, folder, archive, tables, s3=None):
        self.folder, self.s3 = folder, s3
        self.data = DataFolder(folder / "data", archive)
        self.jobs = Jobs(self.data, tables)
        self.tables = tables
        self.variables = {"NAKADI_ARCHIVE": self.data.archive, "NAKADI_ARCHIVE_AFTER_SECONDS": "0"}
        if s3 is not None:
            self.variables |= CREDENTIALS

    def files(self):
        """Every file, object and version."""
        found = dict(list_files_in(self.folder))
        if self.s3 is None:
            return found | {f"tables/{name}": content for name, content in list_files_in(self.tables).items()}
        return found | objects_in(self.s3, PREFIX)


@pytest.fixture(params=["folder", "bucket"] if everything.WANTED else ["folder"])
def place(request, tmp_path, tables, monkeypatch):
    if request.param == "folder":
        place = FilesOfDeployment(tmp_path, "", tables)
        with closing(place.data):
            yield place
        return
    with ExitStack() as stack:
        url, s3 = stack.enter_context(a_bucket())
        s3.put_bucket_versioning(Bucket=PREFIX, VersioningConfiguration={"Status": "Enabled"})
        spark = open_reading_session(str(tables))
        for name in CREDENTIALS:
            monkeypatch.setitem(spark.sparkContext.environment, name, CREDENTIALS[name])
        endpoint = parse_qs(urlsplit(url).query)["endpoint"][0]
        stack.enter_context(buckets_in_spark(spark, endpoint, PREFIX))
        place = FilesOfDeployment(tmp_path, url, f"s3://{PREFIX}/tables", s3)
        with closing(place.data):
            yield place


class Publisher:
    """Publishes to all event types, and remembers acknowledged events. Every tenth order contains NAME."""

    def __init__(self):
        self.sent = dict.fromkeys((ORDERS, PAYMENTS, CUSTOMERS), 0)

    def publish_round(self, api):
        for name in self.sent:
            numbers = range(self.sent[name], self.sent[name] + BATCH)
            answer = api.post(f"/event-types/{name}/events", json=[self._event(name, number) for number in numbers])
            assert answer.status_code == 200, answer.text
            self.sent[name] += BATCH

    def _event(self, name, number):
        if name == CUSTOMERS:
            metadata = {
                "eid": f"70779f46-950d-4e48-9fca-{number:012d}",
                "occurred_at": "2026-11-21T12:00:00Z",
                "partition_compaction_key": f"k{number % 7}",
            }
            return {"metadata": metadata, "number": number}
        return order(number, customer={"id": NAME if name == ORDERS and number % 10 == 0 else f"c-{number}"})


def client_of(program):
    return httpx.Client(base_url=program.url, timeout=PATIENCE)


def partitions_of(data, name):
    timeline = data.event_types.get(name).timeline
    return [(timeline.topic, partition) for partition in range(timeline.partitions)]


def archived_count(data, name):
    heads = data.index.index_heads(partitions_of(data, name))
    return sum(head.state.next_offset for head in heads.values())


def wait_until_archived(data, publisher):
    until(lambda: all(archived_count(data, name) >= count for name, count in publisher.sent.items()))


def delivered_events(api, name, partitions):
    """All events of an event type, as a stream delivers them."""
    cursors = json.dumps([{"partition": str(number), "offset": "BEGIN"} for number in range(partitions)])
    parameters = {"batch_limit": 1000, "batch_flush_timeout": 1, "stream_timeout": 2}
    answer = api.get(f"/event-types/{name}/events", params=parameters, headers={"X-nakadi-cursors": cursors})
    return [event for line in answer.iter_lines() for event in json.loads(line).get("events", ())]


def compact_log(place):
    """Let the log remove every event about a customer that a later event with the same key replaces."""
    with closing(TieredLogParts("sqlite", place.data.folder, SystemClock()).log(ARCHIVE_MANUALLY)) as log:
        now = SystemClock().now()
        [(topic, partition)] = partitions_of(place.data, CUSTOMERS)
        log.compact(topic, partition, stored_before=now, tombstones_before=now)


@pytest.mark.long(
    "tests/glue_jobs/test_erasure_bytes_left.py::test_nothing_on_disk_has_what_was_erased",
    "tests/glue_jobs/test_erasure_bytes_left.py::test_the_data_file_of_a_running_broker_keeps_nothing",
)
def test_no_byte_of_what_was_erased_is_left(place, monkeypatch):
    """No byte of an erased value is left, although the broker is killed while it archives, and the erasure at its
    steps.
    """
    data, jobs, publisher = place.data, place.jobs, Publisher()
    for number in range(KILLS_OF_BROKER):
        # Leaving the context kills the broker while it archives.
        with workers.start_broker(data.folder, place.variables) as program, client_of(program) as api:
            if number == 0:
                for definition in EVENT_TYPES:
                    assert api.post("/event-types", json=definition).status_code == 201
            for _ in range(3):
                publisher.publish_round(api)
    with workers.start_broker(data.folder, place.variables) as program, client_of(program) as api:
        for _ in range(ROUNDS_WHILE_IT_LIVES):
            publisher.publish_round(api)
        wait_until_archived(data, publisher)
        assert jobs.compact().code == 0
        if place.s3 is None:
            compact_log(place)
        assert jobs.drop_before("--grace-hours", "0", "--merge-below", "100000").code == 0
        publisher.publish_round(api)
        wait_until_archived(data, publisher)
        if everything.WANTED:
            assert jobs.run(follow.main, "--until-idle", "--no-tidying").code == 0
        assert find_files_with_text(NAME, place.files())

        for owner, step in KILLS_OF_ERASURE:
            with monkeypatch.context() as patched, suppress(JobKilled):
                patched.setattr(owner, step, raise_job_killed)
                jobs.drop_before(*ERASURE)
        told = jobs.drop_before(*ERASURE)
        assert (told.code, "verified" in told.told) == (0, True), told.told
        told = jobs.drop_before("--grace-hours", "0")
        assert told.code == 0, told.told

        # A reader may keep the log of the data file from being truncated: the broker retries every few seconds.
        until(lambda: find_files_with_text(NAME, place.files()) == [])
        assert set(list_file_kinds(place.files())) >= {".avro", ".gz", ".parquet"}
        assert len(delivered_events(api, ORDERS, 4)) == publisher.sent[ORDERS] * 9 // 10
        assert len(delivered_events(api, PAYMENTS, 1)) == publisher.sent[PAYMENTS]
        assert {event["number"] % 7 for event in delivered_events(api, CUSTOMERS, 1)} == set(range(7))
