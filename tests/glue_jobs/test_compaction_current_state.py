"""Tables of the current state, in which a change costs only its own rows and older events bring nothing back, and
the state of a table at the end of a day.
"""

import re
from datetime import UTC, datetime, time, timedelta

import pytest

from nakadi.model.annotations import RETENTION_ANNOTATION
from nakadi.model.event_type import Category, CleanupPolicy
from nakadi_jobs import compaction
from nakadi_jobs.event_type_tables import events_table
from tests.support.jobs import STORED_AT, order
from tests.support.table_readers import assert_read_alike

COMPACTED = {
    "schema": {"properties": {"name": {"type": "string"}}},
    "category": Category.BUSINESS,
    "cleanup_policy": CleanupPolicy.COMPACT,
}
LATEST_SUFFIX = "customer_changed__latest"


def events_with_names(*names):
    return [None if name is None else {"metadata": {"eid": "e"}, "name": name} for name in names]


@pytest.mark.long
def test_an_older_event_that_comes_later_brings_nothing_back(jobs, data):
    """If an older event of a key fills a gap or comes from another partition, a key whose newest event is a deletion
    stays deleted; a key that had no newer event appears.
    """
    customers = data.event_type("customer.changed", partitions=2, **COMPACTED)
    damaged = data.archive_events(customers, events_with_names("A", "B", "C"), keys=["a", "b", "c"])
    whole = data.path(damaged).read_bytes()
    data.path(damaged).write_bytes(b"x" * damaged.location.length)
    later = STORED_AT + timedelta(hours=1)
    data.archive_events(customers, events_with_names(None, "B 2", None), keys=["a", "b", "d"], at=later)
    assert jobs.compact().code == 3
    assert jobs.rows(LATEST_SUFFIX, "nakadi_key", "name") == [("b", "B 2")]

    data.path(damaged).write_bytes(whole)
    data.archive_events(customers, events_with_names("D", "E"), partition=1, keys=["d", "e"])
    assert jobs.compact("--read-damaged").code == 0

    assert jobs.rows(LATEST_SUFFIX, "nakadi_key", "name") == [("c", "C"), ("b", "B 2"), ("e", "E")]


@pytest.mark.long
def test_what_is_too_old_brings_nothing_back(jobs, data):
    """If the deletion of a key has expired, an event that later fills a gap before the deletion does not come back;
    later events of a partition come at any age, and existing ones stay."""
    customers = data.event_type("customer.changed", annotations={RETENTION_ANNOTATION: "7 days"}, **COMPACTED)
    at = datetime.now(UTC) - timedelta(days=20)
    damaged = data.archive_events(customers, events_with_names("A", "B"), keys=["a", "b"], at=at)
    whole = data.path(damaged).read_bytes()
    data.path(damaged).write_bytes(b"x" * damaged.location.length)
    data.archive_events(customers, events_with_names(None, "C"), keys=["a", "c"], at=at + timedelta(days=1))
    assert jobs.compact().code == 3
    assert jobs.drop_before().code == 0
    assert jobs.rows("customer_changed") == []

    data.path(damaged).write_bytes(whole)
    data.archive_events(customers, events_with_names("D"), keys=["d"], at=at + timedelta(days=2))
    assert jobs.compact("--read-damaged").code == 0

    assert jobs.rows("customer_changed", "name") == [("A",), ("B",), ("D",)]
    assert jobs.rows(LATEST_SUFFIX, "nakadi_key", "name") == [("c", "C"), ("d", "D")]


