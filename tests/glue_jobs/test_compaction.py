"""Tables have every event of the archive exactly once, with all its content."""

import gzip
import json
from datetime import timedelta

import pytest

from nakadi.engines.archive.stores import FolderStore
from nakadi.model.annotations import MATERIALIZE_ANNOTATION
from nakadi.model.event_type import Category, CleanupPolicy, PartitionStrategy
from nakadi_jobs import compaction, gathering, in_tasks
from nakadi_jobs.archive_ranges import NO_PROGRESS, unread_parts
from nakadi_jobs.event_type_tables import columns_of_all_versions, events_table
from nakadi_jobs.tables import ChangedMeanwhile
from tests.support.jobs import ORDERS, STORED_AT, order
from tests.support.table_readers import assert_read_alike


def test_events_become_rows(jobs, data):
    """Each event becomes a row, with its position and its properties as columns; a second run adds only new events."""
    orders = data.event_type("order.placed", partitions=2)
    data.archive_events(orders, [order(number) for number in range(5)])
    data.archive_events(orders, [order(9)], partition=1, at=STORED_AT + timedelta(microseconds=123456))

    first = jobs.compact()

    assert (first.code, "6 events into order_placed" in first.told) == (0, True)
    assert jobs.rows("order_placed") == [*((0, offset) for offset in range(5)), (1, 0)]
    wanted = ("order_number", "total", "customer.id", "items[0].sku", "nakadi_event", "string(nakadi_time)")
    stored_at = "2026-11-20 10:00:00.123456"
    assert jobs.rows("order_placed", *wanted)[-1] == ("o-9", 2.25, "c-2", "s-9", None, stored_at)

    data.archive_events(orders, [order(5)])
    second = jobs.compact()

    assert "1 events into order_placed" in second.told
    assert jobs.rows("order_placed") == [*((0, offset) for offset in range(6)), (1, 0)]
    assert "nothing new" in jobs.compact().told


@pytest.mark.long
def test_a_commit_is_at_most_one_job_of_spark_which_copies_lines_twice(jobs, data):
    """In at most one job for a commit, Spark parses lines into structures, checks these, and turns them into rows.
    Plain lines need no job.
    """
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(number) for number in range(5)])
    parts = list(unread_parts(data.index, orders, NO_PROGRESS))
    archive = gathering.Archive(jobs.spark(), data.store, data.archive, data.store, data.archive)
    columns = columns_of_all_versions(data.event_types, orders)

    with archive.gather(parts) as gathered:
        rows = compaction.make_rows(gathered.read_parts(parts), columns)
        plan = rows._jdf.queryExecution().executedPlan().toString()
        assert rows.count() == 5

    assert plan.count("Project [") == 3
    assert jobs.spark_jobs(jobs.compact) == 0
    data.archive_events(orders, [order(1), order(2, total=1e30)])
    assert jobs.spark_jobs(jobs.compact) == 1


@pytest.mark.long("tests/glue_jobs/test_compaction.py::test_events_become_rows")
def test_nothing_that_was_said_is_dropped(jobs, data):
    """Values that no column holds, such as other names, other types and nulls, are in the text of the event."""
    events = [
        order(1),
        order(2, more={"a": 1}),
        order(3, customer={"id": "c", "vip": True}),
        order(4, customer=None),
        order(5, items=[{"sku": "s", "colour": "red"}]),
        order(6, total="dear"),
        order(7, order_number='looks like "name": a name'),
    ]
    orders = data.event_type("order.placed", schema=ORDERS)
    data.archive_events(orders, events)

    told = jobs.compact()

    texts = [text for (text,) in jobs.rows("order_placed", "nakadi_event")]
    assert [text is not None for text in texts] == [False, True, True, True, True, True, True]
    assert [json.loads(text) for text in texts if text] == [events[number] for number in (1, 2, 3, 4, 5, 6)]
    assert jobs.rows("order_placed", "order_number")[6] == (events[6]["order_number"],)
    assert told.code == 0
    assert "Warning: order.placed: 1 events do not fit the columns" in told.told


