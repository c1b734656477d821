"""The promises of every log index: the sentences of `nakadi.ports.log_index.LogIndex`, one by one."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.log_index import (
    NOTHING_INDEXED,
    ArchiveLocation,
    IndexHead,
    IndexingState,
    IndexSegment,
    RecordPosition,
    ShardProgress,
    Topic,
    UnfinishedAppendPart,
)
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import TOPICS_KIND, LogIndex
from nakadi.ports.registry import change_bucket
from tests.support.closed import assert_everything_is_refused
from tests.support.engines import LOG_INDEXES, a_log_index

FAR = 49_680_428_583_838_224_135_213_308_197_180_834_060_155_561_081_628_000_274
"""A sequence number as the real service gives them."""


@pytest.fixture(params=LOG_INDEXES)
def index(request, tmp_path):
    with a_log_index(LOG_INDEXES[request.param], tmp_path) as opened:
        yield opened


def a_segment(first: int, count: int = 10, archived: str | None = "object") -> IndexSegment:
    return IndexSegment(
        state_before=IndexingState(
            last_position=RecordPosition("shard-0", FAR + first), next_offset=first, latest_stored_at=first
        ),
        offset_count=count,
        first_stored_at=first,
        last_stored_at=first + count,
        location=ArchiveLocation(archived, first, count) if archived else None,
        event_count=count if first else None,
    )


def add_segments(index: LogIndex, topic: str, counts: list[int], partition: int = 0) -> list[IndexSegment]:
    """Add consecutive segments with these numbers of events, and return them."""
    added = []
    for revision, count in enumerate(counts):
        segment = a_segment(sum(counts[:revision]), count)
        head = IndexHead(IndexingState(next_offset=segment.end_offset))
        assert index.advance_head(topic, partition, revision, head, segment)
        added.append(segment)
    return added


def add_three_segments(index: LogIndex) -> None:
    """Add segments to the first partition of the topic `t`, in the objects `t0`, `t1` and `t2`."""
    for revision in range(3):
        head = IndexHead(IndexingState(next_offset=10))
        index.advance_head("t", 0, revision, head, a_segment(revision * 10, archived=f"t{revision}"))


class TestIdentity:
    def test_is_its_own(self, index: LogIndex):
        """An index has a name that never changes, and is short enough for the name of an archive object."""
        assert index.identity() == index.identity()
        assert 8 <= len(index.identity()) <= 64

    def test_is_shared_by_no_one(self):
        """Two indexes never have the same name."""
        assert MemoryLogIndex().identity() != MemoryLogIndex().identity()


class TestTopics:
    def test_are_listed(self, index: LogIndex):
        """The list has every topic that was created and has not been deleted."""
        assert index.topic_names() == []
        for topic in ("b", "a", "c"):
            index.create_topic(topic, 2)
        index.drop_segments_before("a", 1, 7)
        index.delete_topic("c")
        assert sorted(index.topic_names()) == ["a", "b"]

    def test_are_what_they_were_made(self, index: LogIndex):
        """A topic has the partitions with which it was created; creating it again changes nothing."""
        assert index.topic("t") is None
        index.create_topic("t", 3)
        index.create_topic("t", 5)
        assert index.topic("t") == Topic(partitions=3)

    def test_grow_and_never_shrink(self, index: LogIndex):
        """The number of a topic's partitions can grow, but never shrinks."""
        index.create_topic("t", 3)
        index.grow_topic("t", 5)
        index.grow_topic("t", 2)
        assert index.topic("t") == Topic(partitions=5)

    def test_are_sealed_for_ever(self, index: LogIndex):
        """A sealed topic stays sealed when other facts about it are stored."""
        index.create_topic("t", 1)
        index.seal_topic("t")
        index.grow_topic("t", 2)
        assert index.topic("t") == Topic(partitions=2, sealed=True)

    @pytest.mark.parametrize(
        "change",
        [
            lambda index: index.grow_topic("t", 2),
            lambda index: index.seal_topic("t"),
            lambda index: index.drop_segments_before("t", 0, 1),
            lambda index: index.set_compacted_until("t", 0, 1),
        ],
    )
    def test_that_are_unknown_cannot_be_changed(self, index: LogIndex, change):
        """The index refuses to store facts about an unknown topic."""
        with pytest.raises(UnknownTopic):
            change(index)
        assert index.topic("t") is None

    def test_that_are_deleted_leave_nothing(self, index: LogIndex):
        """Heads and segments are deleted with their topic, but nothing of other topics; deleting again changes
        nothing."""
        for topic in ("t", "other"):
            index.create_topic(topic, 2)
            add_segments(index, topic, [10, 10])
        index.delete_topic("t")
        index.delete_topic("t")
        assert index.topic("t") is None
        assert index.index_heads([("t", 0)]) == {("t", 0): IndexHead()}
        assert index.segment_at_or_before("t", 0, 100) is None
        assert index.segment_at_or_before("other", 0, 15) == a_segment(10)

    def test_changed_by_many_at_once_keep_every_change(self, index: LogIndex):
        """If many processes change different things about a topic at once, all succeed."""
        index.create_topic("t", 8)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda partition: index.drop_segments_before("t", partition, 1 + partition), range(8)))
        found = index.topic("t")
        assert found is not None
        assert found.oldest == {partition: 1 + partition for partition in range(8)}


