"""How streams end, and which changes do not affect them."""

import threading
import time
from contextlib import ExitStack

import httpx
import orjson
import pytest

from nakadi.local import Broker
from tests.support.api import a_definition, an_authorization, create_event_type
from tests.support.expected_lines import batch, cursors, keep_alive
from tests.support.open_stream import OpenStream
from tests.support.patience import PATIENCE, until


def test_a_client_that_leaves_while_idle_is_noticed(open_stream, count_open_streams):
    """A closed connection ends a stream, although nothing is being sent. (L53, trap 19)"""
    before = count_open_streams()
    open_low_level_stream = open_stream("batch_flush_timeout=300")
    until(lambda: count_open_streams() == before + 1)
    open_low_level_stream.close()
    until(lambda: count_open_streams() == before)


def test_a_block_ends_the_response_at_once(api, open_stream, event_type):
    """A block during a stream ends the response long before anything is sent, without a message. (L53, L59)"""
    open_low_level_stream = open_stream("batch_flush_timeout=300&batch_limit=10", cursors(_0="BEGIN"))
    blocked = f"/settings/blacklist/CONSUMER_ET/{event_type}"
    assert api.put(blocked).status_code == 204
    try:
        assert open_low_level_stream.rest() == b""
    finally:
        api.delete(blocked)


def test_losing_permission_ends_the_stream_with_a_problem(broker_with_tokens, ann_client):
    """A client that may no longer read gets a Problem in the stream, after the events sent so far. (L53, L60)"""
    definition = a_definition(authorization=an_authorization(readers="ann bob"))
    name = create_event_type(ann_client, definition)["name"]
    ann_client.post(f"/event-types/{name}/events", json=[{"n": 1}])
    with open_as(broker_with_tokens, "bob", name) as open_low_level_stream:
        assert open_low_level_stream.line().endswith(b'"events":[{"n":1}]}\n')
        changed = definition | {"authorization": an_authorization()}
        assert ann_client.put(f"/event-types/{name}", json=changed).status_code == 200
        last = orjson.loads(open_low_level_stream.rest())
    assert last["status"] == 403
    assert last["detail"] == f"Access on READ event-type:{name} denied"
    assert {"type", "title"} <= last.keys()


def test_losing_only_the_view_changes_nothing(broker_with_tokens, ann_client):
    """While a stream is open, only READ is checked again, so the loss of VIEW does not end it. (L62)"""
    definition = a_definition(authorization=an_authorization(writers="ann the-archiver"))
    name = create_event_type(ann_client, definition)["name"]
    with open_as(broker_with_tokens, "the-archiver", name) as open_low_level_stream:
        assert (
            ann_client.put(f"/event-types/{name}", json=definition | {"authorization": an_authorization()}).status_code
            == 200
        )
        time.sleep(1.5)  # longer than the interval at which streams are checked
        ann_client.post(f"/event-types/{name}/events", json=[{"n": 1}])
        assert open_low_level_stream.line().endswith(b'"events":[{"n":1}]}\n')


def test_other_changes_end_nothing(broker_with_tokens, ann_client):
    """A reader that keeps the right to read continues when the event type changes. (L60)"""
    definition = a_definition(authorization=an_authorization())
    name = create_event_type(ann_client, definition)["name"]
    with open_as(broker_with_tokens, "ann", name) as open_low_level_stream:
        assert (
            ann_client.put(f"/event-types/{name}", json=definition | {"owning_application": "other"}).status_code == 200
        )
        time.sleep(1.5)  # longer than the interval at which streams are checked
        ann_client.post(f"/event-types/{name}/events", json=[{"n": 1}])
        assert open_low_level_stream.line().endswith(b'"events":[{"n":1}]}\n')


def test_deleting_the_event_type_ends_the_stream_with_a_problem(api, open_stream, publish, event_type):
    """A stream over a deleted event type sends a Problem, and ends. (L61)"""
    publish("0", "a")
    open_low_level_stream = open_stream("", cursors(_0="BEGIN"))
    assert open_low_level_stream.line() == batch("0", 0, "a")
    assert api.delete(f"/event-types/{event_type}").status_code == 200
    last = orjson.loads(open_low_level_stream.rest())
    assert (last["status"], last["detail"]) == (503, f'EventType "{event_type}" does not exist.')


