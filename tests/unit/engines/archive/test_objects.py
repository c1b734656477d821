"""Archive objects, as bytes."""

import gzip
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi.engines.archive import objects
from nakadi.model.authorization import Attribute
from nakadi.model.events import Record, StoredEvent

NOW = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)

EVENTS = [
    StoredEvent(7, Record(b'{"name":"\xc3\xa9\\u0000"}', "k1", Attribute("team", "shop"), "subscription"), NOW),
    StoredEvent(8, Record(b"1"), NOW),
    StoredEvent(12, Record(None, "k2"), NOW + timedelta(hours=1)),
    StoredEvent(13, Record(b"[]", ""), NOW + timedelta(hours=1)),
    StoredEvent(14, Record(b"null"), NOW + timedelta(hours=1)),
    StoredEvent(15, Record(None), NOW + timedelta(hours=1)),
]


def test_a_member_holds_events_to_the_byte():
    """Events come back with offset, time, key, owner and addressee; a tombstone has no event."""
    assert objects.events_in(objects.member("t", 3, EVENTS)) == EVENTS


def test_an_object_is_a_plain_gzip_of_lines():
    """Members one behind the other are a file that every tool can read, one JSON object a line."""
    content = objects.member("t", 0, EVENTS[:2]) + objects.member("u", 3, EVENTS[2:4])
    lines = [json.loads(line) for line in gzip.decompress(content).splitlines()]
    assert lines == [
        {
            "topic": "t",
            "partition": 0,
            "offset": 7,
            "time": "2026-11-21T12:00:00.123456Z",
            "key": "k1",
            "owner": ["team", "shop"],
            "directed_to": "subscription",
            "event": {"name": "é\u0000"},
        },
        {"topic": "t", "partition": 0, "offset": 8, "time": "2026-11-21T12:00:00.123456Z", "event": 1},
        {"topic": "u", "partition": 3, "offset": 12, "time": "2026-11-21T13:00:00.123456Z", "key": "k2"},
        {"topic": "u", "partition": 3, "offset": 13, "time": "2026-11-21T13:00:00.123456Z", "key": "", "event": []},
    ]


def test_the_same_events_are_the_same_bytes():
    """Neither time nor chance is in a member."""
    assert objects.member("t", 0, EVENTS) == objects.member("t", 0, list(EVENTS))


def test_a_member_of_nothing_holds_nothing():
    """When everything was compacted away, what is left is empty."""
    assert objects.events_in(objects.member("t", 0, [])) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"{\n"), gzip.compress(b'{"a":1}\n')],
    ids=["nothing", "not gzip", "no JSON", "no event"],
)
def test_damaged_bytes_are_reported(content):
    """What is no member is never taken for an empty one."""
    with pytest.raises(objects.BadArchive):
        objects.events_in(content)


@given(
    st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.text(max_size=5)), max_size=9)
)
def test_every_text_survives(texts):
    """Whatever characters are in events and keys, they come back."""
    events = [
        StoredEvent(offset, Record(json.dumps(text, ensure_ascii=False).encode(), key), NOW)
        for offset, (text, key) in enumerate(texts)
        if key is None or key.isascii()
    ]
    assert objects.events_in(objects.member("t", 0, events)) == events