class TestChanges:
    @pytest.mark.parametrize(
        "change",
        [
            lambda index: index.seal_topic("t"),
            lambda index: index.create_next_topic("t", "t~2", []),
            lambda index: index.delete_topic("t"),
        ],
    )
    def test_that_end_a_lease_are_counted(self, index: LogIndex, change):
        """The change number of a topic grows when it is sealed, when it is continued, and when it is deleted."""
        index.create_topic("t", 1)
        before = index.change_counters().count_of_bucket(change_bucket(TOPICS_KIND, "t"))
        change(index)
        assert index.change_counters().count_of_bucket(change_bucket(TOPICS_KIND, "t")) > before

    def test_that_are_made_often_are_not_counted(self, index: LogIndex):
        """The change numbers do not grow when the indexer or housekeeping stores progress, so no cached topic has to be
        read again.
        """
        before = index.change_counters()
        index.create_topic("t", 1)
        add_segments(index, "t", [10])
        index.drop_segments_before("t", 0, 5)
        index.set_compacted_until("t", 0, 5)
        index.advance_shard_progress("stream", "shard", ShardProgress(7))
        assert index.change_counters() == before


class TestContinuedTopics:
    def test_are_continued_by_one_that_is_like_them(self, index: LogIndex):
        """The topic that continues another one has the same partitions, and is open if the other is open; each refers
        to the other. Continuing again changes nothing."""
        index.create_topic("t", 3)
        index.seal_topic("t")
        for _ in range(2):
            index.create_next_topic("t", "t~2", ["a gap"])
        assert index.topic("t") == Topic(partitions=3, sealed=True, continued_in="t~2")
        assert index.topic("t~2") == Topic(partitions=3, sealed=True, continues="t", begun_after_gaps=("a gap",))
        assert index.topic_names() == ["t", "t~2"]
        with pytest.raises(UnknownTopic):
            index.create_next_topic("missing", "missing~2", [])

    def test_leave_a_signpost_when_they_are_deleted_first(self, index: LogIndex):
        """A deleted topic that another topic continues keeps its references to the topics before and after it, until
        the last topic of the chain is deleted.
        """
        for name, following in [("t", "t~2"), ("t~2", "t~3")]:
            index.create_topic(name, 2)
            index.advance_head(name, 0, 0, IndexHead(IndexingState(next_offset=4)), a_segment(0, 4))
            index.create_next_topic(name, following, [])
        for _ in range(2):
            index.delete_topic("t")
            index.delete_topic("t~2")
        assert index.topic("t") == Topic(partitions=0, continued_in="t~2")
        assert index.topic("t~2") == Topic(partitions=0, continues="t", continued_in="t~3")
        assert index.topic_names() == ["t~3"]
        assert index.index_heads([("t", 0)]) == {("t", 0): IndexHead()}
        assert index.segments_from("t", 0, 0, 10) == []
        assert index.referenced_archive_keys() == set()
        index.delete_topic("t~3")
        assert [index.topic(name) for name in ("t", "t~2", "t~3")] == [None, None, None]

    def test_are_gone_when_they_are_deleted_last(self, index: LogIndex):
        """If no other topic continues it, a deleted topic leaves nothing behind."""
        index.create_topic("t", 2)
        index.create_next_topic("t", "t~2", [])
        index.delete_topic("t~2")
        index.delete_topic("t")
        assert index.topic("t") is None


