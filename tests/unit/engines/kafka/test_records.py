"""The format of events in Kafka."""

from datetime import UTC, datetime, timedelta

import pytest

from nakadi.engines.kafka.records import (
    EPOCH,
    SEAL_MARKER,
    event_from_message,
    max_record_bytes,
    record_headers,
    to_milliseconds,
)
from nakadi.model.authorization import Attribute
from nakadi.model.events import Record

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Message:
    """What the client library hands out for a record."""

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
    """Value, key, owner and subscription come back, each of them also when it is empty or not there."""
    key = None if record.key is None else record.key.encode()

    assert event_from_message(Message(record.value, key, record_headers(record) or None)).record == record


def test_headers_of_others_are_left_alone():
    """Only the headers that the original Nakadi gives a meaning have one; of two with a name the last one counts."""
    headers = [("trace", b"\xff"), ("X-AuthParam-Name", b"team"), ("CONSUMER_SUBSCRIPTION_ID", b"a")]
    headers += [("CONSUMER_SUBSCRIPTION_ID", b"b"), ("empty", None)]

    assert event_from_message(Message(headers=headers)).record == Record(b"{}", None, None, "b")


def test_an_event_has_its_offset_and_time():
    """The offset is Kafka's, the time is Kafka's milliseconds."""
    event = event_from_message(Message(offset=12, milliseconds=to_milliseconds(NOON)))

    assert (event.offset, event.stored_at) == (12, NOON)


@pytest.mark.parametrize(("microseconds", "later"), [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)])
def test_times_are_rounded_up(microseconds, later):
    """A moment becomes the first millisecond that is not before it, so no event seems older than it is."""
    moment = NOON + timedelta(microseconds=microseconds)

    assert to_milliseconds(moment) - to_milliseconds(NOON) == later
    assert EPOCH + timedelta(milliseconds=to_milliseconds(moment)) >= moment


def test_the_size_of_a_record_covers_all_of_it():
    """A batch is filled by the sizes of its records, which count names and values of headers, and text as UTF-8."""
    plain = Record(b"x" * 100)
    owned = Record(b"x" * 100, "\u20ac" * 10, Attribute("team", "shop"), "subscription")

    assert max_record_bytes(plain) > 100
    assert max_record_bytes(owned) - max_record_bytes(plain) >= 30 + sum(
        len(name) + len(value) for name, value in record_headers(owned)
    )
