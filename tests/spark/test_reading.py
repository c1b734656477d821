"""DataFrames of events: from tables, and from the log if only the log has them."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest
from msgspec.structs import replace

import nakadi_spark
from nakadi_client import Refused
from nakadi_spark import BadRead, Broker
from nakadi_spark.tables import open_table
from nakadi_sql import HttpSource
from nakadi_sql.http_source import LogRange
from tests.spark.conftest import TWO
from tests.support.api import a_business_definition, a_definition, create_event_type
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker
from tests.support.tokens import Issuer


def rows(frame):
    return [row.asDict(recursive=True) for row in frame.orderBy("n").collect()]


def numbers(frame):
    return sorted(row.n for row in frame.select("n").collect())


def test_each_event_is_there_once(orders):
    """Each event of the table and of the log is there once, with the same columns and values as from the log alone,
    except for the microseconds of `nakadi_time`. (K1, K3)
    """
    frame = nakadi_spark.read(orders.spark, orders.broker, orders.name)
    alone = nakadi_spark.read(orders.spark, orders.url, orders.name)
    assert frame.schema.simpleString() == alone.schema.simpleString()
    both, log = rows(frame), rows(alone)
    for row in (*both, *log):
        row["nakadi_time"] = row["nakadi_time"].replace(microsecond=0)
    assert [row["n"] for row in both] == [*range(orders.count)]
    assert both == log
    assert both[2]["nakadi_event"].startswith('{"n":2,')


def test_a_table_of_jobs_says_that_streams_deliver_all_rows(orders):
    """The table's files have bounds of `nakadi_tombstone`, so Spark does not look at this column. (K1)"""
    rows = open_table(orders.spark, "nakadi.nakadi.order_placed", {}).rows
    assert "nakadi_tombstone" not in rows._jdf.queryExecution().optimizedPlan().toString().partition("Relation")[0]


def test_only_the_table_is_read_if_the_log_has_no_more(orders):
    """Spark reads the table alone if the log has no later events of the wanted time, because rows from two sources take
    longer. (K1)
    """
    for until, is_combined in ((datetime(2020, 1, 1, tzinfo=UTC), False), (None, True)):
        frame = nakadi_spark.read(orders.spark, orders.broker, orders.name, until=until)
        assert ("Union" in frame._jdf.queryExecution().optimizedPlan().toString()) == is_combined


def test_each_event_is_there_once_wherever_the_table_ends(orders, monkeypatch):
    """Each event is read once, even if a table has more events than the broker says, because another job has just added
    them. (K1)
    """
    find = HttpSource.find

    def find_shifted_seam(self, name):
        found = find(self, name)
        return replace(
            found,
            seam={
                partition: {timeline: max(0, end - 3) for timeline, end in known.items()}
                for partition, known in found.seam.items()
            },
        )

    monkeypatch.setattr(HttpSource, "find", find_shifted_seam)
    assert numbers(nakadi_spark.read(orders.spark, orders.broker, orders.name)) == [*range(orders.count)]


def test_an_event_is_read_as_soon_as_it_is_published(orders):
    """In each action, a DataFrame has the events that existed when it was created; a later DataFrame also has later
    events. (K1, K2)
    """
    frame = nakadi_spark.read(orders.spark, orders.broker, orders.name, columns=["n"])
    before = numbers(frame)
    orders.publish(3)
    assert numbers(frame) == before
    later = numbers(nakadi_spark.read(orders.spark, orders.broker, orders.name, columns=["n"]))
    assert later == [*range(orders.count)]
    assert len(later) == len(before) + 3


def test_only_wanted_columns_are_read(orders):
    """`columns` chooses columns, and their order. (K3)"""
    frame = nakadi_spark.read(orders.spark, orders.broker, orders.name, columns=["customer", "n", "nakadi_publisher"])
    assert frame.columns == ["customer", "n", "nakadi_publisher"]
    assert {row.nakadi_publisher for row in frame.collect()} == {"unauthenticated"}
    with pytest.raises(BadRead, match=r"order\.placed has no column price2; it has nakadi_timeline, "):
        nakadi_spark.read(orders.spark, orders.broker, orders.name, columns=["price2"])


