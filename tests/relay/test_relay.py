"""The relay between a PostgreSQL server and a broker."""

import threading

import httpx
import psycopg
import pytest

from nakadi_client import Connection
from nakadi_client.pauses import Pauses
from nakadi_relay import Feed, OutboxNames, Relay, outbox_schema
from nakadi_relay.outbox import Outbox
from tests.support.patience import until


@pytest.fixture
def relay(server, database, table, broker):  # noqa: ARG001  # it makes the table
    with Relay(server.dsn, broker.url, table=table) as relay:
        yield relay


@pytest.fixture
def running_relay(relay):
    """A relay that publishes rows as they arrive."""
    thread = threading.Thread(target=relay.run)
    thread.start()
    yield relay
    relay.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_rows_are_published_in_order_and_deleted(
    relay, insert_events, count_waiting_rows, event_type, read_stored_events
):
    """The relay publishes the rows of an application, and deletes them from the outbox."""
    name = event_type()
    insert_events(name, [{"n": number} for number in range(1200)], key="A")

    status = relay.run_once()

    assert (status.published, status.refused) == (1200, 0)
    assert count_waiting_rows() == 0
    assert [event["n"] for event in read_stored_events(name, 1200)] == list(range(1200))


@pytest.mark.usefixtures("running_relay")
def test_rows_are_published_as_they_come(insert_events, count_waiting_rows, event_type, read_stored_events):
    """An insert into the outbox wakes the relay, which publishes the row."""
    name = event_type()
    for number in range(5):
        insert_events(name, [{"n": number}], key="A")
        until(lambda: count_waiting_rows() == 0)
    assert [event["n"] for event in read_stored_events(name, 5)] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("follower", ["relay", "feed"])
def test_a_database_that_always_fails_is_asked_less_and_less(server, monkeypatch, follower):
    """If a connection succeeds and all statements on it fail, because the outbox is missing, the pauses grow."""
    running = (
        Relay(server.dsn, "http://127.0.0.1:9", table="missing", workers=1)
        if follower == "relay"
        else Feed(server.dsn, "pg_catalog.pg_class", "any", table="missing")
    )
    monkeypatch.setattr(Feed, "_examine_table", lambda *_: None)
    failures = []

    def stop_after_four(_pauses, number, *_):
        failures.append(number)
        if len(failures) == 4:
            running.stop()
        return 0.0

    monkeypatch.setattr(Pauses, "after", stop_after_four)
    running.run()

    assert failures == [1, 2, 3, 4]


def test_a_worker_that_fails_unexpectedly_ends_the_relay(relay, monkeypatch):
    """A relay whose workers have died does not end as if it had been stopped."""

    def fail(*_):
        raise RuntimeError("nobody expects this")

    monkeypatch.setattr(relay, "_run_round", fail)
    with pytest.raises(RuntimeError, match="nobody expects this"):
        relay.run()


def test_business_events_get_metadata(relay, insert_events, event_type, read_stored_events, database, table):
    """Events of a category with metadata get the row's `eid`."""
    name = event_type(category="business", enrichment_strategies=["metadata_enrichment"])
    insert_events(name, [{"n": 1}])
    [(eid,)] = database.execute(f"SELECT eid FROM {table}").fetchall()

    relay.run_once()

    assert read_stored_events(name, 1)[0]["metadata"]["eid"] == str(eid)


def test_published_rows_can_be_kept(server, database, table, broker, insert_events, count_waiting_rows, event_type):
    """With `keep`, the relay marks published rows instead of deleting them, and does not publish them again."""
    insert_events(event_type(), [{"n": 1}, {"n": 2}])
    with Relay(server.dsn, broker.url, table=table, keep=True) as relay:
        assert relay.run_once().published == 2
        assert relay.run_once().published == 2
    assert count_waiting_rows() == 0
    assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (2,)


