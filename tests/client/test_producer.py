"""Producers publish to a real broker, over sockets, despite all kinds of faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from nakadi_client import (
    BadEvent,
    BufferFull,
    Closed,
    Connection,
    EventRefused,
    Limits,
    Metadata,
    NotDelivered,
    Producer,
    Refused,
    key_at,
)
from nakadi_client.testing import LocalNakadi
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
STRICT = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'


class Order(msgspec.Struct):
    number: str
    quantity: int = 1


def numbers(events):
    return [event["n"] for event in events]


def test_events_are_published_with_metadata(nakadi):
    """The producer adds missing metadata, and every event is stored in its order."""
    nakadi.create_event_type("sent")
    with Producer(nakadi.url, "sent") as producer:
        deliveries = [producer.send({"n": n}) for n in range(1_000)]

    stored = nakadi.events("sent")
    assert numbers(stored) == list(range(1_000))
    assert [event["metadata"]["eid"] for event in stored] == [each.eid for each in deliveries]
    assert {each.result().attempts for each in deliveries} == {1}


def test_a_model_and_bytes_are_published(nakadi):
    """An event may be a model, a mapping with its own metadata, or JSON."""
    nakadi.create_event_type("sent")
    own = {"eid": "11111111-1111-1111-1111-111111111111"}
    whole = (
        b'{"number":"C","metadata":{"eid":"22222222-2222-2222-2222-222222222222","occurred_at":"2026-01-01T00:00:00Z"}}'
    )
    with Producer(nakadi.url, "sent", metadata=Metadata(traceparent=lambda: "00-1-2-01")) as producer:
        producer.publish(Order("A"))
        producer.send({"number": "B", "metadata": own})
        producer.send(whole)

    first, second, third = nakadi.events("sent")
    assert (first["number"], first["quantity"]) == ("A", 1)
    assert first["metadata"]["span_ctx"] == {"traceparent": "00-1-2-01"}
    assert second["metadata"]["eid"] == own["eid"]
    assert second["metadata"]["occurred_at"]
    assert third["metadata"]["eid"].startswith("2222")


def test_cloud_events_are_published(nakadi):
    """The broker turns the attributes of a CloudEvent into metadata; the client adds no metadata."""
    nakadi.create_event_type("sent")
    event = {"specversion": "1.0", "id": "A-1", "source": "/shop", "type": "placed", "data": {"n": 1}}
    with Producer(nakadi.url, "sent", cloud_events=True) as producer:
        deliveries = producer.send_all([event, {**event, "id": "A-2"}])

    stored = nakadi.events("sent")
    assert numbers(stored) == [1, 1]
    assert [each["metadata"]["cloudevent"]["id"] for each in stored] == ["A-1", "A-2"]
    assert {each.result().attempts for each in deliveries} == {1}


def test_a_producer_that_stops_takes_nothing_behind_what_failed(nakadi):
    """With `on_failure="stop"`, a refused event ends the producer; events that were stored before stay."""
    nakadi.create_event_type("sent", schema={"type": "json_schema", "schema": STRICT})
    with Producer(nakadi.url, "sent", on_failure="stop", limits=Limits(linger=60)) as producer:
        producer.send({"n": 1})
        producer.flush()
        first, refused = producer.send_all([{"n": 2}, {"n": "three"}])
        producer.flush()
        with pytest.raises(Closed, match="not delivered"):
            producer.send({"n": 4})

    assert numbers(nakadi.events("sent")) == [1]
    assert isinstance(refused.outcome, EventRefused)
    assert isinstance(first.outcome, NotDelivered)


def test_a_category_without_metadata_gets_none(nakadi):
    """With `metadata=None`, an event is published unchanged."""
    nakadi.create_event_type("sent", category="undefined")
    with Producer(nakadi.url, "sent", metadata=None) as producer:
        producer.send({"n": 1})
    assert nakadi.events("sent") == [{"n": 1}]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_bodies_are_compressed(nakadi, breakable_network, compression):
    """A compressed batch of equal events takes a fraction of its size on the wire."""
    nakadi.create_event_type("sent")
    with Producer(breakable_network.url, "sent", compression=compression) as producer:
        for n in range(500):
            producer.send({"n": n, "text": "x" * 1_000})
    assert numbers(nakadi.events("sent")) == list(range(500))


def test_what_a_partition_refused_is_sent_again_in_its_order(nakadi):
    """The producer sends the events of a failed partition (207) again; each key stays in order, and no event is
    stored twice.
    """
    nakadi.create_event_type(
        "sent",
        partitions=4,
        partition_strategy="hash",
        partition_key_fields=["key"],
    )
    nakadi.faults.refuse(event_type="sent", partition="1", times=3)
    nakadi.faults.refuse(event_type="sent", partition="2", times=1)
    with Producer(nakadi.url, "sent", key=key_at("key"), limits=Limits(batch_events=20, in_flight=3)) as producer:
        deliveries = [producer.send({"key": str(n % 17), "n": n}) for n in range(400)]

    stored = nakadi.events("sent")
    assert sorted(numbers(stored)) == list(range(400))
    for key in range(17):
        of_key = [event["n"] for event in stored if event["key"] == str(key)]
        assert of_key == sorted(of_key)
    assert max(each.result().attempts for each in deliveries) > 1


def test_a_write_that_timed_out_may_have_stored_the_event(nakadi):
    """If the broker reports an event as failed but has stored it, the event is stored twice, with one `eid`, and the
    report says that this is possible.
    """
    nakadi.create_event_type("sent")
    nakadi.faults.time_out(event_type="sent")
    with Producer(nakadi.url, "sent") as producer:
        delivery = producer.send({"n": 1})

    assert delivery.result().maybe_doubled
    assert [event["metadata"]["eid"] for event in nakadi.events("sent")] == [delivery.eid] * 2


def test_a_refused_event_does_not_stop_the_others(nakadi):
    """An event that the schema refuses (422) fails alone; all others of its batch are stored."""
    nakadi.create_event_type("sent", schema={"type": "json_schema", "schema": STRICT})
    with Producer(nakadi.url, "sent") as producer:
        good = [producer.send({"n": n}) for n in range(50)]
        bad = producer.send({"n": "?"})
        good += [producer.send({"n": n}) for n in range(50, 100)]

    with pytest.raises(EventRefused, match="expected type"):
        bad.result()
    assert all(each.result() for each in good)
    assert numbers(nakadi.events("sent")) == list(range(100))


def test_an_event_that_is_no_json_to_the_broker_fails_alone(nakadi):
    """If the broker cannot read a batch (400), the producer divides it until it finds the event."""
    nakadi.create_event_type("sent")
    with Producer(nakadi.url, "sent", metadata=None) as producer:
        deliveries = [producer.send(whole_event(n)) for n in range(20)]
        bad = producer.send(b'{"n":1,"n":2}')
        deliveries += [producer.send(whole_event(n)) for n in range(20, 40)]

    with pytest.raises(Refused, match="400"):
        bad.result()
    assert all(each.result() for each in deliveries)
    assert numbers(nakadi.events("sent")) == list(range(40))


def whole_event(n):
    eid = f"00000000-0000-0000-0000-{n:012d}"
    return {"n": n, "metadata": {"eid": eid, "occurred_at": "2026-01-01T00:00:00Z"}}


def test_an_unknown_event_type_fails_the_event(nakadi):
    """If the event type does not exist, the report of the event has the broker's message."""
    with Producer(nakadi.url, "nowhere") as producer:
        delivery = producer.send({"n": 1})
    with pytest.raises(Refused, match="nowhere"):
        delivery.result()


