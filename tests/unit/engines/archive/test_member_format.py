"""Archive objects as bytes."""

import gzip
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi.engines.archive import gzip_format, member_format
from nakadi.model.authorization import Attribute
from nakadi.model.events import LazyEvents, Record, StoredEvent

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
    """Events are read byte for byte, with offset, time, key, owner and addressee; a tombstone has no event."""
    assert member_format.parse_member(member_format.pack_member("t", 3, EVENTS)) == EVENTS


def test_an_object_is_a_plain_gzip_of_lines():
    """Consecutive members are a file that every tool can read, with one JSON object per line."""
    content = member_format.pack_member("t", 0, EVENTS[:2]) + member_format.pack_member("u", 3, EVENTS[2:4])
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
    """The same events always make the same bytes."""
    assert member_format.pack_member("t", 0, EVENTS) == member_format.pack_member("t", 0, list(EVENTS))


def test_a_member_of_nothing_holds_nothing():
    """If all events of a member were compacted away, the member is empty."""
    assert member_format.parse_member(member_format.pack_member("t", 0, [])) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"{\n"), gzip.compress(b'{"a":1}\n')],
    ids=["nothing", "not gzip", "no JSON", "no event"],
)
def test_damaged_bytes_are_reported(content):
    """Bytes that are not a member never count as an empty member."""
    with pytest.raises(gzip_format.BadArchive):
        member_format.parse_member(content)


@given(
    st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.text(max_size=5)), max_size=9)
)
def test_every_text_survives(texts):
    """Events and keys with any characters are read back as they were written."""
    events = [
        StoredEvent(offset, Record(json.dumps(text, ensure_ascii=False).encode(), key), NOW)
        for offset, (text, key) in enumerate(texts)
    ]
    assert member_format.parse_member(member_format.pack_member("t", 0, events)) == events


def plain_event(offset: int, value: bytes = b"1", second: int = 0) -> StoredEvent:
    return StoredEvent(offset, Record(value), NOW + timedelta(seconds=second))


def test_plain_events_stay_text():
    """Events without a key or other extras are read as lines: consecutive events that were stored at the same time are
    one text."""
    events = [
        plain_event(3, b'{"a":1}'),
        plain_event(4, b"[]"),
        plain_event(5, b"22", 1),
        plain_event(9, b"333", 1),
        plain_event(10, b"4", 1),
    ]
    found = member_format.parse_partition_member(
        member_format.pack_member("t", 0, events[:4]) + member_format.pack_member("t", 0, events[4:]), "t", 0
    )
    assert isinstance(found, LazyEvents)
    assert [(each.first_offset, each.text, each.ends) for each in found.blocks] == [
        (3, b'{"a":1},[]', [7, 10]),
        (5, b"22", [2]),
        (9, b"333", [3]),
        (10, b"4", [1]),
    ]
    assert found == events


@pytest.mark.parametrize("others", [EVENTS, [plain_event(20)]])
def test_events_of_several_members_follow_each_other(others):
    """The events of members that are read as text, and of other members, follow each other in one sequence."""
    events = [plain_event(0), plain_event(1), *others, plain_event(30)]
    content = b"".join(member_format.pack_member("t", 0, part) for part in (events[:2], events[2:-1], events[-1:]))
    assert list(member_format.parse_partition_member(content, "t", 0)) == events


@pytest.mark.parametrize("offsets", [(1, 1), (2, 1), (0, 2, 1)])
def test_offsets_that_do_not_grow_are_damage(offsets):
    """Offsets have to increase within a member, and from one member to the next."""
    whole = member_format.pack_member("t", 0, [plain_event(each) for each in offsets])
    apart = b"".join(member_format.pack_member("t", 0, [plain_event(each)]) for each in offsets)
    for content in (whole, apart):
        with pytest.raises(gzip_format.BadArchive):
            member_format.parse_partition_member(content, "t", 0)