def test_a_refused_row_stops_its_own_key_alone(
    server, relay, insert_events, count_waiting_rows, event_type, read_stored_events, table
):
    """The relay keeps a refused row with the reason. Later rows of its key wait until somebody resolves that; all
    others are published.
    """
    name = event_type()
    insert_events(name, [{"n": 1}, {"n": "two"}, {"n": 3}], key="A")
    insert_events(name, [{"n": 10}, {"n": 11}], key="B")
    insert_events(name, [{"n": 20}])

    status = relay.run_once()

    assert (status.published, status.refused) == (4, 1)
    assert count_waiting_rows() == 1
    assert {event["n"] for event in read_stored_events(name, 4)} == {1, 10, 11, 20}
    outbox = Outbox(server.dsn, OutboxNames(table))
    [refused] = outbox.refused_rows()
    assert (refused.event_type, refused.key) == (name, "A")
    assert refused.reason == "validating: #/n: expected type: Number, found: String"

    assert relay.run_once().published == 4
    assert outbox.skip(refused.id)
    assert not outbox.skip(refused.id)
    assert relay.run_once().published == 5
    assert [event["n"] for event in read_stored_events(name, 5)][-1] == 3
    outbox.close()


def test_a_refused_row_can_be_tried_again(server, relay, insert_events, event_type, read_stored_events, table, api):
    """Once the cause of a refusal is removed, the relay publishes the refused row before the later rows of its key."""
    name = event_type()
    insert_events(name, [{"n": None}, {"n": 2}], key="A")
    relay.run_once()
    definition = api.get(f"/event-types/{name}").json()
    definition["compatibility_mode"] = "none"
    api.put(f"/event-types/{name}", json=definition).raise_for_status()
    definition["schema"] = {"type": "json_schema", "schema": "{}"}
    api.put(f"/event-types/{name}", json=definition).raise_for_status()

    outbox = Outbox(server.dsn, OutboxNames(table))
    assert outbox.retry(outbox.refused_rows()[0].id)
    outbox.close()

    assert relay.run_once().published == 2
    assert [event["n"] for event in read_stored_events(name, 2)] == [None, 2]


def test_an_unknown_event_type_stops_no_other(relay, insert_events, count_waiting_rows, event_type):
    """The rows of an unknown event type wait, but are not refused; other rows are published."""
    name = event_type()
    insert_events("no.such", [{"n": 1}, {"n": 2}], key="A")
    insert_events(name, [{"n": 1}], key="A")

    status = relay.run_once()

    assert (status.published, status.refused) == (1, 0)
    assert count_waiting_rows() == 2


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("answer", ["<html>", "[]", "{}", ""])
def test_what_is_no_broker_gets_no_events(server, table, insert_events, count_waiting_rows, answer):
    """If something other than a broker answers at the broker's address, rows wait, and the relay continues."""
    insert_events("order.placed", [{"n": 1}])
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, text=answer))
    with Relay(server.dsn, Connection("http://broker.test", transport=transport), table=table) as relay:
        status = relay.run_once()
    assert (status.published, status.refused, status.failures) == (0, 0, 1)
    assert count_waiting_rows() == 1


@pytest.mark.usefixtures("database")
def test_event_types_are_published_at_the_same_time(server, table, insert_events):
    """A round publishes the event types in parallel, so it only takes as long as the slowest one."""
    together = threading.Barrier(3)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"category": "undefined"})
        together.wait(60)
        return httpx.Response(200)

    for name in ("order.placed", "order.paid", "order.sent"):
        insert_events(name, [{"n": 1}])
    connection = Connection("http://broker.test", transport=httpx.MockTransport(answer))
    with Relay(server.dsn, connection, table=table) as relay:
        # The relay has few slots, so one round has all of them.
        assert relay.run_once().published == 3


def test_a_round_reads_no_more_than_it_publishes(relay, database, table, event_type, monkeypatch):
    """However many rows wait, a round reads only the rows that it publishes, because PostgreSQL finds these by the
    index.
    """
    monkeypatch.setattr("nakadi_relay.relay.MAX_ROWS", 100)
    name = event_type()
    database.execute(
        f"INSERT INTO {table} (event_type, key, event) SELECT %s, n, '{{\"n\": 1}}' FROM generate_series(1, 5000) AS n",
        [name],
    )

    assert relay.run_once().published == 5000

    def count_reads() -> int:
        query = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relname = %s"
        return database.execute(query, [table]).fetchone()[0]

    # PostgreSQL reports the statistics when the relay's connection has ended. Each row is read once to publish it, and
    # once to delete it.
    until(lambda: count_reads() >= 2 * 5000)
    assert count_reads() < 6 * 5000


