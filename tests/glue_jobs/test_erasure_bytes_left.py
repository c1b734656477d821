"""No byte of an erased value is left in any file, and an erasure itself notices remaining bytes."""

import json
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from nakadi.common.avro_files import BadAvro
from nakadi.engines.archive.evacuation import Evacuation
from nakadi.engines.archive.merging import claim_partition
from nakadi.engines.archive.stores import S3Store
from nakadi.local import Broker
from nakadi.model.annotations import PARTITION_BY_ANNOTATION, RETENTION_ANNOTATION, SORT_BY_ANNOTATION
from nakadi.model.event_type import Category, CleanupPolicy
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock
from nakadi_jobs import command, dead_members, leftovers, retention
from nakadi_jobs.erasure import Rewriter
from nakadi_jobs.event_type_tables import events_table
from nakadi_jobs.manifest_bounds import read_bounds
from nakadi_jobs.tables import Change, Table
from tests.support.api import a_definition
from tests.support.bytes_left import find_files_with_text, list_file_kinds, list_files_in, objects_in
from tests.support.dynamodb_service import CREDENTIALS, PREFIX, a_bucket
from tests.support.jobs import DataFolder, Jobs, open_reading_session, order
from tests.support.patience import PATIENCE, until
from tests.support.s3_files import buckets_in_spark

NOW = datetime.now(UTC)
LATELY = NOW - timedelta(minutes=2)
NAME = "customer-4711-of-the-long-name"
ERASE_NAME = ("--do", "erase", "--event-type", "order.placed", "--path", "customer.id", "--value", NAME)
BY_NAME = {PARTITION_BY_ANNOTATION: "day(nakadi_time), customer.id", RETENTION_ANNOTATION: "unlimited"}
"""With these annotations, the manifests also contain the value, because it is the value of a partition."""

EVERYTHING = {".avro", ".gz", ".json", ".parquet"}


class JobKilled(BaseException):
    """Raised in a job to simulate a kill."""


def raise_job_killed(*_, **__):
    raise JobKilled


def named_orders(data, **changes):
    """Archive some orders; the second one contains NAME."""
    orders = data.event_type("order.placed", annotations=BY_NAME, **changes)
    named = [order(0), order(1, customer={"id": NAME}), order(2)]
    return orders, data.archive_events(orders, named, at=LATELY)


def branch_of_a_killed_run(table):
    """A killed run's branch in a table. Keep the result, because the branch is removed when the result is
    garbage-collected.
    """
    run = table.change()
    run.__enter__().append(table.rows(), "{}")
    return run


@pytest.fixture
def table_after_killed_run(jobs, data, tables):
    """A table, and the remains of a killed run: a branch, a file and a manifest outside all snapshots, and a copy of
    the archive."""
    orders, segment = named_orders(data)
    jobs.compact()
    table = events_table(jobs.spark(), jobs.database, orders)
    run = branch_of_a_killed_run(table)
    folder = tables / jobs.database / "order_placed"
    for pattern, name in (("data/**/*.parquet", "lost.parquet"), ("metadata/*-m0.avro", "lost-m0.avro")):
        for number, written in enumerate(sorted(folder.glob(pattern))):
            written.with_name(f"{number}-{name}").write_bytes(written.read_bytes())
    copies = tables / "_gathered" / orders.timeline.topic
    copies.mkdir(parents=True)
    (copies / "killed-0.json.gz").write_bytes(data.path(segment).read_bytes())
    yield folder, copies
    # End the killed run now; its branch may be gone already.
    run.gen.close()


def all_files(data, *folders):
    return {
        f"{folder}/{name}": content
        for folder in (data.folder, *folders)
        for name, content in list_files_in(folder).items()
    }


