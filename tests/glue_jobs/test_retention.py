"""Old events are removed, and erased values are found nowhere."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from nakadi.app.engines import open_registry
from nakadi.engines.archive import member_format
from nakadi.event_types.storages import STORAGES_KIND
from nakadi.event_types.table_states import TABLE_STATES_KIND, table_state_from_body
from nakadi.model.annotations import PARTITION_BY_ANNOTATION, RETENTION_ANNOTATION
from nakadi.model.event_type import Category, CleanupPolicy
from nakadi.ports.registry import ABSENT_REVISION, PutDocument
from nakadi_jobs.archive_ranges import NO_PROGRESS, unread_parts
from nakadi_jobs.event_type_tables import EVENT_TYPE_ID_PROPERTY, EXPIRED_BEFORE_PROPERTY, events_table
from nakadi_jobs.retention import REMAINING_EVENTS_NOTES, remaining_event_notes
from nakadi_jobs.tables import Change, Table
from tests.support.builders import a_timeline, an_event_type
from tests.support.jobs import order

NOW = datetime.now(UTC)


def archive_of(data, event_type):
    """The events by offset, as readers find them."""
    return {
        event.offset: event.record.value
        for part in unread_parts(data.index, event_type, NO_PROGRESS)
        for event in member_format.parse_member(data.store.read_range(part.location))
    }


def test_old_events_leave_tables(jobs, data):
    """A table keeps events as long as the annotation for data lakes says, or else as long as the broker does."""
    short = data.event_type("order.placed", retention_time=3_600_000)
    long = data.event_type("order.paid", retention_time=3_600_000, annotations={RETENTION_ANNOTATION: "30 days"})
    for each in (short, long):
        data.archive_events(each, [order(1)], at=NOW - timedelta(days=2))
        data.archive_events(each, [order(2)], at=NOW - timedelta(minutes=2))
    jobs.compact()

    told = jobs.drop_before()

    assert told.code == 0
    assert jobs.rows("order_placed") == [(0, 1)]
    assert jobs.rows("order_paid") == [(0, 0), (0, 1)]
    assert "nothing new" in jobs.compact().told


def test_deleted_event_types(jobs, data):
    """The table of a deleted event type is removed after the grace time; a recreated event type has another table."""
    gone = data.event_type("order.placed")
    data.archive_events(gone, [order(1)])
    jobs.compact()
    data.delete("order.placed")
    again = data.event_type("order.placed")
    data.archive_events(again, [order(2), order(3)])
    jobs.compact()

    assert "goes after 24 hours" in jobs.drop_before().told
    assert jobs.rows("order_placed") == [(0, 0)]

    assert "is gone too" in jobs.drop_before("--grace-hours", "0").told
    name = f"order_placed_{again.id.replace('-', '')[:8]}"
    assert jobs.names() == [name]


class Killed(BaseException):
    """Raised in a job to simulate a kill."""


@pytest.mark.long
def test_a_table_takes_the_name_of_its_event_type_once_that_is_free(jobs, data, monkeypatch):
    """When an event type was recreated, its tables are found under its name once those of the deleted one are gone,
    with all their earlier and later content; even if the move is interrupted repeatedly."""
    annotations = {PARTITION_BY_ANNOTATION: "bucket(2, name)", RETENTION_ANNOTATION: "7 days"}
    definition = {
        "schema": {"properties": {"name": {"type": "string"}}},
        "category": Category.BUSINESS,
        "cleanup_policy": CleanupPolicy.COMPACT,
        "annotations": annotations,
    }

    def publish_names(event_type, *names, ago=timedelta(minutes=2)):
        events = [None if name is None else {"metadata": {"eid": "e"}, "name": name} for name in names]
        data.archive_events(event_type, events, keys=[(name or "A")[0] for name in names], at=NOW - ago)

    publish_names(data.event_type("customer.changed", **definition), "Gone", "Away")
    jobs.compact()
    data.delete("customer.changed")
    customers = data.event_type("customer.changed", **definition)
    publish_names(customers, "Old", ago=timedelta(days=30))
    publish_names(customers, "Ann", "Bob")
    publish_names(customers, None, "Cid")
    publish_names(customers, "Bob 2", ago=timedelta(minutes=1))
    jobs.compact()
    named = events_table(jobs.spark(), jobs.database, customers).name
    assert jobs.drop_before("--grace-hours", "0").code == 0
    assert sorted(jobs.names()) == [named, f"{named}__latest"]

    # The move is interrupted before the copy of the first table counts, and after that, when the old second table is
    # gone.
    for number, (owner, what, before) in enumerate([(Change, "publish", 1), (Table, "drop", 1)]):
        with monkeypatch.context() as patched, suppress(Killed):
            patched.setattr(owner, what, killed_after(before, getattr(owner, what)))
            jobs.compact()
            raise AssertionError("it was not killed")
        assert named in jobs.names()
        publish_names(customers, f"Dan {number}", ago=timedelta(seconds=30 - number))
    assert jobs.compact().code == 0

    assert sorted(jobs.names()) == ["customer_changed", "customer_changed__latest"]
    expected = [(1, "Ann"), (2, "Bob"), (3, None), (4, "Cid"), (5, "Bob 2"), (6, "Dan 0"), (7, "Dan 1")]
    assert jobs.rows("customer_changed", "nakadi_offset", "name") == expected
    newest = [(0, "Old"), (4, "Cid"), (5, "Bob 2"), (7, "Dan 1")]
    assert jobs.rows("customer_changed__latest", "nakadi_offset", "name") == newest
    table = events_table(jobs.spark(), jobs.database, customers)
    assert table.properties()[EVENT_TYPE_ID_PROPERTY] == customers.id
    assert EXPIRED_BEFORE_PROPERTY in table.properties()
    assert "name_bucket_2" in jobs.spark().table(f"{table.path}.files").select("partition.*").columns
    [state] = data.registry.list(TABLE_STATES_KIND)
    assert table_state_from_body(state.body).table_name == "customer_changed"
    assert jobs.spark_jobs(jobs.compact) == 0


def killed_after(calls, plain):
    """A method that simulates a kill after this number of calls."""
    left = iter(range(calls))

    def run_job(*arguments):
        if next(left, None) is None:
            raise Killed
        return plain(*arguments)

    return run_job


@pytest.mark.long
def test_an_event_type_that_was_made_again_has_one_table(jobs, data):
    """If an event type was deleted and created again, an erasure finds the events of both, whatever the new one's table
    is called at that time.
    """
    gone = data.event_type("order.placed")
    data.archive_events(gone, [order(1), order(2)])
    jobs.compact()
    data.delete("order.placed")
    again = data.event_type("order.placed")
    data.archive_events(again, [order(2), order(3)], at=NOW - timedelta(minutes=2))
    jobs.compact()
    name = f"order_placed_{again.id.replace('-', '')[:8]}"

    erasure = ("--do", "erase", "--event-type", "order.placed", "--path", "customer.id", "--value", "c-2")
    assert jobs.drop_before(*erasure).code == 0
    assert (jobs.rows("order_placed"), jobs.rows(name)) == ([(0, 0)], [(0, 1)])

    jobs.drop_before("--grace-hours", "0")
    data.archive_events(again, [order(4)], at=NOW - timedelta(minutes=1))
    jobs.compact()
    assert jobs.names() == ["order_placed"]
    assert jobs.rows("order_placed") == [(0, 1), (0, 2)]
    assert jobs.drop_before(*erasure[:-1], "c-3").code == 0
    assert jobs.rows("order_placed") == [(0, 2)]


def test_many_small_segments_become_one(jobs, data):
    """Small neighbouring segments in the archive are merged, and tables have no event twice."""
    orders = data.event_type("order.placed")
    for number in range(20):
        data.archive_events(orders, [order(number)], at=NOW - timedelta(minutes=2))
    jobs.compact()
    before = archive_of(data, orders)

    told = jobs.drop_before("--grace-hours", "0").told

    assert "20 small segments are 1 now" in told
    assert "0 objects (0 bytes) that nothing refers to are gone" in told
    assert archive_of(data, orders) == before
    assert len(list(unread_parts(data.index, orders, NO_PROGRESS))) == 1
    data.archive_events(orders, [order(20)], at=NOW - timedelta(minutes=1))
    jobs.compact()
    assert [offset for _, offset in jobs.rows("order_placed")] == list(range(21))


@pytest.mark.long(
    "tests/glue_jobs/test_erasure_bytes_left.py::test_nothing_on_disk_has_what_was_erased",
    "tests/glue_jobs/test_erasure.py::test_blanking_keeps_the_event",
)
@pytest.mark.parametrize("how", ["remove", "blank"])
def test_erasing(jobs, data, tmp_path, monkeypatch, how):
    """Events with the value are gone from archive, tables and old snapshots; the others keep their offsets."""
    if how == "remove":
        # Use Spark's tasks, as for a large archive.
        monkeypatch.setattr("nakadi_jobs.in_tasks.MIN_TASK_WORK", (0, 0))
    orders = data.event_type("order.placed", schema={"properties": {"customer": {"type": "object"}}})
    named = [{"customer": {"id": name}} for name in ("ann", "bob", "cid")]
    data.archive_events(orders, named)
    untouched = data.archive_events(orders, [{"customer": {"id": "bobby"}}])
    data.archive_events(orders, [b'{"customer":{"id":"\\u0062ob"}}', {"customer": {"id": "dan"}}])
    jobs.compact()

    told = jobs.drop_before(
        "--do", "erase", "--event-type", "order.placed", "--path", "customer.id", "--value", "bob", "--how", how,
        "--report", str(tmp_path / "reports"),
    )  # fmt: skip

    assert (told.code, "verified" in told.told) == (0, True)
    left = archive_of(data, orders)
    rows = {offset for _, offset in jobs.rows("order_placed")}
    if how == "remove":
        assert set(left) == rows == {0, 2, 3, 5}
    else:
        assert set(left) == rows == set(range(6))
        assert left[1] == left[4] == b"{}"
    texts = " ".join(str(row) for row in jobs.rows("order_placed", "to_json(struct(*))"))
    assert "ann" in texts
    assert '"bob\\' not in texts
    assert jobs.snapshots("order_placed") == 1
    assert untouched.location in {each.location for each in unread_parts(data.index, orders, NO_PROGRESS)}
    (report,) = (tmp_path / "reports").iterdir()
    known = json.loads(report.read_text())
    assert known["verified_gone"] is True
    assert known["archive"][0]["offsets"] == [1, 4]
    assert '"bob"' not in report.read_text()
    assert "nothing new" in jobs.compact().told


@pytest.mark.long
def test_tables_are_made_after_an_erasure(jobs, data):
    """An erasure before the first compaction leaves no complaints, and neither does a table rebuilt after one."""
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(number) for number in range(7)])
    data.archive_events(orders, [order(7)])
    erasure = ("--do", "erase", "--event-type", "order.placed", "--path", "customer.id")

    assert jobs.drop_before(*erasure, "--value", "c-3").code == 0
    assert jobs.compact().code == 0
    left = [(0, offset) for offset in (0, 1, 2, 4, 5, 6, 7)]
    assert jobs.rows("order_placed") == left

    jobs.spark().sql(f"DROP TABLE nakadi.{jobs.database}.order_placed PURGE")
    assert jobs.compact().code == 0
    assert jobs.rows("order_placed") == left


@pytest.mark.long
def test_erasing_from_the_newest(jobs, data):
    """An erasure also removes events with the value from the table of the newest events, and tombstones that consist of
    the value.
    """
    customers = data.event_type(
        "customer.changed", schema={}, category=Category.BUSINESS, cleanup_policy=CleanupPolicy.COMPACT
    )
    named = [{"metadata": {"partition_compaction_key": key}} for key in ("4711", "4712")]
    data.archive_events(customers, [*named, None], keys=["4711", "4712", "4711"])
    jobs.compact()

    told = jobs.drop_before(
        "--do", "erase", "--event-type", "customer.changed", "--path", "metadata.partition_compaction_key",
        "--value", "4711",
    )  # fmt: skip

    assert told.code == 0
    assert set(archive_of(data, customers)) == {1}
    assert jobs.rows("customer_changed") == [(0, 1)]
    assert jobs.rows("customer_changed__latest", "nakadi_key") == [("4712",)]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--event-type", "order.placed"],
        ["--event-type", "unknown", "--path", "a", "--value", "b"],
        ["--event-type", "order.placed", "--path", "metadata.eid", "--value", "b", "--how", "blank"],
    ],
)
def test_what_cannot_be_asked(jobs, data, wrong):
    """A job refuses an erasure with missing arguments, or one that could have no effect."""
    data.event_type("order.placed")
    told = jobs.drop_before("--do", "erase", *wrong)
    assert told.code == 1
    assert "cannot be done" in told.told


STREAM, KAFKA = REMAINING_EVENTS_NOTES.values()


@pytest.mark.parametrize(
    ("built_in", "storages", "told"),
    [
        ("sqlite", ["default"], []),
        ("sqlite", ["embedded"], []),
        ("kinesis", ["default"], [STREAM]),
        ("kafka", ["default"], [KAFKA]),
        ("sqlite", ["default", "kafka"], [KAFKA]),
        ("kinesis", ["kinesis", "kafka", "default"], [STREAM, KAFKA]),
    ],
)
def test_an_erasure_tells_what_logs_still_deliver(built_in, storages, told):
    """Events that only a stream still keeps are no longer delivered, because the archive has them; Kafka delivers the
    events that it keeps, even if only some timelines are in a storage there."""
    registry = open_registry("memory:")
    for kind in ("embedded", "kinesis", "kafka"):
        registry.write(
            PutDocument(
                STORAGES_KIND,
                kind,
                {"type": kind, "configuration": {}, "closed": False},
                expected_revision=ABSENT_REVISION,
            )
        )
    timelines = tuple(a_timeline(order=number, storage_id=each) for number, each in enumerate(storages))

    assert list(remaining_event_notes(registry, an_event_type(timelines=timelines), built_in)) == told


def test_an_erasure_tells_nothing_of_a_log_that_events_have_left():
    """A timeline whose events are gone has nothing more to deliver."""
    registry = open_registry("memory:")
    timelines = (a_timeline(order=0, deleted=True), a_timeline(order=1, storage_id="removed"))

    assert remaining_event_notes(registry, an_event_type(timelines=timelines), "kafka") == []