def test_only_events_of_a_time_are_read(orders):
    """`from_` and `until` select events by `nakadi_time`, in the table and in the log. (K4)"""
    frame = nakadi_spark.read(orders.spark, orders.broker, orders.name, columns=["n", "nakadi_time"])
    times = sorted(row.nakadi_time.replace(tzinfo=UTC) for row in frame.collect())
    for source in (orders.broker, orders.url):
        found = nakadi_spark.read(
            orders.spark, source, orders.name, from_=times[3], until=times[-1], columns=["nakadi_time"]
        )
        moments = [row.nakadi_time.replace(tzinfo=UTC) for row in found.collect()]
        assert moments
        assert all(times[3] <= moment < times[-1] for moment in moments)
    late = datetime.now(UTC) + timedelta(days=1)
    assert numbers(nakadi_spark.read(orders.spark, orders.broker, orders.name, from_=late)) == []
    assert numbers(nakadi_spark.read(orders.spark, orders.broker, orders.name, until=times[0])) == []


def test_a_time_limits_what_is_read_of_the_log(orders):
    """Reading of the log begins at the start of the time span, and does not go to the log's end if the span ended long
    before. (K4)
    """
    with Broker(orders.url).open() as source:
        found = replace(source.find(orders.name), table="", seam={})
        tomorrow, long_ago = datetime.now(UTC) + timedelta(days=1), datetime(2020, 1, 1, tzinfo=UTC)
        assert source.plan(found, tomorrow) == []
        assert source.plan(found, None, long_ago) == []
        assert len(source.plan(found, long_ago, tomorrow)) == 2


def test_a_range_begins_at_a_place(orders):
    """A read begins where its plan says. If the log no longer has that offset, the read fails instead of beginning at
    the oldest remaining event. (K2)
    """
    with Broker(orders.url).open() as source:
        found = replace(source.find(orders.name), table="", seam={})
        ranges = source.pin(found, source.plan(found))
        assert {each.after for each in ranges} == {"001-0001--1"}
        events = [event for each in ranges for piece in source.read(found, each) for event in piece]
        assert len(events) == orders.count
        with pytest.raises(Refused, match="offset"):
            [*source.read(found, LogRange("0", "001-0000-000000000000000007", (1, 9)))]


def test_several_event_types_are_read_together(orders):
    """A pattern or a list names several event types; a column has the name of each event's type, and a column that a
    type lacks is null. (K5)
    """
    schema = {"properties": {"n": {"type": "integer"}, "carrier": {"type": "string"}}}
    definition = a_business_definition(name="order.shipped", schema=schema, default_statistic=TWO)
    create_event_type(orders.api, definition)
    metadata = {"eid": "00000000-0000-4000-8000-00000000ffff", "occurred_at": "2026-11-20T10:00:00Z"}
    shipped = [{"n": 1, "carrier": "ship", "metadata": metadata}]
    assert orders.api.post("/event-types/order.shipped/events", json=shipped).status_code == 200
    for names in ("order.*", ["order.placed", "order.shipped"]):
        frame = nakadi_spark.read(orders.spark, orders.broker, names, columns=["carrier", "n"])
        assert frame.columns == ["nakadi_event_type", "carrier", "n"]
        found = {
            (row.nakadi_event_type, row.carrier): row["count"]
            for row in frame.groupBy("nakadi_event_type", "carrier").count().collect()
        }
        assert found == {("order.placed", None): orders.count, ("order.shipped", "ship"): 1}
    with pytest.raises(BadRead, match=r"There is no event type order\.x"):
        nakadi_spark.read(orders.spark, orders.broker, ["order.placed", "order.x*"])
    with pytest.raises(BadRead, match=r"None of order\.placed, order\.shipped has a column carriers"):
        nakadi_spark.read(orders.spark, orders.broker, "order.*", columns=["carriers"])