@pytest.mark.long
def test_a_change_writes_what_it_changes(jobs, data, tables, monkeypatch):
    """A changed key rewrites no file; merging files makes them small again. Other engines see the same as Spark."""
    monkeypatch.setattr("nakadi_jobs.tables.SMALL_FILES", 2)
    customers = data.event_type("customer.changed", **COMPACTED)
    numbers = range(300)
    data.archive_events(customers, events_with_names(*map(str, numbers)), keys=[f"k{number}" for number in numbers])
    jobs.compact()
    data.archive_events(customers, events_with_names("new", None), keys=["k7", "k8"], at=STORED_AT + timedelta(hours=1))
    assert re.search(rf"^{LATEST_SUFFIX} +299 ", jobs.compact().shown, re.MULTILINE)

    snapshots = jobs.spark().table(f"nakadi.{jobs.database}.{LATEST_SUFFIX}.snapshots").orderBy("committed_at")
    summary = snapshots.collect()[-1]["summary"]
    assert "deleted-data-files" not in summary
    assert int(summary["added-records"]) == 1
    assert int(summary["added-files-size"]) < int(summary["total-files-size"]) / 4
    expected = [*sorted(str(number) for number in numbers if number not in (7, 8)), "new"]
    assert sorted(name for (name,) in jobs.rows(LATEST_SUFFIX, "name")) == expected
    deletes = jobs.spark().table(f"nakadi.{jobs.database}.{LATEST_SUFFIX}.delete_files")
    assert deletes.count() == 2, "rows that were replaced are marked beside the files that have them"
    assert_read_alike(jobs.table(LATEST_SUFFIX), tables / jobs.database / LATEST_SUFFIX)

    jobs.run(compaction.main, "--keep-snapshots-days", "0")
    kept = jobs.spark().table(f"nakadi.{jobs.database}.{LATEST_SUFFIX}.files").select("content", "partition").collect()
    buckets = [bucket for content, bucket in kept if content == 0]
    # The bucket of the deleted key is still one file, which has a deleted row.
    assert (len(buckets), len(set(buckets)), len(kept)) == (16, 16, 17)
    assert sorted(name for (name,) in jobs.rows(LATEST_SUFFIX, "name")) == expected


@pytest.mark.long
def test_the_state_of_a_day_has_a_name(jobs, data):
    """Queries name the last state of a day for the configured number of days, and its files stay."""
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(1), order(2)])
    jobs.compact()
    table = events_table(jobs.spark(), jobs.database, orders)
    [[last]] = jobs.spark().sql(f"SELECT date(max(made_current_at)) FROM {table.path}.history").collect()
    day, name = datetime.combine(last, time(1), UTC), f"day-{last}"

    def tidied_after(days, keep_days=30):
        limits = {"keep_snapshots": timedelta(), "orphans_after": timedelta(days=1000)}
        table.tidy(day + timedelta(days=days), keep_days=keep_days, **limits)
        tags = jobs.spark().table(f"{table.path}.refs").where("type = 'TAG'").collect()
        return {row["name"]: row["snapshot_id"] for row in tags}

    assert name not in tidied_after(0)
    named = tidied_after(1)[name]
    data.archive_events(orders, [order(3)])
    jobs.compact()
    assert tidied_after(30)[name] == named
    then = jobs.spark().sql(f"SELECT * FROM {table.path} VERSION AS OF '{name}'")
    assert (then.count(), table.rows().count()) == (2, 3)
    assert name not in tidied_after(31)
    assert tidied_after(2, keep_days=0) == {}


@pytest.mark.long
def test_snapshots_go_and_files_are_merged_by_whole_days(jobs, data, monkeypatch):
    """A snapshot stays to the end of the last day that is kept, whenever a job tidies; a merged file has one day."""
    monkeypatch.setattr("nakadi_jobs.tables.SMALL_FILES", 2)
    orders = data.event_type("order.placed")
    for number in range(4):
        data.archive_events(orders, [order(number)], at=STORED_AT + timedelta(hours=8 * number))
        jobs.compact()
    table = events_table(jobs.spark(), jobs.database, orders)
    [[last]] = jobs.spark().sql(f"SELECT date(max(made_current_at)) FROM {table.path}.history").collect()
    midnight = datetime.combine(last, time(), UTC)

    def snapshots_after(since_midnight):
        limits = {"keep_snapshots": timedelta(days=1), "orphans_after": timedelta(days=1000)}
        table.tidy(midnight + since_midnight, keep_days=0, **limits)
        return jobs.snapshots("order_placed")

    there = jobs.snapshots("order_placed")
    # Merging files adds one snapshot.
    assert snapshots_after(timedelta(days=2, microseconds=-1)) == there + 1
    assert snapshots_after(timedelta(days=2)) == 1
    files = jobs.spark().table(f"{table.path}.files").select("partition.nakadi_time_day", "record_count").collect()
    days = [(STORED_AT + timedelta(hours=8 * number)).date() for number in range(4)]
    assert sorted((row[0], row[1]) for row in files) == [(day, days.count(day)) for day in sorted({*days})]
