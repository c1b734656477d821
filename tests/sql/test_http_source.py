"""Queries over the log of a broker, which the source reads by HTTP."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import httpx
import pytest
from msgspec.structs import replace

from nakadi_client import Connection, NoAnswer, Refused
from nakadi_sql import BadQuery, HttpSource, ask
from tests.sql.conftest import LIMITS
from tests.support import avro
from tests.support.api import a_business_definition, a_definition, create_event_type
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker
from tests.support.tokens import Issuer

FOUR = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 4, "write_parallelism": 4}


def an_event(number, **more):
    metadata = {"eid": f"00000000-0000-4000-8000-{number:012d}", "occurred_at": "2026-11-20T10:00:00Z"}
    return {"n": number, "metadata": metadata | more}


def publish(api, name, events):
    answer = api.post(f"/event-types/{name}/events", json=events)
    assert answer.status_code == 200, answer.text


def test_an_event_is_found_as_soon_as_it_is_published(api, query):
    """Without any table, a query reads the log: each event once, with its position, its time and its columns. (Q1,
    Q4)
    """
    schema = {"properties": {"n": {"type": "integer"}}}
    name = create_event_type(api, a_business_definition(schema=schema, default_statistic=FOUR))["name"]
    before = datetime.now(UTC)
    for number in range(8):
        publish(api, name, [an_event(number)])
        assert query(f'select count(*), max(n) from "{name}"') == [(number + 1, number)]
    columns = (
        "nakadi_partition, nakadi_offset, nakadi_time, nakadi_publisher, nakadi_key, nakadi_event, n, metadata.eid"
    )
    found = query(f'select {columns} from "{name}" order by n')
    assert len({row[:2] for row in found}) == 8
    for number, row in enumerate(found):
        assert abs((row[2] - before).total_seconds()) < PATIENCE
        assert row[3:] == ("unauthenticated", None, None, number, an_event(number)["metadata"]["eid"])


def test_events_without_metadata_have_the_time_when_they_were_stored(api, query, notes):
    """A condition on `nakadi_time` also finds events of the category `undefined`, even those with a time of their own.
    (Q4)
    """
    name = create_event_type(api, default_statistic=FOUR, partition_strategy="hash", partition_key_fields=["k"])["name"]
    before = datetime.now(UTC)
    events = [{"k": str(n % 7), "n": n} for n in range(50)]
    publish(api, name, events)
    publish(api, name, [{"k": "0", "metadata": {"occurred_at": "2001-01-01T00:00:00Z"}}])
    found = query(f'select nakadi_time from "{name}" where nakadi_time > now() - interval 1 hour')
    assert len(found) == 51
    assert all(-1 < (row[0] - before).total_seconds() < PATIENCE for row in found)
    assert notes == []


def test_keys_are_those_of_the_log(api, query):
    """The key of a row is the event's compaction key, or else its partition key. (Q4)"""
    compacted = create_event_type(api, a_business_definition(cleanup_policy="compact"))["name"]
    publish(api, compacted, [an_event(1, partition_compaction_key="k")])
    hashed = create_event_type(api, partition_strategy="hash", partition_key_fields=["a", "b.c"])["name"]
    publish(api, hashed, [{"a": "x", "b": {"c": 1}}, {"a": "y", "b": {"c": True}}])
    assert query(f'select nakadi_key from "{compacted}"') == [("k",)]
    assert query(f'select nakadi_key from "{hashed}" order by 1') == [("x,1",), ("y,true",)]


def test_two_event_types_are_joined(api, query):
    """A query may name any number of event types."""
    schema = {"properties": {"n": {"type": "integer"}}}
    one, other = (create_event_type(api, schema=schema)["name"] for _ in range(2))
    publish(api, one, [{"n": n} for n in range(10)])
    publish(api, other, [{"n": n} for n in range(5, 15)])
    assert query(f'select count(*), sum(n) from "{one}" join "{other}" using (n)') == [(5, 35)]


