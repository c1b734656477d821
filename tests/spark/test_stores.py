"""Events from the stores of a broker, without the broker."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

import nakadi_spark
from nakadi.engines.archive.tiered_log import TieredLog
from nakadi.model.event_type import Position
from nakadi_spark import BadRead, BadWrite, Stores, stores
from nakadi_spark.data_options import read_source
from nakadi_spark.writing import plan_writing
from nakadi_sql.http_source import LogRange
from tests.support.builders import a_timeline, an_event_type


def rows(frame):
    return [row.asDict(recursive=True) for row in frame.orderBy("n").collect()]


def numbers(frame):
    return sorted(row.n for row in frame.select("n").collect())


def test_stores_have_the_events_of_the_broker(orders):
    """The stores yield the broker's events, with a table and without one: without a table, archived events come from
    the archive. (K12)
    """
    with_table = nakadi_spark.read(orders.spark, Stores.in_folder(orders.folder, tables="nakadi.nakadi"), orders.name)
    alone = nakadi_spark.read(orders.spark, Stores.in_folder(orders.folder), orders.name)
    assert with_table.schema.simpleString() == alone.schema.simpleString()
    assert rows(with_table) == rows(alone)
    assert numbers(alone) == [*range(orders.count)]


def test_several_tasks_read_a_long_partition(orders, monkeypatch):
    """Several tasks read a long partition, each a part of it. (K12)"""
    monkeypatch.setattr(stores, "EVENTS_PER_SHARE", 3)
    frame = nakadi_spark.read(orders.spark, Stores.in_folder(orders.folder), orders.name, columns=["n"])
    assert frame.rdd.getNumPartitions() >= orders.count / 3
    assert numbers(frame) == [*range(orders.count)]


def test_archived_events_are_read_from_the_archive(orders, monkeypatch):
    """Archived events are read from the archive, so reading history does not burden the log. (K12)"""
    with Stores.in_folder(orders.folder).open() as opened:
        found = opened.find(orders.name)
        archived = found.seam[0][1]
        assert archived
        monkeypatch.delattr(TieredLog, "read")
        wanted = LogRange("0", "BEGIN", (1, archived - 1))
        events = [event for piece in opened.read(replace(found, seam={}), wanted) for event in piece]
    assert [event.offset for event in events] == [*range(archived)]


def test_a_time_limits_what_is_read_of_stores(orders):
    """`from_` and `until` select events by the time at which they were stored. (K4, K12)"""
    source = Stores.in_folder(orders.folder)
    frame = nakadi_spark.read(orders.spark, source, orders.name, columns=["n", "nakadi_time"])
    times = sorted(row.nakadi_time.replace(tzinfo=UTC) for row in frame.collect())
    found = nakadi_spark.read(orders.spark, source, orders.name, from_=times[0], until=times[-1], columns=["n"])
    assert found.count() == sum(time < times[-1] for time in times)
    with source.open() as opened:
        event_type = replace(opened.find(orders.name), table="", seam={})
        assert opened.plan(event_type, datetime.now(UTC) + timedelta(days=1)) == []
        assert opened.plan(event_type, None, datetime(2020, 1, 1, tzinfo=UTC)) == []


def test_lost_events_are_not_left_out(orders):
    """If events that existed when the read was planned are missing, the read fails. (K2, K12)"""
    with Stores.in_folder(orders.folder).open() as opened:
        found = opened.find(orders.name)
        with pytest.raises(BadRead, match="ends before offset"):
            [*opened.read(found, LogRange("0", "BEGIN", (1, 10**6)))]
        with pytest.raises(BadRead, match="are gone"):
            [*opened.read(found, LogRange("0", "001-0001-000000000000500000", (1, 10**6)))]


def test_what_the_table_lacks_begins_in_each_timeline_where_the_table_ends():
    """In each timeline, the log is read from where the table ends, or whole if the table does not have it. (K1, K12)"""
    event_type = an_event_type(
        timelines=(
            a_timeline(order=1, topic="a", partitions=1, latest_positions={0: 9}),
            a_timeline(order=2, topic="b", partitions=1, latest_positions={0: 4}),
            a_timeline(order=3, topic="c", partitions=1),
        )
    )

    def ranges(seam):
        pieces = stores.pieces_between(event_type, 0, Position(1, -1), Position(3, 7))
        return [(each.timeline.order, each.first, each.end) for each in stores.behind_table(seam, 0, pieces)]

    assert ranges({}) == [(1, 0, 10), (2, 0, 5), (3, 0, 8)]
    assert ranges({0: {2: 3, 3: 0}}) == [(2, 3, 5), (3, 0, 8)]
    assert ranges({0: {3: 2}}) == [(3, 2, 8)]
    assert ranges({0: {3: 8}}) == []


def test_options_name_stores():
    """The options of `format("nakadi")` may name stores, which publish nothing. (K9, K12)"""
    assert read_source({"data": "/data"}) == Stores.in_folder("/data")
    places = {"registry": "dynamodb://a", "event_log": "kinesis://a", "archive": "s3://a"}
    assert read_source({**places, "path": ""}) == Stores(**places)
    with pytest.raises(BadRead, match="The option url is missing; or data, or registry and event_log"):
        read_source({"registry": "dynamodb://a"})
    with pytest.raises(BadWrite, match="Only a broker publishes events"):
        plan_writing(Stores.in_folder("/data"), "order.placed", (), "run")