def test_a_property_of_several_types_has_a_column_for_each(orders, tmp_path):
    """If a later schema gives a property another type, each column has the values that fit, whether they are read
    from the log, in batches, or from a table and the log. (K1, K3, K11)
    """

    def define(kind):
        schema = {"properties": {"n": {"type": "integer"}, "a": {"type": kind}}}
        return a_business_definition(name="of.both", schema=schema, default_statistic=TWO, compatibility_mode="none")

    def publish(*values):
        metadata = {"occurred_at": "2026-11-20T10:00:00Z"}
        events = [{"n": n, "a": a, "metadata": metadata | {"eid": str(uuid4())}} for n, a in values]
        assert orders.api.post(f"/event-types/{name}/events", json=events).status_code == 200

    def found(frame):
        return sorted((row.n, row.a, row.a__string) for row in frame.collect())

    name, columns = create_event_type(orders.api, define("integer"))["name"], ["n", "a", "a__string"]
    publish((0, 1))
    assert orders.api.put(f"/event-types/{name}", json=define("string")).status_code == 200
    publish((1, "x"), (2, "3"))
    expected = [(0, 1, "1"), (1, None, "x"), (2, None, "3")]
    assert found(nakadi_spark.read(orders.spark, orders.url, name, columns=columns)) == expected
    batches = []
    nakadi_spark.for_each_batch(
        orders.spark, orders.url, name, lambda rows, _: batches.append(found(rows)), tmp_path, columns=columns
    )
    assert batches == [expected]
    orders.put_into_table(name, 3)
    publish((3, "y"))
    frame = nakadi_spark.read(orders.spark, orders.broker, name, columns=columns)
    assert found(frame) == [*expected, (3, None, "y")]


def test_two_event_types_are_joined(orders):
    """DataFrames of event types are joined like any others. (K1)"""
    schema = {"properties": {"n": {"type": "integer"}}}
    name = create_event_type(orders.api, a_business_definition(schema=schema, default_statistic=TWO))["name"]
    events = [
        {"n": n, "metadata": {"eid": f"00000000-0000-4000-8000-0000000e{n:04d}", "occurred_at": "2026-11-20T10:00:00Z"}}
        for n in range(5, 50)
    ]
    assert orders.api.post(f"/event-types/{name}/events", json=events).status_code == 200
    placed = nakadi_spark.read(orders.spark, orders.broker, orders.name, columns=["n"])
    paid = nakadi_spark.read(orders.spark, orders.url, name, columns=["n"])
    assert numbers(placed.join(paid, "n")) == [*range(5, orders.count)]


def test_an_event_type_that_does_not_exist_is_named(orders):
    """A read of an event type that does not exist fails, and the error names the event type. (K5)"""
    with pytest.raises(BadRead, match=r"There is no event type no\.such"):
        nakadi_spark.read(orders.spark, orders.broker, "no.such")


@pytest.mark.parametrize("tables", ["glue.nakadi", "nakadi.other", "nakadi"])
def test_a_session_without_the_table_is_refused(orders, tables):
    """If the session has no table where `tables` says, the error names the table and explains `tables`. (K1)"""
    with pytest.raises(BadRead, match=rf"^The Spark session has no table {tables}\.`order_placed`: `tables` names"):
        nakadi_spark.read(orders.spark, Broker(orders.url, tables=tables), orders.name)


def test_columns_are_a_list(orders):
    """A single text is refused, because its letters would be taken as names. (K3)"""
    with pytest.raises(BadRead, match=r"^The columns are a list of names, such as \['n'\]\.$"):
        nakadi_spark.read(orders.spark, orders.url, orders.name, columns="n")


def test_rights_are_those_of_streams(orders, tmp_path):
    """A client that may not read an event type gets the broker's Problem before anything is read; a token with the
    permission reaches the tasks. (K6)
    """
    issuer = Issuer(tmp_path)
    with ServedBroker(**issuer.settings) as broker:
        headers = {"Authorization": f"Bearer {issuer.token('ann')}"}
        lists = {each: [{"data_type": "user", "value": "ann"}] for each in ("admins", "readers", "writers")}
        with httpx.Client(base_url=broker.url, timeout=PATIENCE, headers=headers) as api:
            name = create_event_type(api, a_definition(authorization=lists))["name"]
            with pytest.raises(Refused, match="denied"):
                nakadi_spark.read(orders.spark, Broker(broker.url, issuer.token("bob")), name)
            assert api.post(f"/event-types/{name}/events", json=[{}]).status_code == 200
            found = nakadi_spark.read(orders.spark, Broker(broker.url, issuer.token("ann")), name)
            assert found.count() == 1
        assert issuer.token("ann") not in repr(Broker(broker.url, issuer.token("ann")))
