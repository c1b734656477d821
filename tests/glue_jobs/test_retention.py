"""What is too old goes, and what has to be erased is found nowhere any more."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from nakadi.engines.archive import objects
from nakadi.event_types.rules import PERIOD
from nakadi.model.event_type import Category, CleanupPolicy
from nakadi_jobs.archive_ranges import NOTHING_READ, unread_parts
from tests.support.jobs import order

NOW = datetime.now(UTC)


def archive_of(data, event_type):
    """Offset -> event, as readers find them."""
    return {
        event.offset: event.record.value
        for part in unread_parts(data.index, event_type, NOTHING_READ)
        for event in objects.events_in(data.store.get(part.location))
    }


def test_old_events_leave_tables(jobs, data):
    """A table keeps events as long as the annotation for data lakes says, or else as long as the broker does."""
    short = data.event_type("order.placed", retention_time=3_600_000)
    long = data.event_type("order.paid", retention_time=3_600_000, annotations={PERIOD: "30 days"})
    for each in (short, long):
        data.archived(each, [order(1)], at=NOW - timedelta(days=2))
        data.archived(each, [order(2)], at=NOW - timedelta(minutes=2))
    jobs.compacted()

    told = jobs.let_go()

    assert told.code == 0
    assert jobs.rows("order_placed") == [(0, 1)]
    assert jobs.rows("order_paid") == [(0, 0), (0, 1)]
    assert "nothing new" in jobs.compacted().told


def test_deleted_event_types(jobs, data):
    """The table of a deleted event type goes after the grace time; one of the same name is another."""
    gone = data.event_type("order.placed")
    data.archived(gone, [order(1)])
    jobs.compacted()
    data.delete("order.placed")
    again = data.event_type("order.placed")
    data.archived(again, [order(2), order(3)])
    jobs.compacted()

    assert "goes after 24 hours" in jobs.let_go().told
    assert jobs.rows("order_placed") == [(0, 0)]

    assert "is gone too" in jobs.let_go("--grace-hours", "0").told
    names = [row["tableName"] for row in jobs.spark().sql(f"SHOW TABLES IN nakadi.{jobs.database}").collect()]
    assert names == [f"order_placed_{again.id.replace('-', '')[:8]}"]


def test_many_small_segments_become_one(jobs, data):
    """Neighbours in the archive that are small are merged, and tables have no event twice."""
    orders = data.event_type("order.placed")
    for number in range(20):
        data.archived(orders, [order(number)], at=NOW - timedelta(minutes=2))
    jobs.compacted()
    before = archive_of(data, orders)

    told = jobs.let_go("--grace-hours", "0").told

    assert "20 small segments are 1 now" in told
    assert "0 objects (0 bytes) that nothing refers to are gone" in told
    assert archive_of(data, orders) == before
    assert len(list(unread_parts(data.index, orders, NOTHING_READ))) == 1
    data.archived(orders, [order(20)], at=NOW - timedelta(minutes=1))
    jobs.compacted()
    assert [offset for _, offset in jobs.rows("order_placed")] == list(range(21))


@pytest.mark.parametrize("how", ["remove", "blank"])
def test_erasing(jobs, data, tmp_path, how):
    """Events with the value are gone from archive, tables and old snapshots; the others keep their offsets."""
    orders = data.event_type("order.placed", schema={"properties": {"customer": {"type": "object"}}})
    named = [{"customer": {"id": name}} for name in ("ann", "bob", "cid")]
    data.archived(orders, named)
    untouched = data.archived(orders, [{"customer": {"id": "bobby"}}])
    data.archived(orders, [b'{"customer":{"id":"\\u0062ob"}}', {"customer": {"id": "dan"}}])
    jobs.compacted()

    told = jobs.let_go(
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
    assert untouched.archived in {each.location for each in unread_parts(data.index, orders, NOTHING_READ)}
    (report,) = (tmp_path / "reports").iterdir()
    known = json.loads(report.read_text())
    assert known["verified_gone"] is True
    assert known["archive"][0]["offsets"] == [1, 4]
    assert '"bob"' not in report.read_text()
    assert "nothing new" in jobs.compacted().told


def test_tables_are_made_after_an_erasure(jobs, data):
    """An erasure before the first compaction leaves nothing to complain of, nor does a table built anew after one."""
    orders = data.event_type("order.placed")
    data.archived(orders, [order(number) for number in range(7)])
    data.archived(orders, [order(7)])
    erasure = ("--do", "erase", "--event-type", "order.placed", "--path", "customer.id")

    assert jobs.let_go(*erasure, "--value", "c-3").code == 0
    assert jobs.compacted().code == 0
    left = [(0, offset) for offset in (0, 1, 2, 4, 5, 6, 7)]
    assert jobs.rows("order_placed") == left

    jobs.spark().sql(f"DROP TABLE nakadi.{jobs.database}.order_placed PURGE")
    assert jobs.compacted().code == 0
    assert jobs.rows("order_placed") == left


def test_erasing_from_the_newest(jobs, data):
    """The table of the newest events loses them too, and tombstones that are nothing but the value."""
    customers = data.event_type(
        "customer.changed", schema={}, category=Category.BUSINESS, cleanup_policy=CleanupPolicy.COMPACT
    )
    named = [{"metadata": {"partition_compaction_key": key}} for key in ("4711", "4712")]
    data.archived(customers, [*named, None], keys=["4711", "4712", "4711"])
    jobs.compacted()

    told = jobs.let_go(
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
    """An erasure that lacks something, or would not erase, is not begun."""
    data.event_type("order.placed")
    told = jobs.let_go("--do", "erase", *wrong)
    assert told.code == 1
    assert "cannot be done" in told.told
