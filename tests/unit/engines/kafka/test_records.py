"""The format of events in Kafka."""

from datetime import UTC, datetime, timedelta

import pytest

from nakadi.engines.kafka.records import (
    EPOCH,
    SEAL_MARKER,
    event_from_message,
    events_from_messages,
    max_record_bytes,
    record_headers,
    to_milliseconds,
)
from nakadi.model.authorization import Attribute
from nakadi.model.events import LazyEvents, Record

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Message:
    """A record in the form of Kafka's client library."""

    def __init__(self, value=b"{}", key=None, headers=None, offset=7, milliseconds=0):
        self._parts = {"value": value, "key": key, "headers": headers, "offset": offset}
        self._milliseconds = milliseconds

    def __getattr__(self, name):
        return lambda: self._parts[name]

    def timestamp(self):
        return 1, self._milliseconds


@pytest.mark.parametrize(
    "record",
    [
        Record(b'{"name":"\xc3\xa9"}', "k\u00e9y", Attribute("team", "shop"), "subscription"),
        Record(b"1"),
        Record(None, "gone"),
        Record(b"[]", ""),
        Record(b"2", None, None, ""),
        Record(b"3", None, Attribute("", "")),
        SEAL_MARKER,
    ],
)
def test_a_record_is_read_as_it_was_written(record):
    """The value, the key, the owner and the subscription are read as written, even if they are empty or missing."""
    key = None if record.key is None else record.key.encode()

    assert event_from_message(Message(record.value, key, record_headers(record) or None)).record == record


def test_headers_of_others_are_left_alone():
    """Only headers that the original Nakadi uses have a meaning; of two headers with the same name, the last one
    counts."""
    headers = [("trace", b"\xff"), ("X-AuthParam-Name", b"team"), ("CONSUMER_SUBSCRIPTION_ID", b"a")]
    headers += [("CONSUMER_SUBSCRIPTION_ID", b"b"), ("empty", None)]

    assert event_from_message(Message(headers=headers)).record == Record(b"{}", None, None, "b")


def test_an_event_has_its_offset_and_time():
    """An event has its offset from Kafka, and its time from Kafka in milliseconds."""
    event = event_from_message(Message(offset=12, milliseconds=to_milliseconds(NOON)))

    assert (event.offset, event.stored_at) == (12, NOON)


@pytest.mark.parametrize(("microseconds", "later"), [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)])
def test_times_are_rounded_up(microseconds, later):
    """A time becomes the first millisecond that is not before it, so no event seems older than it is."""
    moment = NOON + timedelta(microseconds=microseconds)

    assert to_milliseconds(moment) - to_milliseconds(NOON) == later
    assert EPOCH + timedelta(milliseconds=to_milliseconds(moment)) >= moment


def test_the_size_of_a_record_covers_all_of_it():
    """A batch is filled by the sizes of its records, which include the names and values of headers, and text in
    UTF-8."""
    plain = Record(b"x" * 100)
    owned = Record(b"x" * 100, "\u20ac" * 10, Attribute("team", "shop"), "subscription")

    assert max_record_bytes(plain) > 100
    assert max_record_bytes(owned) - max_record_bytes(plain) >= 30 + sum(
        len(name) + len(value) for name, value in record_headers(owned)
    )


def test_plain_events_are_read_as_text():
    """Consecutive events of one time are one block; a gap between offsets or another time begins another block."""
    messages = [
        Message(b"1", offset=3, milliseconds=5),
        Message(b"22", offset=4, milliseconds=5),
        Message(b"3", offset=6, milliseconds=5),
        Message(b"4", offset=7, milliseconds=6),
    ]

    found = events_from_messages(messages)

    assert isinstance(found, LazyEvents)
    assert [(each.first_offset, each.text) for each in found.blocks] == [(3, b"1,22"), (6, b"3"), (7, b"4")]
    assert found == tuple(map(event_from_message, messages))


@pytest.mark.parametrize(
    "other",
    [
        Message(None, offset=8),
        Message(key=b"k", offset=8),
        Message(key=b"", offset=8),
        Message(headers=[("X-AuthParam-Name", b"team"), ("X-AuthParam-Value", b"shop")], offset=8),
        Message(b'{\n"a":1}', offset=8),
    ],
    ids=["tombstone", "key", "empty key", "owner", "line break"],
)
def test_an_event_with_more_than_a_line_of_text_is_read_by_itself(other):
    """A record with more than one line of text is read completely, and its neighbours are unchanged."""
    messages = [Message(b"1", offset=7), other, Message(b"2", offset=9)]

    assert events_from_messages(messages) == tuple(map(event_from_message, messages))


def test_what_seals_a_topic_is_no_event():
    """A reader never sees the record after the last event of a topic that was sealed."""
    seal = Message(None, headers=record_headers(SEAL_MARKER), offset=8)

    assert [each.offset for each in events_from_messages([Message(offset=7), seal])] == [7]
    assert not events_from_messages([seal])