def test_the_schema_grows(jobs, data):
    """A new optional field appears as a column; a type that changed is in the text."""
    orders = data.event_type("order.placed", schema={"properties": {"a": {"type": "string"}}})
    data.archive_events(orders, [{"a": "x"}])
    jobs.compact()

    more = {"properties": {"a": {"type": "integer"}, "b": {"properties": {"c": {"type": "integer"}}}}}
    orders = data.new_schema("order.placed", more)
    data.archive_events(orders, [{"a": 1, "b": {"c": 2}}, {"b": {"c": 3}}])
    jobs.compact()

    wanted = ("a", "b.c", "nakadi_event")
    assert jobs.rows("order_placed", *wanted) == [("x", None, None), ("1", 2, '{"a":1,"b":{"c":2}}'), (None, 3, None)]


@pytest.mark.long("tests/glue_jobs/test_exact_values.py::test_types_that_change_below_the_top")
def test_a_property_with_another_type_has_another_column(jobs, data, tables):
    """Integers that become numbers, and then texts, are in columns of their types, and no value is a misfit; other
    engines see the same in old files as Spark."""
    orders = data.event_type("order.placed", schema={"properties": {"a": {"type": "integer"}}})
    data.archive_events(orders, [{"a": 1}])
    jobs.compact()
    orders = data.new_schema("order.placed", {"properties": {"a": {"type": "number"}}})
    data.archive_events(orders, [{"a": 1.5}, {"a": 2}])
    jobs.compact()
    orders = data.new_schema("order.placed", {"properties": {"a": {"type": "string"}}})
    data.archive_events(orders, [{"a": "1d"}, {"a": "x"}, {}])

    told = jobs.compact()

    assert (told.code, "Warning" in told.told) == (0, False)
    assert jobs.rows("order_placed", "a", "a__double", "a__string", "nakadi_event") == [
        (1, None, None, None),
        (None, 1.5, None, '{"a":1.5}'),
        (2, 2.0, None, '{"a":2}'),
        (None, None, "1d", '{"a":"1d"}'),
        (None, None, "x", '{"a":"x"}'),
        (None, None, None, None),
    ]
    assert len(assert_read_alike(jobs.table("order_placed"), tables / jobs.database / "order_placed")) == 6


def test_compacted_event_types_have_a_second_table(jobs, data):
    """The second table of a compacted event type has the newest event of each key; a tombstone removes its key until
    the next event with this key.
    """
    customers = data.event_type(
        "customer.changed",
        schema={"properties": {"name": {"type": "string"}}},
        category=Category.BUSINESS,
        cleanup_policy=CleanupPolicy.COMPACT,
    )
    named = [{"metadata": {"eid": "e"}, "name": name} for name in ("Ann", "Bob", "Cid", "Ann 2")]
    data.archive_events(customers, named, keys=["a", "b", "c", "a"])
    jobs.compact()
    assert jobs.rows("customer_changed__latest", "nakadi_key", "name") == [("b", "Bob"), ("c", "Cid"), ("a", "Ann 2")]

    later = STORED_AT + timedelta(hours=1)
    data.archive_events(customers, [None, {"metadata": {"eid": "e"}, "name": "Bob 2"}], keys=["a", "b"], at=later)
    jobs.compact()

    assert jobs.rows("customer_changed__latest", "nakadi_key", "name") == [("c", "Cid"), ("b", "Bob 2")]
    assert jobs.rows("customer_changed", "nakadi_tombstone")[4] == (True,)