def test_an_ambiguous_name_is_refused(api, query):
    """If several event types have a table of the name in a query, the answer lists them; a query can name each of them
    in quotes. (Q3)
    """
    for name in ("sql.twin-one", "sql-twin.one"):
        create_event_type(api, a_definition(name=name))
    with pytest.raises(BadQuery, match=r'"sql-twin.one", "sql.twin-one"'):
        query("from sql_twin_one")
    assert query('select count(*) from "sql-twin.one"') == [(0,)]


@pytest.mark.parametrize("name", ["https://example.org/x.csv", "/etc/passwd", "../event-types", "orders.csv", "a..b"])
def test_files_and_urls_are_no_event_types(query, name):
    """A query from a file or a URL is refused like one from an unknown event type. (Q3, Q6)"""
    with pytest.raises(BadQuery, match=f"^There is no event type {name}, and none whose table has this name.$"):
        query(f"from '{name}'")


def test_all_versions_of_a_schema_have_columns(api, query):
    """There are columns for all versions of the schema, so one table has older and newer events. (Q5)"""
    definition = a_definition(schema={"properties": {"a": {"type": "integer"}}}, compatibility_mode="none")
    name = create_event_type(api, definition)["name"]
    publish(api, name, [{"a": 1}])
    schema = json.dumps({"properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}})
    changed = definition | {"schema": {"type": "json_schema", "schema": schema}}
    assert api.put(f"/event-types/{name}", json=changed).status_code == 200
    publish(api, name, [{"a": "x", "b": True}])
    assert query(f'select a, a__string, b from "{name}" order by nakadi_offset') == [(1, "1", None), (None, "x", True)]


def test_deleted_events_are_no_rows(api, query):
    """A tombstone is not a row, because no stream of the event type delivers it. (Q4)"""
    name = create_event_type(api, a_business_definition(cleanup_policy="compact"))["name"]
    publish(api, name, [an_event(1, partition_compaction_key="k")])
    gone = {"metadata": an_event(2, partition_compaction_key="k")["metadata"]}
    assert api.post(f"/event-types/{name}/deleted-events", json=[gone]).status_code == 200
    publish(api, name, [an_event(3, partition_compaction_key="k")])
    assert query(f'select nakadi_offset from "{name}" order by 1') == [(0,), (2,)]


@pytest.fixture
def guarded_broker(tmp_path):
    """A broker that requires tokens, and the issuer of the tokens."""
    issuer = Issuer(tmp_path)
    with ServedBroker(**issuer.settings) as broker:
        yield broker, issuer


def test_rights_are_those_of_streams(guarded_broker):
    """A client that may not read an event type gets the broker's Problem, whether there are events or not. (Q8)"""
    broker, issuer = guarded_broker

    def ask_as(user, name):
        connection = Connection(broker.url, token=issuer.token(user))
        with (
            HttpSource(connection, print) as source,
            ask(f'select count(*) from "{name}"', source, None, LIMITS) as found,
        ):
            return [*found.rows()]

    headers = {"Authorization": f"Bearer {issuer.token('ann')}"}
    with httpx.Client(base_url=broker.url, timeout=PATIENCE, headers=headers) as api:
        lists = {each: [{"data_type": "user", "value": "ann"}] for each in ("admins", "readers", "writers")}
        name = create_event_type(api, a_definition(authorization=lists))["name"]
        for published in ([], [{}]):
            if published:
                publish(api, name, published)
            assert ask_as("ann", name) == [(len(published),)]
            with pytest.raises(Refused) as refused:
                ask_as("bob", name)
            assert refused.value.status == 403
            assert "denied" in str(refused.value)


class PlayedBroker(httpx.BaseTransport):
    """A broker with one event type of a single partition, whose successive streams send these lines."""

    def __init__(self, newest, *streams, knows_until=False):
        self._newest, self._streams = newest, list(streams)
        self._headers = {"X-Nakadi-Until": "true"} if knows_until else {}
        self.cursors, self.ends = [], []

    def handle_request(self, request):
        where = request.url.path.removeprefix("/event-types")
        ends = {"partition": "0", "oldest_available_offset": offset(0), "newest_available_offset": offset(self._newest)}
        if where.endswith("/events"):
            [cursor] = json.loads(request.headers["X-Nakadi-Cursors"])
            self.cursors.append(cursor["offset"])
            self.ends.append(cursor["until"])
            return httpx.Response(200, headers=self._headers, content=self._streams.pop(0))
        answers = {
            "": [{"name": "x"}],
            "/x": {"name": "x", "category": "business", "cleanup_policy": "delete", "partition_strategy": "random"},
            "/x/schemas": {"items": [{"type": "json_schema", "schema": "{}"}]},
            "/x/partitions": [ends],
            "/x/cursors-lag": [ends | {"unconsumed_events": self._newest + 1}],
        }
        return httpx.Response(200, json=answers[where])


def offset(number):
    return f"001-0001-{number:018d}"


def line(number, *events):
    return json.dumps({"cursor": {"partition": "0", "offset": offset(number)}, "events": events}).encode() + b"\n"


SILENCE = json.dumps({"cursor": {"partition": "0", "offset": "BEGIN"}}).encode() + b"\n"


def offsets_from(broker):
    connection = Connection("http://played", transport=broker)
    with HttpSource(connection, print) as source, ask("select nakadi_offset from x", source, None, LIMITS) as found:
        return [row[0] for row in found.rows()]


def test_a_slow_log_is_read_to_its_end():
    """A line without events that comes before the events does not end the reading of a partition. (Q4)"""
    broker = PlayedBroker(2, SILENCE + line(0, {}) + SILENCE + SILENCE + line(1, {}) + line(2, {}))
    assert offsets_from(broker) == [0, 1, 2]


def test_a_partition_ends_if_nothing_comes_any_more():
    """The last offsets may belong to events that streams do not deliver; then reading ends after some silent lines.
    (Q4)
    """
    assert offsets_from(PlayedBroker(9, line(0, {}) + SILENCE * 3)) == [0]


def test_a_broker_may_say_that_the_last_events_are_passed():
    """If the cursor of a line is at the end of the range, reading ends without waiting for silence. (Q4)"""
    at_end = line(9).replace(b', "events": []', b"")
    broker = PlayedBroker(9, line(0, {}) + at_end + line(10, {}))
    assert offsets_from(broker) == [0]
    assert broker.ends == [offset(9)]


def test_deleted_events_at_the_end_cost_no_wait(api, broker):
    """If the last events were deleted, the line at the end of the range still ends reading at once. (Q4, L78)"""
    name = create_event_type(api, a_business_definition(cleanup_policy="compact"))["name"]
    publish(api, name, [an_event(1, partition_compaction_key="k")])
    gone = {"metadata": an_event(2, partition_compaction_key="k")["metadata"]}
    for _ in range(3):
        assert api.post(f"/event-types/{name}/deleted-events", json=[gone]).status_code == 200
    # With so many silent lines to wait for, only the broker's cursor can end the reading.
    with HttpSource(Connection(broker.url), print, silences=1_000_000) as source:
        pieces = [*source.events(source.find(name))]
    assert [event.offset for piece in pieces for event in piece] == [0]


def test_silence_is_no_end_if_the_broker_knows_until():
    """A broker that cannot read the events sends lines without events, which must not look like the end. (Q4, L78)"""
    broker = PlayedBroker(1, SILENCE * 100 + line(0, {}) + line(1, {}), knows_until=True)
    assert offsets_from(broker) == [0, 1]


def test_events_that_cannot_be_read_end_the_query(monkeypatch):
    """If the broker cannot read some events, the query fails, and its error is the reason that the broker gives. (Q4,
    L81)
    """
    monkeypatch.setattr("nakadi_sql.http_source.PAUSE_SECONDS", 0.0)
    problem = {"status": 503, "detail": "Events up to 7 exist", "unreadable": {"partition": "0"}}
    end = json.dumps(problem).encode() + b"\n"
    broker = PlayedBroker(7, line(0, {}) + end, *[end] * 4, knows_until=True)
    with pytest.raises(NoAnswer, match="Events up to 7 exist"):
        offsets_from(broker)


def test_a_torn_stream_goes_on_behind_its_last_whole_line():
    """Each event comes once, even if connections break in the middle of a line. (Q4)"""
    broker = PlayedBroker(2, line(0, {}) + line(1, {})[:30], line(1, {}), line(2, {}))
    assert offsets_from(broker) == [0, 1, 2]
    assert broker.cursors == ["BEGIN", offset(0), offset(1)]


def test_a_stream_that_is_none_ends_the_query(monkeypatch):
    """If a broker sends something other than a stream, the query fails after some attempts, and the error names the
    broker.
    """
    monkeypatch.setattr("nakadi_sql.http_source.PAUSE_SECONDS", 0.0)
    for content in (b"", b"<html>\n"):
        with pytest.raises(NoAnswer, match="http://played"):
            offsets_from(PlayedBroker(0, *[content] * 5))


def test_events_that_left_the_log_too_early_are_counted():
    """If the log begins after the end of the table, a note says how many offsets neither of them has. If the query does
    not read the table, a note says that the table has events that the log lacks. (Q4)
    """
    notes = []

    class WithTable(PlayedBroker):
        def handle_request(self, request):
            answer = super().handle_request(request)
            if request.url.path.endswith("/x"):
                table = {"name": "x", "cursors": [{"partition": "0", "offset": offset(3)}]}
                return httpx.Response(200, json=answer.json() | {"table": table})
            begin = f'"oldest_available_offset":"{offset(0)}"'
            return httpx.Response(200, text=answer.read().decode().replace(begin, begin.replace(offset(0), offset(7))))

    broker = WithTable(8, line(7, {}) + line(8, {}))
    with HttpSource(Connection("http://played", transport=broker), notes.append) as source:
        event_type = source.find("x")
        [piece] = source.events(event_type)
        assert [event.offset for event in piece] == [7, 8]
        assert broker.cursors == ["BEGIN"]
        assert notes == ["3 offsets of x left the log before a job put their events into the table."]
        assert source.plan(replace(event_type, seam={}))
        assert source.plan(replace(event_type, seam={}, is_compacted=True))
    assert notes[1:] == [
        "Events of x have left the log, and the query does not read its table.",
        "x is compacted: the log may lack older events of its keys, and the query does not read its table.",
    ]


def test_events_of_two_timelines_are_found_once(api, source):
    """A table may end in the older timeline or in the newer one; reading continues there in the log. (Q1, Q4)"""
    name = create_event_type(api, a_business_definition())["name"]
    publish(api, name, [an_event(n) for n in range(3)])
    assert api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"}).status_code == 201
    publish(api, name, [an_event(n) for n in range(3, 6)])
    found = source.find(name)
    every = [(timeline, number) for timeline in (1, 2) for number in range(3)]
    for seam, first in (({}, 0), ({0: {1: 2, 2: 0}}, 2), ({0: {2: 0}}, 3), ({0: {2: 2}}, 5), ({0: {2: 3}}, 6)):
        pieces = source.events(replace(found, seam=seam))
        assert [event[:3:2] for piece in pieces for event in piece] == every[first:], seam


def test_events_in_avro_are_found_by_their_fields(api, query):
    """There are columns for the Avro schema, and for the JSON schema before it. (Q4, R310)"""
    schema = avro.a_record(avro.a_field("n", "int"), avro.a_field("price", avro.a_decimal(9, 2)))
    name = create_event_type(api, a_business_definition(schema={"properties": {"n": {"type": "integer"}}}))["name"]
    publish(api, name, [an_event(1)])
    assert api.post(f"/event-types/{name}/schemas", json=avro.schema_draft(schema)).status_code == 200
    payload = avro.encode(schema, {"n": 2, "price": Decimal("10.50")})
    answer = api.post(
        f"/event-types/{name}/events",
        content=avro.a_batch(avro.an_envelope(name, payload, version="2.0.0")),
        headers={"content-type": "application/avro-binary"},
    )
    assert answer.status_code == 200, answer.text

    found = query(f'select n, price, metadata.version from "{name}" order by n')

    assert found == [(1, None, "1.0.0"), (2, Decimal("10.50"), "2.0.0")]