class TestHeads:
    def test_heads_of_uncounted_partitions_are_empty(self, index: LogIndex):
        """The head of a partition of which nothing is indexed is at zero."""
        assert index.index_heads([]) == {}
        assert index.index_heads([("t", 0)]) == {("t", 0): IndexHead(NOTHING_INDEXED, 0)}

    def test_are_kept_to_the_digit(self, index: LogIndex):
        """All values on which counting depends are read as they were written, including long sequence numbers and open
        parts."""
        counted = IndexingState(
            last_position=RecordPosition("shard-1", FAR),
            next_offset=12,
            latest_stored_at=1_795_262_400_000_000,
            sealed_at=RecordPosition("shard-0", FAR - 1),
            unfinished_parts=(
                UnfinishedAppendPart(b"\x00\xff345678", 2, RecordPosition("shard-1", FAR - 2), 1_795_262_400_000),
            ),
        )
        assert index.advance_head("t", 3, 0, IndexHead(counted), replace(a_segment(0), state_before=counted))
        assert index.index_heads([("t", 3), ("t", 0)]) == {("t", 3): IndexHead(counted, 1), ("t", 0): IndexHead()}
        segment = index.segment_at_or_before("t", 3, 12)
        assert segment is not None
        assert segment.state_before == counted

    def test_heads_of_more_than_a_hundred_partitions_are_found(self, index: LogIndex):
        """Any number of heads can be read at once."""
        for partition in range(0, 130, 10):
            index.advance_head("t", partition, 0, IndexHead(IndexingState(next_offset=partition)), None)
        found = index.index_heads([("t", partition) for partition in range(130)])
        assert [found["t", partition].state.next_offset for partition in range(130)] == [
            partition if partition % 10 == 0 else 0 for partition in range(130)
        ]

    def test_move_on_only_from_where_they_were(self, index: LogIndex):
        """A process that starts from a head that has moved meanwhile changes nothing, and adds no segment."""
        assert index.advance_head("t", 0, 0, IndexHead(IndexingState(next_offset=10)), a_segment(0))
        assert not index.advance_head("t", 0, 0, IndexHead(IndexingState(next_offset=99)), a_segment(50))
        assert not index.advance_head("t", 0, 7, IndexHead(IndexingState(next_offset=99)), None)
        assert index.index_heads([("t", 0)])["t", 0] == IndexHead(IndexingState(next_offset=10), 1)
        assert index.segments_from("t", 0, 0, 10) == [a_segment(0)]

    def test_moved_by_many_at_once_move_once(self, index: LogIndex):
        """If several processes start from the same head, exactly one succeeds."""
        with ThreadPoolExecutor(6) as threads:
            won = list(
                threads.map(
                    lambda n: index.advance_head("t", 0, 0, IndexHead(IndexingState(next_offset=n)), a_segment(0, n)),
                    range(1, 7),
                )
            )
        assert won.count(True) == 1
        winner = 1 + won.index(True)
        assert index.index_heads([("t", 0)])["t", 0].state.next_offset == winner
        assert index.segments_from("t", 0, 0, 10) == [a_segment(0, winner)]