@pytest.mark.long("tests/glue_jobs/test_compaction.py::test_compacted_event_types_have_a_second_table")
def test_data_changes_have_a_current_state(jobs, data):
    """The second table of data changes has the current state; the first table has all changes, including deletions."""
    things = data.event_type(
        "thing.changed",
        schema={"properties": {"name": {"type": "string"}}},
        category=Category.DATA,
        partition_strategy=PartitionStrategy.HASH,
        partition_key_fields=("id",),
    )
    changes = [("C", "a", "A"), ("S", "b", "B"), ("U", "a", "A 2"), ("D", "b", "B"), ("C", "c", "C")]
    publish(data, things, changes)
    jobs.compact()
    assert jobs.rows("thing_changed__latest", "nakadi_key", "data.name") == [("a", "A 2"), ("c", "C")]

    publish(data, things, [("C", "b", "B 2"), ("D", "a", "A 2"), ("D", "x", "X")], at=STORED_AT + timedelta(hours=1))
    jobs.compact()

    assert jobs.rows("thing_changed__latest", "nakadi_key", "data.name") == [("c", "C"), ("b", "B 2")]
    assert "".join(operation for (operation,) in jobs.rows("thing_changed", "data_op")) == "CSUDCCDD"
    assert "nothing new" in jobs.compact().told


def publish(data, things, changes, **more):
    events = [
        {"metadata": {"eid": "e"}, "data_type": "thing", "data_op": operation, "data": {"name": name}}
        for operation, _, name in changes
    ]
    data.archive_events(things, events, keys=[key for _, key, _ in changes], **more)


def test_what_the_index_does_not_name_is_no_event(jobs, data):
    """The job does not read orphans of a crash, members that are not indexed, or foreign files."""
    orders = data.event_type("order.placed")
    pages = data.event_type("page.viewed", schema={})
    kept = data.archive_events(orders, [order(1)], other_topics=[pages])
    (data.path(kept).parent / "orphan.json.gz").write_bytes(data.path(kept).read_bytes())
    (data.folder / "archive" / "foreign.txt").write_text("not an event")

    told = jobs.compact()

    assert told.code == 0
    assert jobs.rows("order_placed") == [(0, 0)]
    assert jobs.rows("page_viewed") == []


@pytest.mark.long("tests/glue_jobs/test_gathering.py::test_a_shared_object_is_read_once_for_all_event_types")
def test_objects_with_many_event_types_are_read_once(jobs, data, monkeypatch):
    """An object is read once for all event types in it, their tables have each event once, and damage is reported."""
    event_types = [data.event_type(f"type.{name}", schema={}) for name in "abc"]
    for _ in range(3):
        together = data.archive_together([(each, [order(1), order(2)]) for each in event_types])
    alone = data.archive_events(event_types[0], [order(9)])
    whole = data.path(together[2]).read_bytes()
    data.path(together[2]).write_bytes(whole[:-3])
    reads = []
    get = FolderStore.read_range
    monkeypatch.setattr(FolderStore, "read_range", lambda store, place: reads.append(place.key) or get(store, place))

    told = jobs.compact()

    assert told.code == 3
    assert "type.c: partition 0 of timeline 1, offsets 4-5 are missing" in told.told
    assert sorted(reads) == sorted(set(reads))
    assert alone.location.key in reads
    assert [len(jobs.rows(f"type_{name}")) for name in "abc"] == [7, 6, 4]
    assert "If the archive was repaired, or was the wrong one, --read-damaged reads them" in jobs.compact().told

    data.path(together[2]).write_bytes(whole)
    for event_type in event_types[:2]:
        data.archive_events(event_type, [order(10)])
    assert jobs.compact("--read-damaged").code == 0
    assert [len(jobs.rows(f"type_{name}")) for name in "abc"] == [8, 7, 6]
    assert jobs.spark_jobs(jobs.compact) == 0


@pytest.mark.long
def test_many_objects_are_copied_by_tasks_of_spark(jobs, data, tables, monkeypatch):
    """Spark's tasks, not the driver, read the objects. Each event is in its table once, damage is reported, and the
    copies are removed.
    """
    monkeypatch.setattr(in_tasks, "MIN_TASK_WORK", (2, 2**40))
    event_types = [data.event_type(f"type.{name}", schema={}) for name in "abc"]
    for number in range(5):
        together = data.archive_together([(each, [order(number), order(number)]) for each in event_types])
    path = data.path(together[2])
    path.write_bytes(path.read_bytes()[:-3])

    def get(_, place):
        raise AssertionError(f"the driver reads {place.key}")

    monkeypatch.setattr(FolderStore, "read_range", get)

    told = jobs.compact()

    assert told.code == 3
    assert "type.c: partition 0 of timeline 1, offsets 8-9 are missing" in told.told
    for name, offsets in (("a", 10), ("b", 10), ("c", 8)):
        rows = jobs.rows(f"type_{name}", "nakadi_offset", "get_json_object(nakadi_event, '$.order_number')")
        assert rows == [(offset, f"o-{offset // 2}") for offset in range(offsets)]
    topics = {each.timeline.topic for each in event_types}
    assert not topics & {each.parent.name for each in tables.rglob("*.json.gz")}