def test_a_name_that_is_used_again_is_another_event_type(api, open_stream, event_type):
    """A stream over a deleted event type does not continue in its successor. (L61)"""
    open_low_level_stream = open_stream("", cursors(_0="BEGIN"))
    assert api.delete(f"/event-types/{event_type}").status_code == 200
    create_event_type(api, a_definition(name=event_type))
    assert orjson.loads(open_low_level_stream.rest())["status"] == 503
    assert open_stream("", cursors(_0="BEGIN")).status == 200


def test_a_slow_client_slows_no_one(open_stream, publish):
    """While one client does not read, the others get every event. The slow client gets the events when it reads.
    (L68)
    """
    values = [str(number).rjust(20_000, ".") for number in range(400)]
    limit = f"stream_limit={len(values)}"
    slow = open_stream(limit, cursors(_0="BEGIN"), receive_bytes=4096)
    fast = open_stream(limit, cursors(_0="BEGIN"))
    for begin in range(0, len(values), 100):
        publish("0", *values[begin : begin + 100])
    everything = fast.rest()
    assert everything == b"".join(batch("0", offset, value) for offset, value in enumerate(values))
    assert slow.rest() == everything


def test_events_arrive_in_order_while_they_are_published(open_stream, publish):
    """Streams that are open while many events are published get all of them, each once, in order. (L45, L68)"""
    streams = [open_stream("stream_limit=300&batch_limit=7", cursors(_0="BEGIN")) for _ in range(3)]
    publisher = threading.Thread(target=lambda: [publish("0", *map(str, range(n, n + 10))) for n in range(0, 300, 10)])
    publisher.start()
    answers = [open_low_level_stream.rest() for open_low_level_stream in streams]
    publisher.join()
    for answer in answers:
        values = [each["v"] for line in answer.splitlines() for each in orjson.loads(line)["events"]]
        assert values == list(map(str, range(300)))


def test_a_client_that_comes_back_misses_nothing(open_stream, publish):
    """A client that reconnects all the time, from each line's cursor, gets everything once. (L33, L68)"""
    publish("0", *"abcdefg")
    offset, got = "BEGIN", []
    while len(got) < 7:
        with open_stream("batch_limit=2&batch_flush_timeout=1", cursors(_0=offset)) as open_low_level_stream:
            line = orjson.loads(open_low_level_stream.line())
        # A line without events means that none came within the flush timeout, which happens on a busy machine.
        got += [each["v"] for each in line.get("events", ())]
        offset = line["cursor"]["offset"]
    assert got == list("abcdefg")


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
def test_a_broker_that_stops_ends_its_streams(accept):
    """When the process ends, streams send their buffers and end properly. (L54)"""
    with Broker() as broker, ExitStack() as closing:
        with httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
            name = create_event_type(api)["name"]
            api.post(f"/event-types/{name}/events", json=[{"n": 1}, {"n": 2}, {"n": 3}])
        headers = {"X-nakadi-cursors": cursors(_0="BEGIN"), "Accept": accept}
        target = f"/event-types/{name}/events?batch_limit=2"
        streams = [closing.enter_context(OpenStream(broker.url, target, headers)) for _ in range(3)]
        for open_low_level_stream in streams:
            open_low_level_stream.until(
                b'"events":[{"n":1},{"n":2}]}\n'
            )  # the stream has read the third event, too, and holds it from now on
        broker.close()
        for open_low_level_stream in streams:
            assert b'"events":[{"n":3}]}\n' in open_low_level_stream.rest()
            assert open_low_level_stream.ended


def test_keep_alives_come_through_silence(open_stream):
    """A stream without events sends a keep-alive once in every flush timeout. (L47, L48, L49)"""
    begun = time.monotonic()
    with open_stream("batch_flush_timeout=1", cursors(_0="BEGIN")) as open_low_level_stream:
        assert open_low_level_stream.line() + open_low_level_stream.line() == keep_alive("0", -1) * 2
        assert time.monotonic() - begun >= 2


def open_as(broker_with_tokens, subject, name):
    headers = {**broker_with_tokens.issuer.bearer(subject), "X-nakadi-cursors": cursors(_0="BEGIN")}
    return OpenStream(broker_with_tokens.broker.url, f"/event-types/{name}/events", headers)
