"""The bytes of a stream in each format."""

import orjson
import pytest

from nakadi.model.event_type import Position
from nakadi.streaming.formats import EventStreamFormat, JsonStreamFormat
from nakadi.streaming.session import SendEvents, SendStreamKeepAlive, parse_cursors_header
from tests.support.chunks import a_chunk, some_events

STARTS = {"0": Position(1, -1), "1": Position(2, 6)}


def a_batch() -> SendEvents:
    first, _ = a_chunk('a"\\u00e4', "b").run_from_offset(0).split(1)
    return SendEvents("0", Position(1, 12), (first, some_events(2, start=11)))


def test_a_batch_is_one_line():
    """The cursor comes first, then the events as they were stored; without spaces, and with a line break at the end.
    (L41, L46, L58a)"""
    line = JsonStreamFormat().encode_batch(a_batch())
    assert line == (
        b'{"cursor":{"partition":"0","offset":"001-0001-000000000000000012"},"events":["a"\\u00e4",11,12]}\n'
    )


@pytest.mark.parametrize(
    ("position", "offset"),
    [
        (Position(1, -1), b"001-0001--1"),
        (Position(1, 0), b"001-0001-000000000000000000"),
        (Position(31, 123), b"001-001f-000000000000000123"),
    ],
)
def test_a_keep_alive_is_a_cursor_alone(position, offset):
    """A keep-alive has no events, not even an empty list; the offset is in the new format. (L42, L43, L44, L46)"""
    line = JsonStreamFormat().encode_keep_alive(SendStreamKeepAlive("7", position))
    assert line == b'{"cursor":{"partition":"7","offset":"' + offset + b'"}}\n'


def test_json_lines_need_no_words_around_them():
    """Nothing comes before the first line of a stream, and a Problem is a line like any other. (L60)"""
    lines = JsonStreamFormat()
    assert lines.stream_opening() == b""
    assert lines.encode_problem(b'{"status":403}') == b'{"status":403}\n'


def test_server_sent_events_begin_with_where_they_are():
    """Server-sent events begin with an id that has the position of every partition, so a browser knows where to
    continue.
    """
    opening = EventStreamFormat(STARTS).stream_opening()
    assert opening == (
        b"retry: 3000\n"
        b'id: [{"partition":"0","offset":"001-0001--1"},{"partition":"1","offset":"001-0002-000000000000000006"}]\n\n'
    )


def test_a_batch_is_one_server_sent_event():
    """The data of a server-sent event are the batch as in a line of JSON; its id is the position of the whole stream
    after the batch.
    """
    lines = EventStreamFormat(STARTS)
    ident, data, *rest = lines.encode_batch(a_batch()).split(b"\n")
    assert rest == [b"", b""]
    assert data == b"data: " + JsonStreamFormat().encode_batch(a_batch()).rstrip()
    places = {cursor.partition: cursor.offset for cursor in parse_cursors_header(ident.removeprefix(b"id: ").decode())}
    assert places == {"0": "001-0001-000000000000000012", "1": "001-0002-000000000000000006"}


def test_a_server_sent_keep_alive_has_an_id_and_no_data():
    """A browser stores the id of a keep-alive, and does not show the keep-alive to the page."""
    block = EventStreamFormat({"0": Position(1, 3)}).encode_keep_alive(SendStreamKeepAlive("0", Position(1, 4)))
    assert block == b'id: [{"partition":"0","offset":"001-0001-000000000000000004"}]\n\n'


def test_a_server_sent_problem_has_a_name():
    """A Problem has an event name, so a page can distinguish it from a batch."""
    block = EventStreamFormat(STARTS).encode_problem(orjson.dumps({"status": 403}))
    assert block == b'event: problem\ndata: {"status":403}\n\n'