def test_bad_input_is_reported_and_the_rest_done(jobs, data):
    """The job reports damaged and lost objects once, with their offsets, and reads them again on request."""
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(1)])
    cut, foreign, lost = (data.archive_events(orders, [order(number), order(number)]) for number in (2, 3, 4))
    data.archive_events(orders, [order(5)])
    whole = data.path(cut).read_bytes()
    data.path(cut).write_bytes(whole[:-10])
    data.path(foreign).write_bytes(b"x" * foreign.location.length)
    data.path(lost).unlink()

    told = jobs.compact()

    assert told.code == 3
    assert jobs.rows("order_placed") == [(0, 0), (0, 7)]
    for offsets, problem in (("1-2", "cut off"), ("3-4", "damaged"), ("5-6", "not there")):
        assert any(f"offsets {offsets} are missing" in line and problem in line for line in told.told.splitlines())

    data.path(cut).write_bytes(whole)
    again = jobs.compact()
    assert (again.code, "Warning: order.placed: 6 events are missing" in again.told) == (0, True)
    assert jobs.rows("order_placed") == [(0, 0), (0, 7)]

    assert jobs.compact("--read-damaged").code == 3
    assert jobs.rows("order_placed") == [(0, 0), (0, 1), (0, 2), (0, 7)]


def test_the_wrong_archive_stops_the_job(jobs, data, tmp_path, monkeypatch):
    """An archive without a single object of the index is the wrong one: the job says so, and skips no event. A job
    takes the archive that `NAKADI_ARCHIVE` names, as the broker does.
    """
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(1), order(2)])
    place = jobs.places.index("--archive")
    del jobs.places[place : place + 2]
    elsewhere = tmp_path / "mounted"
    (data.folder / "archive").rename(elsewhere)

    told = jobs.compact()

    assert told.code == 1
    assert f"The archive file://{data.folder / 'archive'} has none of the objects" in told.told
    assert "--archive or NAKADI_ARCHIVE" in told.told
    monkeypatch.setenv("NAKADI_ARCHIVE", str(elsewhere))
    assert jobs.compact().code == 0
    assert jobs.rows("order_placed") == [(0, 0), (0, 1)]


def test_the_registry_of_the_broker_is_found(jobs, data, tmp_path, monkeypatch):
    """A job takes the registry that `NAKADI_REGISTRY` names, as the broker does."""
    data.archive_events(data.event_type("order.placed"), [order(1)])
    if "--registry" in jobs.places:
        place = jobs.places.index("--registry")
        del jobs.places[place : place + 2]
    monkeypatch.setenv("NAKADI_REGISTRY", f"sqlite:///{tmp_path}/another.db")
    assert "order.placed" not in jobs.compact().told
    monkeypatch.setenv("NAKADI_REGISTRY", f"sqlite:///{data.folder}/nakadi.db")
    assert jobs.compact().code == 0
    assert jobs.rows("order_placed") == [(0, 0)]


def test_an_archive_that_goes_during_a_run_stops_the_job(jobs, data, tmp_path, monkeypatch):
    """If the file system of the archive disappears, the events do not count as missing: the next run adds them."""
    data.archive_events(data.event_type("order.placed"), [order(1), order(2)])
    archive, unmounted = data.folder / "archive", tmp_path / "unmounted"
    get = FolderStore.read_range

    def unmount_and_read(store, place):
        if archive.exists():
            archive.rename(unmounted)
        return get(store, place)

    monkeypatch.setattr(FolderStore, "read_range", unmount_and_read)
    told = jobs.compact()

    assert told.code == 1
    assert "has none of the objects" in told.told
    monkeypatch.setattr(FolderStore, "read_range", get)
    unmounted.rename(archive)
    assert jobs.compact().code == 0
    assert jobs.rows("order_placed") == [(0, 0), (0, 1)]


