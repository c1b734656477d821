"""Reading segments, some of them ahead of time."""

import threading
from datetime import UTC, datetime

import pytest

from nakadi.archive import members
from nakadi.archive.library import Library, Unreadable
from nakadi.archive.manifest import archived
from nakadi.archive.reading import LARGE, ArchiveReader
from nakadi.archive.stores import MemoryStore
from nakadi.model.events import Record, StoredEvent
from nakadi.model.log_index import Counted, Head, Location, Segment
from nakadi.registries.log_index_memory import MemoryLogIndex
from tests.support.patience import PATIENCE

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def get(self, location: Location) -> bytes:
        self.asked.append(location.key)
        assert self.may_go_on.wait(PATIENCE)
        return super().get(location)


class World:
    def __init__(self, *counts: int) -> None:
        self.store = Counting()
        self.index = MemoryLogIndex()
        self.library = Library(self.store)
        self.reader = ArchiveReader(self.index, self.library)
        first = 0
        for revision, count in enumerate(counts):
            events = [StoredEvent(first + number, Record(b"%d" % number), NOW) for number in range(count)]
            content = members.member("t", 0, events, "order.placed")
            self.store.put(f"object {revision}", content)
            segment = Segment(
                before=Counted(next=first),
                count=count,
                since=0,
                until=0,
                archived=Location(f"object {revision}", 0, len(content)),
                events=count,
            )
            first += count
            assert self.index.extend("t", 0, revision, Head(Counted(next=first)), segment)

    @property
    def segments(self) -> list[Segment]:
        return list(archived(self.index, "t", 0))


@pytest.fixture
def world():
    world = World(3, 3, 3)
    yield world
    world.reader.close()


def test_what_was_read_last_is_not_asked_for_again(world: World):
    """Whoever reads a segment in several slices fetches it once."""
    for start in range(3):
        assert world.reader.slice("t", 0, start, 1, 1000).events[0].offset == start
    assert world.store.asked == ["object 0"]


def test_small_segments_are_read_together(world: World):
    """A slice takes in as many segments as it needs, and ends with what is asked for."""
    assert [event.offset for event in world.reader.slice("t", 0, 1, 7, 1000).events] == list(range(1, 8))
    found = world.reader.slice("t", 0, 0, 100, 5)
    assert [event.offset for event in found.events] == [0, 1, 2, 3, 4]
    assert found.next_offset == 5


def test_nothing_is_made_up_beyond_the_end(world: World):
    """What was never archived is not there, and is not an empty slice."""
    assert world.reader.slice("t", 0, 9, 1, 1000) is None
    assert world.reader.slice("t", 1, 0, 1, 1000) is None
    assert [event.offset for event in world.reader.slice("t", 0, 8, 10, 1000).events] == [8]


def test_what_is_good_in_front_of_damage_is_delivered(world: World):
    """A slice ends in front of a segment that cannot be read; the next one says so."""
    world.store.remove(["object 1"])
    assert [event.offset for event in world.reader.slice("t", 0, 0, 10, 1000).events] == [0, 1, 2]
    with pytest.raises(Unreadable, match="Offsets 3 to 5 of t/0 cannot be read: the archive object object 1"):
        world.reader.slice("t", 0, 3, 10, 1000)


def test_whoever_reads_on_finds_the_next_segment_read_ahead():
    """While a reader is in the middle of a large segment, the next one is fetched, once."""
    world = World(LARGE, LARGE, LARGE)
    world.reader.slice("t", 0, 0, 10, 1000)
    assert world.store.asked == ["object 0"]
    world.store.may_go_on.clear()
    world.reader.slice("t", 0, 10, 10, 1000)
    world.reader.slice("t", 0, 20, 10, 1000)
    world.store.may_go_on.set()
    assert world.reader.slice("t", 0, LARGE, 10, 1000).events[0].offset == LARGE
    assert world.store.asked == ["object 0", "object 1"]
    world.reader.close()


def test_damage_that_is_read_ahead_is_told_when_it_is_asked_for():
    """Reading ahead neither hides damage nor brings it forward."""
    world = World(LARGE, LARGE)
    world.store.remove(["object 1"])
    world.reader.slice("t", 0, 0, 10, 1000)
    world.reader.slice("t", 0, 10, 10, 1000)
    for _ in range(2):
        with pytest.raises(Unreadable, match=f"Offsets {LARGE} to {2 * LARGE - 1}"):
            world.reader.slice("t", 0, LARGE, 10, 1000)
    world.reader.close()


def test_the_manifest_begins_with_the_segment_of_an_offset(world: World):
    """The segments that hold anything from an offset on are told in their order."""
    assert [each.first for each in archived(world.index, "t", 0, 4)] == [3, 6]
    assert [each.first for each in archived(world.index, "t", 0)] == [0, 3, 6]
    assert list(archived(world.index, "t", 0, 9)) == []


def test_members_of_many_events_are_split(monkeypatch):
    """A range may hold several members; their events come back as one, in order, and with whatever each line has."""
    monkeypatch.setattr(members, "MEMBER_BYTES", 200)
    events = [StoredEvent(number, Record(b"%d" % number), NOW) for number in range(50)]
    events += [StoredEvent(50, Record(None, "key"), NOW), StoredEvent(51, Record(b"1", "key"), NOW)]
    packer = members.Packer("t", 0, "order.placed")
    for event in events:
        packer.add([event])
    content = packer.finish()
    assert content.count(b"\x1f\x8b\x08") > 5
    assert list(members.events_of(content, "t", 0)) == list(members.events_in(content)) == events
    for wrong in (("t", 1), ("u", 0)):
        with pytest.raises(members.BadArchive):
            members.events_of(content, *wrong)
    with pytest.raises(members.BadArchive):
        members.events_of(content + content, "t", 0)