def test_a_broker_that_is_gone_for_a_while_gets_everything(nakadi, breakable_network):
    """While the connection is cut, events wait; none is lost, and they keep their order."""
    nakadi.create_event_type("sent")
    with Producer(breakable_network.url, "sent", limits=Limits(batch_events=10)) as producer:
        for n in range(100):
            producer.send({"n": n})
        producer.flush()
        breakable_network.go_down()
        for n in range(100, 200):
            producer.send({"n": n})
        assert not producer.flush(0.5)
        breakable_network.heal()
        assert producer.flush(PATIENCE)
    assert numbers(nakadi.events("sent")) == list(range(200))


def test_a_lost_answer_is_an_event_that_may_be_there_twice(nakadi, breakable_network):
    """If the connection breaks during the answer, the producer sends the event again with the same `eid`."""
    nakadi.create_event_type("sent")
    with Producer(breakable_network.url, "sent") as producer:
        breakable_network.cut_after(20)
        delivery = producer.send({"n": 1})
        assert delivery.result(PATIENCE).maybe_doubled
    assert [event["metadata"]["eid"] for event in nakadi.events("sent")] == [delivery.eid] * 2


def test_an_event_that_nobody_takes_is_given_up(breakable_network):
    """After the delivery timeout an event is reported as not delivered."""
    breakable_network.go_down()
    with Producer(breakable_network.url, "sent", limits=Limits(delivery_timeout=0.3)) as producer:
        delivery = producer.send({"n": 1})
        with pytest.raises(NotDelivered) as failed:
            delivery.result(PATIENCE)
    # The proxy accepted the connection, so nobody knows the outcome of the request.
    assert isinstance(failed.value.maybe_stored, bool)


