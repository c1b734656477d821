"""Event-type streams as server-sent events, for browsers (`Accept: text/event-stream`)."""

import json

import orjson
import pytest

from tests.support.expected_lines import batch, cursors, position

SERVER_SENT = {"Accept": "text/event-stream"}


def parse_blocks(text: bytes) -> list[dict[str, str]]:
    """Server-sent events as their fields."""
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.decode().strip().split("\n\n")]


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "Text/Event-Stream;q=0.9, */*;q=0.1", "x/y, text/event-stream"]
)
def test_a_client_that_asks_gets_server_sent_events(open_stream, accept):
    """A client that accepts server-sent events gets a stream with their content type."""
    assert open_stream(headers={"Accept": accept}).headers["content-type"] == "text/event-stream"


def test_every_batch_is_an_event_with_its_cursor_as_id(open_stream, publish):
    """First comes the start of the stream, then one event for each batch; the id has the offsets of all partitions.
    (L77)"""
    publish("0", "a")
    start = cursors(_0="BEGIN", _1="BEGIN")
    with open_stream("stream_limit=1", start, headers=SERVER_SENT) as open_low_level_stream:
        opening, event = parse_blocks(open_low_level_stream.rest())
    assert opening["retry"] == "3000"
    assert json.loads(opening["id"]) == json.loads(cursors(_0=position(-1), _1=position(-1)))
    assert json.loads(event["id"]) == json.loads(cursors(_0=position(0), _1=position(-1)))
    assert f"{event['data']}\n".encode() == batch("0", 0, "a")


def test_a_browser_that_comes_back_goes_on_where_it_was(open_stream, publish):
    """`Last-Event-ID` resumes after the last event, in every partition, and overrides the cursors header. (L77)"""
    publish("0", *"ab")
    publish("1", *"cd")
    start = cursors(_0="BEGIN", _1="BEGIN")
    got, headers = [], dict(SERVER_SENT)
    while len(got) < 4:
        with open_stream("", start, headers=headers) as open_low_level_stream:
            open_low_level_stream.until(b"\n\n")
            (event,) = parse_blocks(open_low_level_stream.until(b"\n\n"))
        got += [each["v"] for each in orjson.loads(event["data"])["events"]]
        headers["Last-Event-ID"] = event["id"]
    assert sorted(got) == list("abcd")


def test_nothing_is_lost_between_the_first_moment_and_the_first_event(open_stream, publish):
    """A browser that loses its connection before the first event still knows where its stream began."""
    with open_stream(headers=SERVER_SENT) as open_low_level_stream:
        (opening,) = parse_blocks(open_low_level_stream.until(b"\n\n"))
    publish("2", "meanwhile")
    with open_stream("stream_limit=1", headers=SERVER_SENT | {"Last-Event-ID": opening["id"]}) as open_low_level_stream:
        assert b"meanwhile" in open_low_level_stream.rest()


def test_a_keep_alive_is_an_id_without_data(open_stream):
    """An idle stream sends only ids, which pages do not see. (L77)"""
    limits = "batch_flush_timeout=1&stream_keep_alive_limit=1"
    with open_stream(limits, cursors(_0="BEGIN"), headers=SERVER_SENT) as open_low_level_stream:
        _, keep_alive = parse_blocks(open_low_level_stream.rest())
    assert keep_alive == {"id": f'[{{"partition":"0","offset":"{position(-1)}"}}]'}


def test_a_problem_has_its_own_event(api, open_stream, event_type):
    """A Problem that ends a stream early comes as an event with a name."""
    with open_stream("", cursors(_0="BEGIN"), headers=SERVER_SENT) as open_low_level_stream:
        open_low_level_stream.until(b"\n\n")
        assert api.delete(f"/event-types/{event_type}").status_code == 200
        (problem,) = parse_blocks(open_low_level_stream.rest())
    assert problem["event"] == "problem"
    assert orjson.loads(problem["data"])["status"] == 503


def test_a_last_event_id_means_nothing_to_other_streams(open_stream, publish):
    """Streams without server-sent events ignore the header `Last-Event-ID`. (L77)"""
    publish("0", "a")
    with open_stream(
        "stream_limit=1", cursors(_0="BEGIN"), headers={"Last-Event-ID": "garbage"}
    ) as open_low_level_stream:
        assert open_low_level_stream.rest() == batch("0", 0, "a")


def test_a_last_event_id_is_checked_like_cursors(open_stream):
    """An id that cannot be read is refused before the stream begins. (L77)"""
    assert open_stream(headers=SERVER_SENT | {"Last-Event-ID": "garbage"}).status == 400