def test_events_that_are_too_large_are_found(relay, insert_events, event_type):
    """Whatever the reason for refusing a batch, the relay finds the row at fault."""
    name = event_type()
    insert_events(name, [{"n": number} for number in range(7)])
    insert_events(name, [{"n": 7, "text": "x" * 1_100_000}])

    status = relay.run_once()

    assert (status.published, status.refused) == (7, 1)


@pytest.mark.usefixtures("database")
def test_several_relays_share_the_keys(server, table, broker, insert_events, event_type, read_stored_events):
    """With several relays, each event is published once, and the events of a key in their order."""
    name = event_type()
    for number in range(40):
        for key in range(12):
            insert_events(name, [{"n": number, "key": key}], key=str(key))
    relays = [Relay(server.dsn, broker.url, table=table) for _ in range(4)]
    threads = [threading.Thread(target=relay.run_once) for relay in relays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    # A relay ends when it finds no free slot, although a slot of another relay may still have rows.
    relays[0].run_once()

    events = read_stored_events(name, 480)
    assert len(events) == 480
    for key in range(12):
        assert [event["n"] for event in events if event["key"] == key] == list(range(40))
    assert sum(relay.status.published for relay in relays) == 480
    for relay in relays:
        relay.close()


def test_nothing_is_lost_when_the_log_fails(
    running_relay, broker, insert_events, count_waiting_rows, event_type, read_stored_events
):
    """If the log of the broker fails, the relay later publishes the rows that the log did not store."""
    name = event_type()
    broker.faults.refuse(event_type=name, times=2)
    insert_events(name, [{"n": number} for number in range(3)], key="A")

    until(lambda: count_waiting_rows() == 0)

    assert [event["n"] for event in read_stored_events(name, 3)] == [0, 1, 2]
    assert running_relay.status.failures >= 1


def test_a_database_that_restarts_is_waited_for(
    running_relay, server, insert_events, count_waiting_rows, event_type, read_stored_events, table
):
    """When the database has restarted, the relay connects again, and continues."""
    name = event_type()
    insert_events(name, [{"n": 1}], key="A")
    until(lambda: count_waiting_rows() == 0)
    # The relay counts published events after the end of its transaction.
    until(lambda: running_relay.status.published == 1)

    server.stop()
    server.start()

    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"INSERT INTO {table} (event_type, key, event) VALUES (%s, 'A', '{{\"n\": 2}}')", [name])
        until(lambda: connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,))
    assert [event["n"] for event in read_stored_events(name, 2)] == [1, 2]


def test_an_outbox_may_be_in_a_schema(server, broker, event_type):
    """A schema may precede the name of the table, and the statements that create the table can be repeated."""
    name = event_type()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        for _ in range(2):
            connection.execute(outbox_schema(OutboxNames("shop.outbox")))
        connection.execute("INSERT INTO shop.outbox (event_type, event) VALUES (%s, '{\"n\": 1}')", [name])
    with Relay(server.dsn, broker.url, table="shop.outbox") as relay:
        assert relay.run_once().published == 1


@pytest.mark.parametrize("name", ["", "a;b", 'a"', "a.b.c", "1a", "a b", "x" * 60])
def test_other_names_are_refused(name):
    """A text that cannot be the name of an outbox is refused, so it never gets into a statement."""
    with pytest.raises(ValueError, match="cannot be the name"):
        OutboxNames(name)


def test_a_password_is_not_shown():
    """The relay shows neither its DSN nor its token, nor an unusable DSN."""
    with pytest.raises(ValueError, match="neither a URL") as refused:
        Relay("postgresql//app:secret@localhost/shop", "http://127.0.0.1:1")
    assert "secret" not in str(refused.value)
    relay = Relay("postgresql://app:secret@localhost/shop", "http://127.0.0.1:1", token="hidden")
    assert "secret" not in repr(relay)
    assert "hidden" not in repr(relay)
    relay.close()