def test_nothing_on_disk_has_what_was_erased(jobs, data, table_after_killed_run):
    """No byte of an erased value is left on disk, even in files of killed runs; the rest of each event is unchanged."""
    before = find_files_with_text(NAME[:16], all_files(data, *table_after_killed_run))
    assert {name.rpartition(".")[2] for name in before} >= {"parquet", "avro", "gz"}

    told = jobs.drop_before(*ERASE_NAME)
    assert (told.code, "verified" in told.told) == (0, True), told.told
    jobs.drop_before("--grace-hours", "0")

    files = all_files(data, *table_after_killed_run)
    assert set(list_file_kinds(files)) >= EVERYTHING
    assert find_files_with_text(NAME[:16], files) == []
    assert jobs.rows("order_placed") == [(0, 0), (0, 2)]
    assert "nothing new" in jobs.compact().told


@pytest.mark.long
def test_an_erasure_that_is_killed_is_finished_by_the_next(jobs, data, table_after_killed_run, monkeypatch):
    """Wherever an erasure is killed, the next run erases the rest, and nothing else."""
    moments = [
        (Rewriter, "rewrite"),
        (retention, "_erase_from_table"),
        (Change, "publish"),
        (Table, "remove_replaced_rows"),
        (Table, "forget_deleted_files"),
        (Table, "expire_snapshots_before"),
        (Table, "remove_lost_files"),
        (leftovers, "remove_copies"),
        (retention, "remove_parked_events"),
        (retention, "_report_verification"),
    ]
    for owner, name in moments:
        with monkeypatch.context() as patched, suppress(JobKilled):
            patched.setattr(owner, name, raise_job_killed)
            jobs.drop_before(*ERASE_NAME)
            raise AssertionError(f"it was not killed at {name}")
    told = jobs.drop_before(*ERASE_NAME)
    assert (told.code, "verified" in told.told) == (0, True), told.told
    jobs.drop_before("--grace-hours", "0")

    assert find_files_with_text(NAME[:16], all_files(data, *table_after_killed_run)) == []
    assert jobs.rows("order_placed") == [(0, 0), (0, 2)]


