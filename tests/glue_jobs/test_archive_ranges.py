import pytest
from msgspec.structs import replace

from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment
from nakadi_jobs.archive_ranges import (
    NO_PROGRESS,
    Progress,
    refresh_ranges,
    split_into_batches,
    unblocked_prefixes,
    unread_parts,
    unread_parts_since,
)
from tests.support.builders import an_event_type

EVENT_TYPE = an_event_type(partitions=2)
TOPIC = EVENT_TYPE.timeline.topic


@pytest.fixture
def index():
    made = MemoryLogIndex()
    made.create_topic(TOPIC, 2)
    return made


def add(index, count, *, partition=0, key=None, archived=True):
    """Add a segment with the next events of a partition, in a separate object."""
    head = index.index_heads([(TOPIC, partition)])[TOPIC, partition]
    first = head.state.next_offset
    location = ArchiveLocation(key or f"log/x/{partition}-{first}", 0, 100) if archived else None
    segment = IndexSegment(
        state_before=head.state,
        offset_count=count,
        first_stored_at=first,
        last_stored_at=first + count,
        location=location,
    )
    assert index.advance_head(
        TOPIC,
        partition,
        head.revision,
        IndexHead(IndexingState(next_offset=first + count, latest_stored_at=first + count)),
        segment,
    )
    return segment


def offsets(index, progress=NO_PROGRESS):
    return [(each.partition, each.first, each.end) for each in unread_parts(index, EVENT_TYPE, progress)]


def test_everything_is_to_be_read_at_first(index):
    """For an empty table, all partitions are to be read."""
    add(index, 10)
    add(index, 5)
    add(index, 3, partition=1)

    assert offsets(index) == [(0, 0, 10), (0, 10, 15), (1, 0, 3)]


def test_what_was_read_is_not_read_again(index):
    """After a run, only newer events are to be read, even if objects were merged meanwhile."""
    add(index, 10)
    first = add(index, 5)
    progress = NO_PROGRESS.after_reading(unread_parts(index, EVENT_TYPE, NO_PROGRESS), ())
    add(index, 5)
    assert offsets(index, progress) == [(0, 15, 20)]

    joined = replace(first, offset_count=10, location=ArchiveLocation("log/x/joined", 0, 50))
    index.replace_segments(TOPIC, 0, [joined], 20)

    assert offsets(index, progress) == [(0, 15, 20)]


def test_what_was_released_is_not_looked_for(index):
    """Offsets before the oldest event no longer exist, and are not searched."""
    add(index, 10)
    add(index, 10)
    index.drop_segments_before(TOPIC, 0, 12)
    assert offsets(index) == [(0, 12, 20)]


def test_reading_stops_where_nothing_is_archived(index):
    """The job reads a partition only up to its first events that are not archived, so it skips nothing."""
    add(index, 10)
    add(index, 10, archived=False)
    add(index, 10)
    assert offsets(index) == [(0, 0, 10)]


def test_damaged_parts_are_gaps(index):
    """Every run retries unreadable parts of the archive until it can read them, and still reads the parts
    after them.
    """
    add(index, 10)
    damaged = add(index, 5)
    add(index, 5)
    found = list(unread_parts(index, EVENT_TYPE, NO_PROGRESS))

    progress = NO_PROGRESS.after_reading([found[0], found[2]], [found[1]])

    assert offsets(index, Progress.read(progress.to_text())) == [(0, damaged.first_offset, damaged.end_offset)]
    assert offsets(index, progress.after_reading(unread_parts(index, EVENT_TYPE, progress), ())) == []