class TestSegments:
    def test_are_found_by_any_offset_in_them(self, index: LogIndex):
        """The segment with an offset is the last one that begins at or before it."""
        first, second, third = add_segments(index, "t", [10, 1, 89])
        add_segments(index, "t", [1000], partition=1)
        add_segments(index, "t1", [1000])
        assert [index.segment_at_or_before("t", 0, offset) for offset in (0, 9, 10, 11, 99)] == [
            first,
            first,
            second,
            third,
            third,
        ]

    def test_are_listed_in_their_order(self, index: LogIndex):
        """The segments that begin at or after an offset are listed in order, up to a maximum number."""
        added = add_segments(index, "t", [10, 1, 89, 5])
        assert index.segments_from("t", 0, 0, 10) == added
        assert index.segments_from("t", 0, 1, 2) == added[1:3]
        assert index.segments_from("t", 0, 101, 2) == []

    def test_are_replaced_by_fewer(self, index: LogIndex):
        """Segments can be replaced by others that cover the same offsets; later segments stay."""
        add_segments(index, "t", [10, 10, 10, 10])
        merged = [a_segment(10, 20, "new")]
        index.replace_segments("t", 0, merged, 30)
        assert index.segments_from("t", 0, 0, 10) == [a_segment(0), *merged, a_segment(30)]
        index.replace_segments("t", 0, [a_segment(0, 40, "newer")], 40)
        assert index.segments_from("t", 0, 0, 10) == [a_segment(0, 40, "newer")]

    def test_before_the_low_water_mark_are_dropped(self, index: LogIndex):
        """`drop_before` drops segments that lie entirely before the mark, returns the locations of their events, and
        never moves back."""
        index.create_topic("t", 1)
        add_segments(index, "t", [10, 10, 10])
        assert index.drop_segments_before("t", 0, 15) == [ArchiveLocation("object", 0, 10)]
        assert index.drop_segments_before("t", 0, 3) == []
        found = index.topic("t")
        assert found is not None
        assert found.oldest == {0: 15}
        assert index.segments_from("t", 0, 0, 10) == [a_segment(10), a_segment(20)]

    def test_that_are_compacted_are_noted(self, index: LogIndex):
        """The offset up to which a partition is compacted only ever grows."""
        index.create_topic("t", 2)
        index.set_compacted_until("t", 1, 20)
        index.set_compacted_until("t", 1, 10)
        found = index.topic("t")
        assert found is not None
        assert found.compacted == {1: 20}


class TestReferences:
    def test_are_the_objects_of_all_segments(self, index: LogIndex):
        """The index lists every archive object with a segment of a topic as referred to, however many segments the
        object has.
        """
        assert list(index.referenced_archive_keys()) == []
        for topic in ("t", "other"):
            index.create_topic(topic, 2)
        add_three_segments(index)
        index.advance_head("t", 0, 3, IndexHead(IndexingState(next_offset=40)), a_segment(30, archived=None))
        index.advance_head("other", 1, 0, IndexHead(IndexingState(next_offset=10)), a_segment(0, archived="t2"))
        index.advance_head("other", 0, 0, IndexHead(IndexingState(next_offset=10)), a_segment(0, archived="other"))
        assert set(index.referenced_archive_keys()) == {"t0", "t1", "t2", "other"}

    def test_end_with_the_segment(self, index: LogIndex):
        """The index no longer lists an archive object as referred to once its segments are replaced, removed or
        deleted.
        """
        for topic in ("t", "other"):
            index.create_topic(topic, 1)
        add_three_segments(index)
        index.advance_head("other", 0, 0, IndexHead(IndexingState(next_offset=10)), a_segment(0, archived="other"))
        index.drop_segments_before("t", 0, 10)
        index.replace_segments("t", 0, [a_segment(10, 20, "new")], 30)
        assert set(index.referenced_archive_keys()) == {"new", "other"}
        index.delete_topic("t")
        assert set(index.referenced_archive_keys()) == {"other"}

    def test_references_of_a_deleted_topic_do_not_count(self, index: LogIndex):
        """If segments are added to a topic while it is deleted, the index does not list their objects as
        referred to.
        """
        index.advance_head("gone", 0, 0, IndexHead(IndexingState(next_offset=10)), a_segment(0, archived="orphan"))
        assert list(index.referenced_archive_keys()) == []