def test_a_full_buffer_holds_senders_back(breakable_network):
    """`send` waits for room, and raises an error if there is none in time."""
    breakable_network.go_down()
    producer = Producer(breakable_network.url, "sent", limits=Limits(buffer_events=3))
    deliveries = [producer.send({"n": n}) for n in range(3)]
    with pytest.raises(BufferFull):
        producer.send({"n": 3}, timeout=0.1)
    producer.close(timeout=0.1)
    for each in deliveries:
        with pytest.raises(NotDelivered):
            each.result(PATIENCE)
    with pytest.raises(Closed):
        producer.send({"n": 4})


def test_room_that_comes_is_used(nakadi):
    """Many more events than the buffer holds pass through it."""
    nakadi.create_event_type("sent")
    limits = Limits(buffer_events=5, batch_events=2, linger=0)
    with Producer(nakadi.url, "sent", limits=limits) as producer:
        for n in range(200):
            producer.send({"n": n})
    assert numbers(nakadi.events("sent")) == list(range(200))


def test_reports_come_to_callbacks(nakadi):
    """A callback gets each report, even if another callback fails."""
    nakadi.create_event_type("sent")
    reports = []

    def fail(_delivery):
        raise RuntimeError("on purpose")

    with Producer(nakadi.url, "sent", on_delivery=reports.append) as producer:
        for n in range(10):
            producer.send({"n": n}, on_delivery=fail)
    assert [each.done for each in reports] == [True] * 10


def test_events_of_several_threads_arrive(nakadi):
    """Several threads may share a producer."""
    nakadi.create_event_type("sent")
    with Producer(nakadi.url, "sent", limits=Limits(in_flight=2), ordered=False) as producer:
        threads = [
            threading.Thread(target=lambda start=start: producer.send_all({"n": start + n} for n in range(200)))
            for start in range(0, 1_000, 200)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers(nakadi.events("sent"))) == list(range(1_000))


def test_what_is_no_event_is_refused_at_once(nakadi):
    """`send` accepts only values that become a JSON object."""
    with Producer(nakadi.url, "sent") as producer:
        for bad in ([1], "text", {"n": object()}):
            with pytest.raises(BadEvent):
                producer.send(bad)


def test_a_secret_is_shown_nowhere():
    """Neither a token nor a password in the URL appears in a `repr` or an error."""
    connection = Connection("http://me:hidden@127.0.0.1:1", token="secret-token")
    with Producer(connection, "sent", limits=Limits(delivery_timeout=0.2)) as producer:
        delivery = producer.send({"n": 1})
        shown = f"{producer!r} {connection!r} {delivery!r}"
    with pytest.raises(NotDelivered) as failed:
        delivery.result()
    for text in (shown, repr(failed.value), str(failed.value)):
        assert "secret-token" not in text
        assert "hidden" not in text


PROGRAM = """
import sys, time
from nakadi_client import Limits, Producer

producer = Producer(sys.argv[1], "sent", limits=Limits(linger=5))
for n in range(100):
    producer.send({"n": n})
print("sent", flush=True)
if sys.argv[2] == "wait":
    time.sleep(60)
"""


@pytest.mark.parametrize("ending", ["exit", "wait"])
def test_a_program_that_ends_delivers_what_it_sent(nakadi, ending):
    """At the end of a program, and at SIGTERM, the producer sends its buffered events first."""
    nakadi.create_event_type("sent")
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, nakadi.url, ending],
        cwd=ROOT,
        env=plain_environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "sent\n"
        if ending == "wait":
            os.kill(program.pid, signal.SIGTERM)
        assert program.wait(PATIENCE) == (-signal.SIGTERM if ending == "wait" else 0)
    assert numbers(nakadi.events("sent")) == list(range(100))


def test_the_example_of_the_module_runs():
    """The example in the module's docstring works."""
    with LocalNakadi() as nakadi:
        nakadi.create_event_type("order.placed")
        with Producer(nakadi.url, "order.placed") as producer:
            delivery = producer.send({"order_number": "A-1"})
        assert delivery.result().attempts == 1