def test_what_was_stored_since_a_moment_is_found_without_reading_the_whole_index(index, monkeypatch):
    """The job finds times by bisection, skips partitions without new events, and also searches gaps."""
    segments = [add(index, 10) for _ in range(2000)]
    add(index, 7, partition=1)
    looked_at = []
    segment, several = index.segment_at_or_before, index.segments_from
    monkeypatch.setattr(index, "segment_at_or_before", lambda *place: looked_at.append(place) or segment(*place))
    monkeypatch.setattr(
        index, "segments_from", lambda *place: [looked_at.append(place) or each for each in several(*place)]
    )

    found = list(unread_parts_since(index, EVENT_TYPE, NO_PROGRESS, 19_965))

    assert [(each.partition, each.first) for each in found] == [(0, 19_960), (0, 19_970), (0, 19_980), (0, 19_990)]
    assert len(looked_at) < 30
    assert {partition for _, partition, *_ in looked_at} == {0}

    damaged = next(each for each in unread_parts(index, EVENT_TYPE, NO_PROGRESS) if each.first == 19_970)
    progress = Progress({(TOPIC, 0): 19_990}, {}).after_reading([], [damaged])
    assert [each.first for each in unread_parts_since(index, EVENT_TYPE, progress, 19_965)] == [19_970, 19_990]
    assert list(unread_parts_since(index, EVENT_TYPE, progress, segments[-1].last_stored_at + 1)) == []


def test_a_deleted_topic_has_nothing(index):
    """A deleted topic has nothing to read, and does not make the run fail."""
    add(index, 10)
    index.delete_topic(TOPIC)
    assert offsets(index) == []


def test_the_number_of_events_is_unknown_where_some_were_compacted_away(index):
    """Before the offset up to which a partition is compacted there may be fewer events than offsets."""
    add(index, 10)
    add(index, 10)
    index.set_compacted_until(TOPIC, 0, 10)
    assert [each.events for each in unread_parts(index, EVENT_TYPE, NO_PROGRESS)] == [None, 10]


def test_segments_that_were_written_anew_say_how_many_events_they_have(index):
    """A rewritten segment states its number of events, even in a compacted partition; for a part of a segment, the
    number is unknown.
    """
    first, second = add(index, 10), add(index, 10)
    index.replace_segments(TOPIC, 0, [replace(first, event_count=7)], 10)
    index.replace_segments(TOPIC, 0, [replace(second, event_count=9)], 20)
    index.set_compacted_until(TOPIC, 0, 10)
    assert [each.events for each in unread_parts(index, EVENT_TYPE, NO_PROGRESS)] == [7, 9]

    progress = Progress({(TOPIC, 0): 15}, {})
    assert [each.events for each in unread_parts(index, EVENT_TYPE, progress)] == [None]


def test_batches_go_forward(index):
    """A batch is at most as large as one commit may be, and has the parts of each partition in order."""
    for _ in range(5):
        add(index, 10)
        add(index, 10, partition=1)

    batches = list(split_into_batches(unread_parts(index, EVENT_TYPE, NO_PROGRESS), 300))

    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    firsts = [each.first for batch in batches for each in batch if each.partition == 0]
    assert firsts == sorted(firsts)


def test_nothing_is_passed_over(index):
    """For each partition, only the parts of the archive before the first one that was not chosen are returned."""
    for _ in range(3):
        add(index, 10)
        add(index, 10, partition=1)
    found = list(unread_parts(index, EVENT_TYPE, NO_PROGRESS))
    names = {each.name for each in found if (each.partition, each.first) != (0, 10)}
    assert [(each.partition, each.first) for each in unblocked_prefixes(found, names)] == [
        (0, 0),
        (1, 0),
        (1, 10),
        (1, 20),
    ]


def test_what_was_read_can_be_looked_up_again(index):
    """The job looks up where the parts of a batch are now, and finds parts that were replaced since it read
    the index.
    """
    add(index, 10)
    middle = add(index, 5)
    add(index, 5)
    add(index, 5, partition=1)
    read = [each for each in unread_parts(index, EVENT_TYPE, NO_PROGRESS) if each.first == 10]
    assert list(refresh_ranges(index, EVENT_TYPE, read)) == read

    index.replace_segments(TOPIC, 0, [replace(middle, location=ArchiveLocation("log/x/new", 0, 1))], 15)

    assert [each.location.key for each in refresh_ranges(index, EVENT_TYPE, read)] == ["log/x/new"]