class TestClaims:
    def test_have_one_owner(self, index: LogIndex):
        """A claimed name has one owner at a time, who may claim it again, and may release it."""
        assert index.claim("n", "ann", 60)
        assert not index.claim("n", "bob", 60)
        assert index.claim("n", "ann", 60)
        index.release_claim("n", "bob")
        assert not index.claim("n", "bob", 60)
        index.release_claim("n", "ann")
        index.release_claim("n", "ann")
        assert index.claim("n", "bob", 60)
        assert index.claim("another", "ann", 60)

    def test_end_with_their_time(self, index: LogIndex):
        """An owner that never comes back does not keep a name for ever."""
        assert index.claim("n", "ann", -1)
        assert index.claim("n", "bob", 60)

    def test_that_go_on_for_ever_do_not_count(self, index: LogIndex):
        """A claim that lasts longer than possible, because a clock was set back, counts as expired."""
        assert index.claim("n", "ann", 4000)
        assert index.claim("n", "bob", 60)
        assert not index.claim("n", "ann", 60)


class TestProgress:
    def test_is_kept_per_shard_and_only_grows(self, index: LogIndex):
        """Each shard's progress is the greatest that was ever noted, however many digits it has."""
        assert index.shard_progresses("s") == {}
        index.advance_shard_progress("s", "shard-0", ShardProgress(9, complete_until=99))
        index.advance_shard_progress("s", "shard-0", ShardProgress(FAR, complete_until=1))
        index.advance_shard_progress("s", "shard-0", ShardProgress(10, ended=True, complete_until=100))
        index.advance_shard_progress("s", "shard-1", ShardProgress(7, complete_until=1))
        index.advance_shard_progress("s", "shard-1", ShardProgress(7, complete_until=3))
        index.advance_shard_progress("s", "shard-1", ShardProgress(7, complete_until=2))
        index.advance_shard_progress("s", "shard-2", ShardProgress(0, ended=True, complete_until=1))
        index.advance_shard_progress("s", "shard-2", ShardProgress(0, complete_until=2))
        index.advance_shard_progress("other", "shard-0", ShardProgress(1, complete_until=1))
        assert index.shard_progresses("s") == {
            "shard-0": ShardProgress(FAR, complete_until=1),
            "shard-1": ShardProgress(7, complete_until=3),
            "shard-2": ShardProgress(0, ended=True, complete_until=1),
        }


class TestClose:
    def test_refuses_what_comes_later(self, index: LogIndex):
        """After closing, calls fail; closing again changes nothing."""
        index.create_topic("t", 1)
        [segment] = add_segments(index, "t", [10])
        index.close()
        index.close()
        attempts = {
            "identity": index.identity,
            "create_topic": lambda: index.create_topic("u", 1),
            "topic": lambda: index.topic("t"),
            "topic_names": index.topic_names,
            "grow_topic": lambda: index.grow_topic("t", 2),
            "seal_topic": lambda: index.seal_topic("t"),
            "delete_topic": lambda: index.delete_topic("t"),
            "change_counters": index.change_counters,
            "create_next_topic": lambda: index.create_next_topic("t", "t~2", []),
            "index_heads": lambda: index.index_heads([("t", 0)]),
            "advance_head": lambda: index.advance_head("t", 0, 1, IndexHead(), None),
            "segment_at_or_before": lambda: index.segment_at_or_before("t", 0, 1),
            "segments_from": lambda: index.segments_from("t", 0, 0, 10),
            "replace_segments": lambda: index.replace_segments("t", 0, [segment], 10),
            "drop_segments_before": lambda: index.drop_segments_before("t", 0, 1),
            "set_compacted_until": lambda: index.set_compacted_until("t", 0, 1),
            "referenced_archive_keys": index.referenced_archive_keys,
            "claim": lambda: index.claim("name", "me", 1.0),
            "release_claim": lambda: index.release_claim("name", "me"),
            "shard_progresses": lambda: index.shard_progresses("stream"),
            "advance_shard_progress": lambda: index.advance_shard_progress("stream", "shard", ShardProgress(1)),
        }
        assert_everything_is_refused(LogIndex, attempts)
