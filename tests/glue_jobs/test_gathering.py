from collections import Counter

import pytest

from nakadi.engines.archive import member_format
from nakadi.engines.archive.stores import MemoryStore
from nakadi.model.events import Record, StoredEvent
from nakadi.model.log_index import ArchiveLocation
from nakadi_jobs import gathering
from nakadi_jobs.gathering import copy_members, find_problem
from tests.support.builders import A_MOMENT

WHOLE = member_format.pack_member("t", 0, [StoredEvent(0, Record(b'{"a":"' + b"x" * 5_000_000 + b'"}'), A_MOMENT)])


def test_a_whole_member_has_no_problem():
    """A member with the right length and checksum has no problem."""
    assert find_problem(WHOLE, len(WHOLE)) == ""
    assert find_problem(WHOLE + WHOLE, 2 * len(WHOLE)) == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (WHOLE[:-9], "cut off"),
        (WHOLE[:-6] + b"\x00\x00" + WHOLE[-4:], "damaged"),
        (b"no gzip" + WHOLE[7:], "damaged"),
        (WHOLE[:20] + bytes(len(WHOLE) - 20), "damaged"),
    ],
)
def test_what_is_wrong_is_reported(content, problem):
    """A member that is truncated, changed, or not gzip yields no events."""
    assert problem in find_problem(content, len(WHOLE))


class CountingStore(MemoryStore):
    """An archive that counts the reads of each object, and their bytes."""

    def __init__(self):
        super().__init__()
        self.reads = Counter()
        self.bytes = Counter()

    def read_range(self, location):
        self.reads[location.key] += 1
        self.bytes[location.key] += location.length
        return super().read_range(location)


def a_member(topic, offset, size=10):
    text = b'{"a":"%b"}' % (b"x" * size)
    return member_format.pack_member(topic, 0, [StoredEvent(offset, Record(text), A_MOMENT)])


def an_object(store, key, topics, offset):
    """Create an object with a member for each topic, and return the members' places."""
    content, members = b"", []
    for topic in topics:
        packed = a_member(topic, offset)
        members.append((ArchiveLocation(key, len(content), len(packed)), topic))
        content += packed
    store.put(key, content)
    return members


def test_a_shared_object_is_read_once_for_all_event_types(monkeypatch):
    """Members of many topics are copied to separate objects with one read of each object, whole and in order."""
    monkeypatch.setattr(gathering, "GATHERED_BYTES", 400)
    store, to = CountingStore(), MemoryStore()
    topics = [f"t{number}" for number in range(5)]
    wanted = [an_object(store, f"o{number}", topics, number) for number in range(8)]

    made = list(copy_members(store, to, "run-0", wanted))

    assert store.reads == {f"o{number}": 1 for number in range(8)}
    for topic in topics:
        of_topic = [each for each in made if each.topic == topic]
        texts = [to.content(each.name) for each in of_topic]
        assert [event.offset for text in texts for event in member_format.parse_member(text)] == list(range(8))
        assert all(each.name.startswith(f"{topic}/run-0-") for each in of_topic)
    assert len({each.name for each in made}) == len(made) > len(topics)


def test_what_lies_between_members_is_left_out_if_it_is_much(monkeypatch):
    """Members that are far apart are read separately; damaged or lost ones are named."""
    monkeypatch.setattr(gathering, "MAX_SKIPPED_BYTES", 50)
    store = CountingStore()
    members = an_object(store, "o", ["a", *["other"] * 3, "a", "b"], 7)
    damaged = bytearray(store.content("o"))
    damaged[members[5][0].start + 15] ^= 255
    store.put("o", bytes(damaged))
    lost = (ArchiveLocation("gone", 5, 10), "a")

    made = list(copy_members(store, MemoryStore(), "run-0", [[members[0], members[4], members[5]], [lost]]))

    assert store.reads == {"o": 2, "gone": 1}
    assert store.bytes["o"] == sum(location.length for location, topic in members if topic != "other")
    problems = {each.name: each.problem for each in made if each.problem}
    assert list(problems) == [f"o@{members[5][0].start}", "gone@5"]
    assert problems["gone@5"] == "is not there"
    assert [each.topic for each in made if not each.problem] == ["a"]
