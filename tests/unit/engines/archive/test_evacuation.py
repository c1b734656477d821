"""Moving live members out of objects that are partly dead."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from nakadi.engines.archive import member_format, object_keys
from nakadi.engines.archive.evacuation import Evacuation, EvacuationBusy
from nakadi.engines.archive.gzip_format import BadArchive
from nakadi.engines.archive.merging import PartitionBusy, claim_partition
from nakadi.engines.archive.reading import ArchiveReader
from nakadi.engines.archive.segment_cache import SegmentCache
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.archive.sweeping import ArchiveSweep
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import Record, StoredEvent
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment

NOW = datetime.now(UTC)
KEY = "log/ns/shared/2026-11-21/t-1.json.gz"
PLACES = (("a", 0), ("a", 1), ("b", 0))


def event(topic, offset):
    return StoredEvent(offset, Record(b'{"of":"%b %d"}' % (topic.encode(), offset)), NOW)


def add_object(index, store, key, places=PLACES):
    """Add an object with two more events of each of these partitions to the store and to the index."""
    content, members = b"", []
    for topic, partition in places:
        head = index.index_heads([(topic, partition)])[topic, partition]
        first = head.state.next_offset
        member = member_format.pack_member(topic, partition, [event(topic, first), event(topic, first + 1)])
        segment = IndexSegment(
            state_before=IndexingState(next_offset=first),
            offset_count=2,
            first_stored_at=0,
            last_stored_at=1,
            location=ArchiveLocation(key, len(content), len(member)),
        )
        members.append((topic, partition, head, segment))
        content += member
    store.put(key, content)
    for topic, partition, head, segment in members:
        new_head = IndexHead(IndexingState(next_offset=segment.end_offset))
        assert index.advance_head(topic, partition, head.revision, new_head, segment)
    return content


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def index(store):
    index = MemoryLogIndex()
    index.create_topic("a", 2)
    index.create_topic("b", 1)
    add_object(index, store, KEY)
    return index


@pytest.fixture
def evacuation(index, store):
    return Evacuation(index, store)


def rewrite(index, store, topic="a", partition=0):
    """Move the first segment of a partition to a separate object, as an erasure does."""
    [segment] = index.segments_from(topic, partition, 0, 1)
    key = object_keys.new_rewritten_key(segment.location.key, topic, partition, 0)
    content = member_format.pack_member(topic, partition, [event(topic, 0)])
    store.put(key, content)
    written = IndexSegment(
        state_before=segment.state_before,
        offset_count=2,
        first_stored_at=0,
        last_stored_at=1,
        location=ArchiveLocation(key, 0, len(content)),
        event_count=1,
    )
    index.replace_segments(topic, partition, [written], 2)
    return key


def location(index, topic, partition):
    return index.segments_from(topic, partition, 0, 1)[0].location


def offsets(index, store, topic, partition):
    with closing(ArchiveReader(index, SegmentCache(store))) as reader:
        return [each.offset for each in reader.read_slice(topic, partition, 0, 10, 10_000).events]


def test_what_lives_moves_as_it_is(index, store, evacuation):
    """Live members of an object with a dead one move to a new object, byte for byte, and a sweep removes the old
    object."""
    before = {place: store.read_range(location(index, *place)) for place in PLACES[1:]}
    rewrite(index, store)
    assert [(each.stored.key, each.live_bytes) for each in evacuation.partly_dead_objects()] == [
        (KEY, sum(map(len, before.values())))
    ]
    result = evacuation.vacate_partly_dead_objects(NOW)
    assert (result.moved_count, result.problem_by_key) == (1, {})
    assert {place: store.read_range(location(index, *place)) for place in PLACES[1:]} == before
    ArchiveSweep(index, store).run(datetime.now(UTC) + timedelta(seconds=1))
    assert KEY not in store.all_keys()
    assert [offsets(index, store, *place) for place in PLACES] == [[0], [0, 1], [0, 1]]
    assert evacuation.partly_dead_objects() == []


@pytest.mark.usefixtures("index")
def test_what_is_whole_stays_where_it_is(store, evacuation):
    """If all members of an object are live, the evacuation does not write another one."""
    keys = store.all_keys()
    assert evacuation.vacate_partly_dead_objects(NOW).moved_count == 0
    assert store.all_keys() == keys


def test_what_retention_and_deletion_leave_is_dead(index, store, evacuation):
    """A member is dead when its events are too old, or when its event type is deleted."""
    index.delete_topic("b")
    assert evacuation.vacate_partly_dead_objects(NOW).moved_count == 1
    index.drop_segments_before("a", 1, 2)
    assert evacuation.vacate_partly_dead_objects(NOW).moved_count == 1
    assert offsets(index, store, "a", 0) == [0, 1]
    assert sum(each.size for each in store.list_objects(location(index, "a", 0).key)) == location(index, "a", 0).length


def test_what_another_process_changed_meanwhile_stays_changed(index, store, evacuation):
    """If a segment was rewritten after it was copied, the copy does not replace it; a deleted topic does not come
    back either.
    """
    rewrite(index, store)
    members = evacuation.members_of([KEY])[KEY]
    own = rewrite(index, store, partition=1)
    index.delete_topic("b")
    evacuation.vacate_object(KEY, members)
    assert location(index, "a", 1).key == own
    assert index.topic("b") is None
    assert index.segments_from("b", 0, 0, 1) == []


def test_what_is_being_rewritten_is_left_for_the_next_time(index, store, evacuation):
    """A partition that another process holds keeps its segments, and a later run moves the rest."""
    rewrite(index, store)
    with claim_partition(index, "b", 0):
        with pytest.raises(PartitionBusy):
            evacuation.vacate_object(KEY, evacuation.members_of([KEY])[KEY])
        evacuation.vacate_partly_dead_objects(NOW)
        assert location(index, "b", 0).key == KEY
    assert evacuation.vacate_partly_dead_objects(NOW).moved_count >= 1
    assert location(index, "b", 0).key != KEY
    assert [offsets(index, store, *place) for place in PLACES] == [[0], [0, 1], [0, 1]]


def test_only_one_process_moves_members(evacuation):
    """A second process notices the first one before it begins, and can begin when the first has ended."""
    with evacuation.claimed(), pytest.raises(EvacuationBusy):
        evacuation.vacate_partly_dead_objects(NOW)
    assert evacuation.vacate_partly_dead_objects(NOW).moved_count == 0


def test_a_damaged_object_stays(index, store, evacuation):
    """An object that cannot be copied is named in the error, and the index still refers to it."""
    rewrite(index, store)
    store.put(KEY, store.content(KEY)[:-3])
    with pytest.raises(BadArchive, match=f"{KEY} has"):
        evacuation.vacate_object(KEY, evacuation.members_of([KEY])[KEY])
    assert location(index, "b", 0).key == KEY


def test_a_young_object_may_be_about_to_be_used(index, store, evacuation):
    """An indexer writes an object before the index refers to it, so a young object does not count as dead."""
    content = member_format.pack_member("a", 0, [event("a", 2), event("a", 3)])
    store.put("log/ns/shared/2026-11-21/t-2.json.gz", content)
    [found] = [each for each in evacuation.partly_dead_objects() if each.stored.key.endswith("t-2.json.gz")]
    assert not evacuation.is_settled(found.stored, NOW)
    assert evacuation.is_settled(found.stored, NOW + timedelta(hours=2))
    add_object(index, store, "log/ns/shared/2026-11-21/t-3.json.gz")
    assert evacuation.is_settled(found.stored, NOW)


def test_a_young_object_of_a_rewriter_may_be_about_to_be_used(index, store, evacuation):
    """While a process rewrites a partition, it may still refer to its new object; once the partition is free, no
    process will.
    """
    store.put("compacted/ns/a/0/000-1.json.gz", member_format.pack_member("a", 0, [event("a", 0)]))
    [found] = evacuation.partly_dead_objects()
    with claim_partition(index, "a", 0):
        assert not evacuation.is_settled(found.stored, NOW)
    assert evacuation.is_settled(found.stored, NOW)


def sweep(evacuation):
    """Sweep all objects, including young ones."""
    return evacuation.sweep(datetime.now(UTC) + timedelta(seconds=1), NOW).removed_count


NEXT_KEY = "log/ns/shared/2026-11-21/t-2.json.gz"


def test_a_sweep_without_grace_leaves_what_is_about_to_be_used(index, store, evacuation):
    """An archiver may refer to an object that it has just written, until another archiver has archived the same
    events."""
    store.put(NEXT_KEY, member_format.pack_member("a", 0, [event("a", 2), event("a", 3)]))
    assert sweep(evacuation) == 0
    assert NEXT_KEY in store.all_keys()

    add_object(index, store, "log/ns/shared/2026-11-21/t-3.json.gz")
    assert sweep(evacuation) == 1
    assert NEXT_KEY not in store.all_keys()


def test_a_sweep_sees_a_reference_that_is_made_while_it_looks(index, store, monkeypatch):
    """If an archiver refers to its object after the sweep has read the references, the object stays."""
    references = index.referenced_archive_keys

    def read_references_then_archive():
        found = references()
        monkeypatch.setattr(index, "referenced_archive_keys", references)
        add_object(index, store, NEXT_KEY, PLACES[:1])
        return found

    store.put(NEXT_KEY, member_format.pack_member("a", 0, [event("a", 2), event("a", 3)]))
    monkeypatch.setattr(index, "referenced_archive_keys", read_references_then_archive)
    assert sweep(Evacuation(index, store, ("ns",))) == 0
    assert offsets(index, store, "a", 0) == [0, 1, 2, 3]


def test_a_sweep_without_grace_leaves_young_objects_while_members_move(store, evacuation):
    """While a process moves members, a sweep leaves its new object, to which the process refers only later, although
    the events in the object are already in the index.
    """
    store.put(NEXT_KEY, member_format.pack_member("a", 0, [event("a", 0)]))
    with evacuation.claimed():
        assert sweep(evacuation) == 0
    assert sweep(evacuation) == 1


def test_a_sweep_without_grace_leaves_what_is_half_written(store, evacuation):
    """A file that cannot be read may still be in the middle of its writing; after an hour it is removed."""
    store.put(NEXT_KEY, b"\x1f\x8b")
    assert sweep(evacuation) == 0
    assert evacuation.sweep(NOW + timedelta(hours=1), NOW + timedelta(hours=3)).removed_count == 1