def test_a_line_that_is_no_event_is_kept_and_reported(jobs, data):
    """A line that cannot be parsed is in the table unchanged, at its place."""
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(1), b"{broken", order(3)])

    told = jobs.compact()

    assert told.code == 0
    assert "1 events do not fit the columns" in told.told
    rows = jobs.rows("order_placed", "nakadi_offset", "nakadi_time is not null", "nakadi_event = '{broken'")
    assert rows == [(0, True, None), (1, True, True), (2, True, None)]


@pytest.mark.long
def test_an_object_with_too_few_events_is_noticed(jobs, data):
    """An object with fewer events than expected counts as damaged."""
    orders = data.event_type("order.placed")
    archived = data.archive_events(orders, [order(1), order(2), order(3)])
    lines = gzip.decompress(data.path(archived).read_bytes()).splitlines(keepends=True)
    data.path(archived).write_bytes(a_member(lines[::2], archived.location.length))

    told = jobs.compact()

    assert told.code == 3
    assert "3 events should be there, 2 are" in told.told


def a_member(lines, length):
    """A gzip member of this length, which its file name pads."""
    packed = gzip.compress(b"".join(lines), mtime=0)
    name = b"x" * (length - len(packed) - 1) + b"\0"
    return packed[:3] + b"\x08" + packed[4:10] + name + packed[10:]


def test_an_event_type_deleted_meanwhile(jobs, data, monkeypatch):
    """The job reports an event type that is deleted while its events are read, and processes the others."""
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(1)])
    pages = data.event_type("page.viewed", schema={})
    data.archive_events(pages, [{"url": "/"}])
    listed = list(data.event_types.all())
    data.delete("order.placed")
    monkeypatch.setattr("nakadi_jobs.command.JobContext.selected_event_types", lambda _: iter(listed))

    told = jobs.compact()

    assert jobs.rows("page_viewed") == [(0, 0)]
    assert told.code in (0, 3)


def test_two_runs_at_once_double_nothing(jobs, data):
    """If two changes of a table begin at the same snapshot, only one takes effect, and the other one has to begin
    again.
    """
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(1)])
    jobs.compact()
    table = events_table(jobs.spark(), jobs.database, orders)
    same = table.rows().limit(0)

    with table.change() as first, table.change() as second:
        first.append(same, '{"next":{"x/0":1},"gaps":{}}')
        second.append(same, '{"next":{"x/0":2},"gaps":{}}')
        second.publish()
        with pytest.raises(ChangedMeanwhile):
            first.publish()

    assert table.progress() == '{"next":{"x/0":2},"gaps":{}}'


@pytest.mark.long
def test_tidying(jobs, data, monkeypatch):
    """Small files become large ones, and an interrupted run leaves nothing behind."""
    monkeypatch.setattr("nakadi_jobs.tables.SMALL_FILES", 3)
    orders = data.event_type("order.placed")
    for number in range(3):
        data.archive_events(orders, [order(number)])
        if number < 2:
            jobs.compact()
    table = events_table(jobs.spark(), jobs.database, orders)

    told = jobs.run(compaction.main, "--keep-snapshots-days", "0")

    assert "files made larger" in told.told
    assert jobs.rows("order_placed") == [(0, offset) for offset in range(3)]
    assert jobs.snapshots("order_placed") == 1
    assert table.progress()
    assert "nothing new" in jobs.compact().told


def test_no_table_for_who_wants_none(jobs, data):
    """An event type whose annotation says that it is not kept in a data lake has no table."""
    data.event_type("order.placed", annotations={MATERIALIZE_ANNOTATION: "off"})
    assert "no table" in jobs.compact().told
