"""The log index: topics, up to which offset their partitions are indexed, and where the archive keeps their events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from nakadi.model.events import TopicPartition
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexSegment, ShardProgress, Topic
from nakadi.ports.registry import ChangeCounters

TOPICS_KIND = "topics"
"""The kind under which `LogIndex.change_counters` counts changes of topics."""


class LogIndex(Protocol):
    """Topics, up to which offset their partitions are indexed, and where the archive keeps their events.

    It serves logs that do not number events themselves, and the cold half of logs that do.

    * Every write is durable when it returns, and every later read by any process sees it.
    * `advance_head` is one atomic step: of several writers that continue from the same head, exactly one succeeds. So
      the segments of a partition follow each other without a gap, and none occurs twice.
    * Low-water marks and a shard's progress only ever grow.
    """

    def identity(self) -> str:
        """A name that no other index has, and that stays the same for the life of this index."""

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic. A repeated call changes nothing."""

    def topic(self, topic: str) -> Topic | None:
        """The topic; None if it was never created, or is deleted."""

    def topic_names(self) -> Sequence[str]:
        """All topics. Topics that are created or deleted meanwhile may be missing."""

    def grow_topic(self, topic: str, partitions: int) -> None:
        """Ensure that the topic has this number of partitions. Raises `UnknownTopic`."""

    def seal_topic(self, topic: str) -> None:
        """Note that the topic accepts no more events. Raises `UnknownTopic`."""

    def create_next_topic(self, topic: str, next_topic: str, begun_after_gaps: Sequence[str]) -> None:
        """Let `next_topic` continue the topic: it has as many partitions, and is sealed if the topic is. A repeated
        call changes nothing. Raises `UnknownTopic`.
        """

    def delete_topic(self, topic: str) -> None:
        """Delete the topic at once, then everything about its partitions. Repeating it finishes an interrupted
        deletion.

        If an existing topic continues the deleted one, `topic` returns a placeholder without partitions until the
        continuing topic is deleted.
        """

    def change_counters(self) -> ChangeCounters:
        """Numbers of changes, as in `Registry.change_counters`, which grow in the same atomic step in which a topic is
        sealed, continued or deleted.

        The kind is `TOPICS_KIND`, the key the topic's name. If registry and index share a store, they share the
        numbers, and each of them returns all.
        """

    def index_heads(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, IndexHead]:
        """How far these partitions are indexed; a partition that was never indexed has an empty head."""

    def advance_head(
        self, topic: str, partition: int, expected_revision: int, head: IndexHead, segment: IndexSegment | None
    ) -> bool:
        """Advance a head if its revision is still the expected one, and add the segment in between; otherwise return
        False.
        """

    def segment_at_or_before(self, topic: str, partition: int, offset: int) -> IndexSegment | None:
        """The last segment that begins at or before this offset. The segment may also end before the offset."""

    def segments_from(self, topic: str, partition: int, start: int, limit: int) -> Sequence[IndexSegment]:
        """The first segments that begin at or after an offset."""

    def replace_segments(self, topic: str, partition: int, segments: Sequence[IndexSegment], end: int) -> None:
        """Make these the only segments that begin between the first of them and `end`.

        They must cover the same offsets as the segments that they replace. At every moment, the old or the new segments
        cover each offset.
        """

    def drop_segments_before(self, topic: str, partition: int, oldest_offset: int) -> Sequence[ArchiveLocation]:
        """Drop the segments whose events are all before `oldest_offset`, and return their locations in the archive."""

    def set_compacted_until(self, topic: str, partition: int, offset: int) -> None:
        """Make readers read everything before this offset from the archive only."""

    def referenced_archive_keys(self) -> Collection[str]:
        """The keys of all archive objects that contain a segment of a topic. Keys that become referenced meanwhile may
        be missing.
        """

    def claim(self, name: str, owner: str, seconds: float) -> bool:
        """Become the only owner of a name for this time; an owner may claim it again. Returns False while another owner
        has it.

        All claims of a name last about as long: a claim that would last much longer is ignored.
        """

    def release_claim(self, name: str, owner: str) -> None:
        """Release the name, so that others can claim it."""

    def shard_progresses(self, stream: str) -> Mapping[str, ShardProgress]:
        """How far each shard of a stream is indexed."""

    def advance_shard_progress(self, stream: str, shard: str, progress: ShardProgress) -> None:
        """Record that the shard is indexed this far, unless it is already indexed further."""

    def close(self) -> None:
        """Release all resources. Further calls raise `Unavailable`."""