@pytest.fixture
def running_broker(data):
    """A client of a broker that runs in the data folder, and archives at once."""
    file = f"sqlite:///{data.folder / 'nakadi.db'}"
    places = {"registry": file, "event_log": file, "log_index": file, "archive": data.archive}
    with (
        Broker(**places, archive_after_seconds=0) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        yield api


def archive_names(data, name, count):
    place = (data.event_types.get(name).timeline.topic, 0)
    return data.index.index_heads([place])[place].state.next_offset >= count


def test_the_data_file_of_a_running_broker_keeps_nothing(jobs, data, running_broker):
    """An event that was published to a broker, archived and erased is in no byte of its data file and of SQLite's
    log, and the report says so; other events stay."""
    definition = a_definition()
    assert running_broker.post("/event-types", json=definition).status_code == 201
    events = f"/event-types/{definition['name']}/events"
    for number, customer in enumerate(("before", NAME + "x" * 20_000, "between", NAME)):
        assert running_broker.post(events, json=[order(number, customer={"id": customer})]).status_code == 200
    until(lambda: archive_names(data, definition["name"], 4))
    assert find_files_with_text(NAME, list_files_in(data.folder)) != []

    path = ("--do", "erase", "--event-type", definition["name"], "--path", "customer.id")
    jobs.drop_before(*path, "--value", NAME + "x" * 20_000)
    told = jobs.drop_before(*path, "--value", NAME)
    jobs.drop_before("--grace-hours", "0")

    assert find_files_with_text(NAME, list_files_in(data.folder)) == []
    assert (told.code, "nakadi.db: wiped" in told.told) == (0, True), told.told
    cursor = json.dumps([{"partition": "0", "offset": "BEGIN"}])
    parameters = {"stream_limit": 2, "batch_flush_timeout": 1}
    read = running_broker.get(events, headers={"X-Nakadi-Cursors": cursor}, params=parameters).text
    assert ("before" in read, "between" in read, NAME in read) == (True, True, False)
    later = running_broker.post(events, json=[order(5)])
    assert later.status_code == 200
    until(lambda: archive_names(data, definition["name"], 5))


@pytest.mark.long
def test_what_is_not_archived_yet_is_not_called_gone(jobs, data):
    """The report of an erasure names the partition of the log with an event that is not archived yet; once it is
    archived, a later run erases it.
    """
    file = f"sqlite:///{data.folder / 'nakadi.db'}"
    places = {"registry": file, "event_log": file, "log_index": file, "archive": data.archive}
    definition = a_definition()
    erasure = ("--do", "erase", "--event-type", definition["name"], "--path", "customer.id", "--value", NAME)
    with (
        Broker(**places, archive_after_seconds=3600) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        assert api.post("/event-types", json=definition).status_code == 201
        events = [order(1, customer={"id": NAME})]
        assert api.post(f"/event-types/{definition['name']}/events", json=events).status_code == 200
        told = jobs.drop_before(*erasure)
        assert (told.code, "verified" in told.told) == (3, False), told.told
        assert f"partition 0 of {definition['name']} in the log (it is not archived yet)" in told.told
    with Broker(**places, archive_after_seconds=0):
        until(lambda: archive_names(data, definition["name"], 1))
        told = jobs.drop_before(*erasure)
    assert (told.code, "verified" in told.told) == (0, True), told.told
    assert find_files_with_text(NAME, list_files_in(data.folder)) == []


class LaterClock(SystemClock):
    """A clock that is two days ahead."""

    def now(self):
        return super().now() + timedelta(days=2)


@pytest.fixture
def bucket(tables, tmp_path, monkeypatch):
    """Archive and tables in a bucket that Spark can reach: yields a client of S3, a data folder and jobs."""
    with a_bucket() as (url, s3), closing(DataFolder(tmp_path / "data", url)) as data:
        spark = open_reading_session(str(tables))
        for name in CREDENTIALS:
            monkeypatch.setitem(spark.sparkContext.environment, name, CREDENTIALS[name])
        with buckets_in_spark(spark, parse_qs(urlsplit(url).query)["endpoint"][0], PREFIX):
            yield s3, data, Jobs(data, f"s3://{PREFIX}/tables")


@pytest.mark.long
def test_nothing_in_a_bucket_has_what_was_erased(bucket, monkeypatch):
    """No byte of an erased value is left in the archive and tables in S3, even after killed runs. On the same day,
    files may belong to an active run, so they stay; the report names them, and does not say that the value is erased.
    """
    s3, data, jobs = bucket
    orders, segment = named_orders(data)
    other = data.event_type("order.paid")
    # The archive object also has many events of another event type.
    data.archive_events(orders, [order(3)], at=LATELY, other_topics=[other])
    jobs.compact()
    run = branch_of_a_killed_run(events_table(jobs.spark(), jobs.database, orders))

    def copy(key, to):
        s3.copy_object(Bucket=PREFIX, Key=to, CopySource={"Bucket": PREFIX, "Key": key})
        return to

    folder = f"tables/{jobs.database}/order_placed"
    with_name = [name.partition("@")[0] for name in find_files_with_text(NAME[:16], objects_in(s3, PREFIX))]
    lost = [
        copy(key, f"{key.rpartition('/')[0]}/{number}-lost{key[key.rindex('.') :]}")
        for number, key in enumerate(with_name)
        if key.startswith(folder)
    ]
    lost.append(copy(segment.location.key, f"tables/_gathered/{orders.timeline.topic}/killed-0.json.gz"))
    assert {key.rpartition(".")[2] for key in lost} == {"avro", "gz", "parquet"}

    with monkeypatch.context() as patched, suppress(JobKilled):
        patched.setattr(Table, "forget_deleted_files", raise_job_killed)
        jobs.drop_before(*ERASE_NAME)
    told = jobs.drop_before(*ERASE_NAME)
    assert (told.code, "verified" in told.told) == (3, False)
    assert {key for key in lost if f"{key.removeprefix('tables/')}; run this again" not in told.told} == set()

    monkeypatch.setattr(command, "SystemClock", LaterClock)
    told = jobs.drop_before(*ERASE_NAME)
    assert (told.code, "verified" in told.told) == (0, True), told.told
    assert jobs.drop_before().code == 0
    run.gen.close()
    objects = objects_in(s3, PREFIX)
    assert set(list_file_kinds(objects)) >= EVERYTHING
    assert find_files_with_text(NAME[:16], {**objects, **list_files_in(data.folder)}) == []
    assert jobs.rows("order_placed") == [(0, 0), (0, 2), (0, 3)]


@pytest.fixture
def versioned_bucket(bucket):
    """A bucket that keeps versions, with an object of the archive that two event types share, and a table: yields a
    client of S3, a data folder, jobs and the event types.
    """
    s3, data, jobs = bucket
    s3.put_bucket_versioning(Bucket=PREFIX, VersioningConfiguration={"Status": "Enabled"})
    others = shared_objects(data)
    jobs.compact("--event-types", "order.placed")
    return s3, data, jobs, others


@pytest.mark.long("tests/glue_jobs/test_erasure_bytes_left.py::test_nothing_on_disk_has_what_was_erased")
def test_nothing_is_left_in_a_bucket_that_keeps_versions(versioned_bucket):
    """An erased value is in no version of any object, and the events of other event types keep their bytes."""
    s3, data, jobs, others = versioned_bucket
    before = referenced_bytes(data, others)
    told = jobs.drop_before(*ERASE_NAME)
    assert (told.code, "verified" in told.told) == (0, True), told.told
    assert find_files_with_text(NAME[:16], {**objects_in(s3, PREFIX), **list_files_in(data.folder)}) == []
    assert referenced_bytes(data, others) == before
    assert jobs.rows("order_placed") == [(0, 0), (0, 2)]


@pytest.mark.long
@pytest.mark.parametrize("refused", ["list_old_versions", "remove_old_versions"])
def test_old_versions_that_stay_are_named(versioned_bucket, monkeypatch, tmp_path, refused):
    """If a role may not list or remove versions, no value is reported as erased, and a later run with these rights
    finds them.
    """
    s3, _, jobs, _ = versioned_bucket

    def refuse(*_):
        raise Unavailable("S3: AccessDenied")

    def keep(_, versions):
        return dict.fromkeys(versions, "AccessDenied")

    with monkeypatch.context() as patched:
        patched.setattr(S3Store, refused, refuse if refused == "list_old_versions" else keep)
        told = jobs.drop_before(*ERASE_NAME, "--report", str(tmp_path / "reports"))
    assert (told.code, "verified" in told.told) == (3, False)
    [report] = (tmp_path / "reports").iterdir()
    known = json.loads(report.read_text())
    assert known["verified_gone"] is False
    assert known["left_in"]
    assert all("AccessDenied" in place for place in known["left_in"])

    told = jobs.drop_before(*ERASE_NAME)
    assert (told.code, "verified" in told.told) == (0, True), told.told
    assert find_files_with_text(NAME[:16], objects_in(s3, PREFIX)) == []


@pytest.mark.long
@pytest.mark.usefixtures("table_after_killed_run")
def test_what_is_left_on_disk_is_found(jobs, monkeypatch):
    """The verification also reads files that no table refers to, so no value in them is reported as erased."""
    monkeypatch.setattr(Table, "remove_lost_files", lambda *_: 0)
    monkeypatch.setattr(leftovers, "remove_copies", lambda *_: 0)
    told = jobs.drop_before(*ERASE_NAME)
    assert (told.code, "verified" in told.told) == (3, False)
    for name in ("lost.parquet", "lost-m0.avro", "killed-0.json.gz"):
        assert f"{name}; run this again" in told.told


@pytest.mark.long
def test_what_is_left_in_old_snapshots_is_found(jobs, data, monkeypatch):
    """The verification also reads the files and manifests that only an earlier state of the table has."""
    named_orders(data)
    jobs.compact()
    monkeypatch.setattr(Table, "expire_snapshots_before", lambda *_: 0)
    told = jobs.drop_before(*ERASE_NAME)

    assert (told.code, "verified" in told.told) == (3, False)
    assert ".parquet; run this again" in told.told
    assert "manifests of the table order_placed; run this again" in told.told


def replace_row(jobs, data):
    """A compacted event type whose table has a newer row with the key of the row that contains NAME."""
    customers = data.event_type(
        "customer.changed",
        schema={"properties": {"name": {"type": "string"}}},
        category=Category.BUSINESS,
        cleanup_policy=CleanupPolicy.COMPACT,
        annotations={PARTITION_BY_ANNOTATION: "name, truncate(20, name)", SORT_BY_ANNOTATION: "name"},
    )
    for name in (NAME, "Bob"):
        data.archive_events(
            customers, [{"metadata": {"eid": "e"}, "name": each} for each in (name, "Ann")], keys=["a", "b"]
        )
        jobs.compact()


ERASE_CUSTOMER = ("--do", "erase", "--event-type", "customer.changed", "--path", "name", "--value", NAME)


@pytest.mark.long
def test_nothing_is_left_of_what_was_replaced_or_partitioned_by(jobs, data, tables):
    """Files still have a row that a newer one replaced, and manifests have the value by which a table is
    partitioned. After an erasure, not a byte of either is left.
    """
    replace_row(jobs, data)
    jobs.spark().sql(f"ALTER TABLE nakadi.{jobs.database}.customer_changed CREATE TAG mine")
    folder = tables / jobs.database
    before = find_files_with_text(NAME[:16], list_files_in(folder))
    assert [name for name in before if name.startswith("customer_changed/metadata/")]
    assert [name for name in before if name.startswith("customer_changed__latest/data/")]

    told = jobs.drop_before(*ERASE_CUSTOMER)

    assert (told.code, "verified" in told.told) == (0, True), told.told
    assert find_files_with_text(NAME[:16], list_files_in(folder)) == []
    assert jobs.rows("customer_changed", "nakadi_offset", "name") == [(1, "Ann"), (2, "Bob"), (3, "Ann")]
    assert jobs.rows("customer_changed__latest", "nakadi_offset", "name") == [(2, "Bob"), (3, "Ann")]


@pytest.mark.long
def test_rows_that_are_only_marked_as_replaced_are_found(jobs, data, monkeypatch):
    """A table does not show a row that is only marked as replaced, but its file contains the row, so the value is not
    reported as erased.
    """
    replace_row(jobs, data)
    monkeypatch.setattr(Table, "remove_replaced_rows", lambda _: None)
    told = jobs.drop_before(*ERASE_CUSTOMER)

    assert (told.code, "verified" in told.told) == (3, False)
    [place] = [line for line in told.told.splitlines() if line.startswith("Needs attention")]
    assert "customer_changed__latest/data/" in place


@pytest.mark.long
def test_manifests_are_read_without_iceberg(jobs, data, tables):
    """A manifest outside all snapshots is read as Iceberg reads the table's own; a damaged file is no manifest."""
    orders, _ = named_orders(data)
    jobs.compact()
    table = events_table(jobs.spark(), jobs.database, orders)
    manifests = sorted((tables / jobs.database / "order_placed" / "metadata").glob("*-m*.avro"))

    found = frozenset().union(*(read_bounds(each.read_bytes()) for each in manifests))
    assert NAME.encode() in found
    # For a day, Iceberg shows the date, and the file has the number of the day.
    assert table.bounds() - {str(LATELY.date()).encode()} <= found
    whole = manifests[0].read_bytes()
    for broken in (b"", b"PAR1", whole[:-1], whole[:40], whole + b"\x02", whole[:-16] + bytes(16)):
        with pytest.raises(BadAvro):
            read_bounds(broken)


def shared_objects(data):
    """Objects that three event types share, two of which are returned; events of the third contain NAME."""
    orders = data.event_type("order.placed")
    others = [data.event_type(f"order.{name}") for name in ("paid", "sent")]
    for number in (0, 1):
        data.archive_together(
            [
                (orders, [order(number), order(1, customer={"id": NAME})]),
                *((other, [order(number), order(number + 1)]) for other in others),
            ],
            at=LATELY,
        )
    return others


def referenced_bytes(data, event_types):
    """The exact bytes to which the segments of these event types refer."""
    return [
        data.store.read_range(segment.location)
        for each in event_types
        for segment in data.index.segments_from(each.timeline.topic, 0, 0, 100)
    ]


def test_nothing_is_left_in_objects_that_others_share(jobs, data, tmp_path):
    """Members of other event types move to new objects unchanged, and the erasure removes the old objects."""
    others = shared_objects(data)
    before = referenced_bytes(data, others)
    told = jobs.drop_before(*ERASE_NAME, "--report", str(tmp_path / "reports"))
    assert (told.code, "verified" in told.told) == (0, True), told.told
    assert find_files_with_text(NAME, list_files_in(data.folder / "archive")) == []
    assert referenced_bytes(data, others) == before
    [report] = (tmp_path / "reports").iterdir()
    assert len(json.loads(report.read_text())["removed_objects"]) == 2
    assert "4 events into" in jobs.compact("--event-types", "order.paid").told


@pytest.mark.long
def test_an_object_that_cannot_be_emptied_yet_is_not_called_gone(jobs, data, tmp_path, monkeypatch):
    """While another process rewrites a neighbour's partition, the report names the shared object; a later run removes
    the object.
    """
    paid, _ = shared_objects(data)
    monkeypatch.setattr(dead_members, "CLAIM_TIMEOUT_SECONDS", 0.0)
    with claim_partition(data.index, paid.timeline.topic, 0):
        told = jobs.drop_before(*ERASE_NAME, "--report", str(tmp_path / "reports"))
    assert (told.code, "verified" in told.told) == (3, False)
    [report] = (tmp_path / "reports").iterdir()
    known = json.loads(report.read_text())
    assert known["verified_gone"] is False
    assert len(known["left_in"]) == 2
    assert all("another process writes a partition of it anew" in place for place in known["left_in"])

    told = jobs.drop_before(*ERASE_NAME)
    assert (told.code, "verified" in told.told) == (0, True), told.told
    assert find_files_with_text(NAME, list_files_in(data.folder / "archive")) == []


@pytest.mark.long
@pytest.mark.parametrize("step", ["partly_dead_objects", "vacate_object", "_refer_to"])
def test_an_erasure_from_shared_objects_can_be_killed(jobs, data, monkeypatch, step):
    """Wherever the erasure is killed, the next run finds the objects that have the value and no reference, and removes
    them.
    """
    others = shared_objects(data)
    before = referenced_bytes(data, others)
    with monkeypatch.context() as patched, suppress(JobKilled):
        patched.setattr(Evacuation, step, raise_job_killed)
        jobs.drop_before(*ERASE_NAME)
        raise AssertionError("it was not killed")
    told = jobs.drop_before(*ERASE_NAME)
    assert (told.code, "verified" in told.told) == (0, True), told.told
    assert find_files_with_text(NAME, list_files_in(data.folder / "archive")) == []
    assert referenced_bytes(data, others) == before


@pytest.mark.long
def test_what_is_dead_beside_others_goes_with_expiry(jobs, data):
    """Two runs remove a deleted event type's events from shared objects, although their neighbours stay."""
    others = shared_objects(data)
    before = referenced_bytes(data, others)
    data.delete("order.placed")
    assert "2 objects go with the next run" in jobs.drop_before("--grace-hours", "0").told
    jobs.drop_before("--grace-hours", "0")
    assert find_files_with_text(NAME, list_files_in(data.folder / "archive")) == []
    assert referenced_bytes(data, others) == before


def test_what_the_last_event_type_left_goes_with_expiry(jobs, data):
    """When the last event type is deleted, the archive loses its last reference, and expiry still removes its
    objects.
    """
    shared_objects(data)
    for name in ("order.placed", "order.paid", "order.sent"):
        data.delete(name)
    jobs.drop_before("--grace-hours", "0")
    assert list_files_in(data.folder / "archive") == {}
