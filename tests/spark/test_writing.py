"""Spark publishes the rows of DataFrames as events."""

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import Row

import nakadi_spark
from nakadi_client import read
from nakadi_spark import BadWrite, Broker
from nakadi_spark.writing import Target, events_of_rows
from tests.spark.conftest import TWO
from tests.support.api import a_business_definition, create_event_type

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "price": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "customer": {"type": "object", "properties": {"id": {"type": "string"}, "city": {"type": "string"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["n"],
}
COLUMNS = (
    "id AS n",
    "cast(id AS decimal(20,2)) / 4 AS price",
    "timestamp'2026-11-20 10:00:00.5' AS at",
    "named_struct('id', concat('c', id % 3), 'city', cast(null AS string)) AS customer",
    "array('a', 'b') AS tags",
    "'x' AS nakadi_key",
)


@pytest.fixture
def target(orders):
    """`target(…)` creates an event type."""

    def create(**changes):
        definition = a_business_definition(schema=SCHEMA, default_statistic=TWO, partition_strategy="hash")
        definition |= {"partition_key_fields": ["customer.id"], **changes}
        return create_event_type(orders.api, definition)["name"]

    return create


def events(orders, name):
    return [event for batch in read(orders.url, name, start="begin", follow=False) for event in batch.events]


def test_rows_that_were_read_can_be_written(orders, target):
    """The metadata of a read row keeps its `eid`, without the members that the broker writes, such as `received_at`.
    (K7)
    """
    first, second = target(), target()
    nakadi_spark.write(orders.spark.range(0, 5, 1, 1).selectExpr(*COLUMNS), orders.url, first)
    nakadi_spark.write(nakadi_spark.read(orders.spark, orders.url, first), orders.url, second)
    copied = {event["metadata"]["eid"]: event["n"] for event in events(orders, second)}
    assert copied == {event["metadata"]["eid"]: event["n"] for event in events(orders, first)}
    assert sorted(copied.values()) == [*range(5)]


def test_each_row_becomes_an_event(orders, target):
    """Columns become members with JSON values, except nulls and the broker's own columns. Rows of one key stay in their
    order. (K7)
    """
    name = target()
    frame = orders.spark.range(0, 20, 1, 2).selectExpr(*COLUMNS)
    nakadi_spark.write(frame, orders.url, name, key="customer.id")
    found = events(orders, name)
    assert sorted(event["n"] for event in found) == [*range(20)]
    [seventh] = [event for event in found if event["n"] == 7]
    del seventh["metadata"]
    assert seventh == {
        "n": 7,
        "price": 1.75,
        "at": "2026-11-20T10:00:00.500000Z",
        "customer": {"id": "c1"},
        "tags": ["a", "b"],
    }
    for half in (range(10), range(10, 20)):
        for key in range(3):
            of_key = [event["n"] for event in found if event["n"] in half and event["n"] % 3 == key]
            assert of_key == sorted(of_key)


def test_what_is_written_again_is_stored_once(orders, target):
    """If the event type deduplicates, events that are written again with the same run are stored once; without a run,
    they are new events. (K8)
    """
    name = target(deduplication={"window_seconds": 300})
    frame = orders.spark.range(0, 10, 1, 2).selectExpr("id % 5 AS n", "named_struct('id', 'c') AS customer")
    for _ in range(2):
        nakadi_spark.write(frame, Broker(orders.url), name, run="batch 17")
    assert sorted(event["n"] for event in events(orders, name)) == sorted([*range(5)] * 2)
    nakadi_spark.write(frame, Broker(orders.url), name)
    assert len(events(orders, name)) == 20


def test_an_event_that_is_refused_ends_the_job(orders, target):
    """If the broker refuses an event, the error of the task contains the broker's reason. (K7)"""
    name = target()
    frame = orders.spark.range(0, 3, 1, 1).selectExpr("'a text' AS n", "named_struct('id', 'c') AS customer")
    with pytest.raises(Exception, match="expected type: Number, found: String"):
        nakadi_spark.write(frame, orders.url, name)
    with pytest.raises(BadWrite, match=r"There is no event type no\.such"):
        nakadi_spark.write(frame, orders.url, "no.such")


def test_equal_rows_are_different_events():
    """The `eid` of an event is derived from the run, the partition and the row; an `eid` in the column `metadata`
    stays. (K8)
    """
    rows = [Row(n=1, metadata=None), Row(n=1, metadata=None), Row(n=2, metadata=Row(eid="given", flow_id=None))]

    def eids(run, partition):
        target = Target(Broker("http://localhost"), "a", True, (), run)
        return [event["metadata"]["eid"] for event in events_of_rows(target, partition, rows)]

    first = eids("a", 0)
    assert len({*first}) == 3
    assert first[2] == "given"
    assert eids("a", 0) == first
    assert not {*first[:2]} & {*eids("a", 1), *eids("b", 0)}


def test_values_are_those_of_json():
    """Timestamps are in UTC, decimals are numbers with all their digits, and bytes are in Base64. (K7)"""
    target = Target(Broker("http://localhost"), "a", False, (), "")
    moment = datetime(2026, 11, 20, 10, tzinfo=UTC).astimezone().replace(tzinfo=None)
    rows = [Row(at=moment, inner=Row(a=None, b=[Row(c=moment)]))]
    expected = {"at": "2026-11-20T10:00:00Z", "inner": {"b": [{"c": "2026-11-20T10:00:00Z"}]}}
    assert json.loads(json.dumps([*events_of_rows(target, 0, rows)])) == [expected]
