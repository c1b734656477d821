"""What the log index has about a log: how far a stream's records are numbered, and where events are archived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field


class RecordPosition(NamedTuple):
    """The place of a record in a stream. Sequence numbers of different shards cannot be compared."""

    shard: str
    sequence: int


class UnfinishedAppendPart(NamedTuple):
    """A record with a part of an append whose last part has not arrived yet."""

    append_id: bytes
    part_number: int
    position: RecordPosition
    arrived_at: int


class IndexingState(Struct, frozen=True, kw_only=True):
    """The state of a partition after the record at `last_position`: it has everything on which later offsets depend."""

    last_position: RecordPosition | None = None
    next_offset: int = 0
    latest_stored_at: int = 0
    sealed_at: RecordPosition | None = None
    unfinished_parts: tuple[UnfinishedAppendPart, ...] = ()


NOTHING_INDEXED = IndexingState()

SEALED_AT_INDEX_END = RecordPosition("", 0)
"""Stands for the seal of a partition that ends where its index ends: no record has this position."""


class ShardProgress(NamedTuple):
    """How far a shard is indexed: every record up to `last_sequence`; 0 means none.

    `complete_until` is a time in milliseconds up to which no record is missing; None if none was recorded. A shard is
    `ended` if it is closed and completely indexed. Later progress is greater.
    """

    last_sequence: int
    ended: bool = False
    complete_until: int | None = None


class ShardGap(Struct, frozen=True):
    """A shard that has forgotten records before they were indexed, and how far it is indexed."""

    shard: str
    progress: ShardProgress

    def __str__(self) -> str:
        return f"{self.shard}/{self.progress.last_sequence}/{self.progress.complete_until}"


class ArchiveLocation(NamedTuple):
    key: str
    start: int
    length: int


class IndexSegment(Struct, frozen=True, kw_only=True):
    """Adjacent events: `offset_count` offsets, beginning at `state_before.next_offset`. The first event was stored at
    `first_stored_at`, the last one at `last_stored_at`, in microseconds.

    Reading the stream from `state_before` finds them, or reading `location`, if it is set. `event_count` is the number
    of events in the segment, if they were counted when it was written.
    """

    state_before: IndexingState
    offset_count: int
    first_stored_at: int
    last_stored_at: int
    location: ArchiveLocation | None = None
    event_count: int | None = None

    @property
    def first_offset(self) -> int:
        return self.state_before.next_offset

    @property
    def end_offset(self) -> int:
        return self.state_before.next_offset + self.offset_count


class IndexHead(Struct, frozen=True):
    """How far a partition is indexed. `revision` grows with every change; 0 means that nothing was written yet."""

    state: IndexingState = NOTHING_INDEXED
    revision: int = 0


class Topic(Struct, frozen=True, kw_only=True, rename={"begun_after_gaps": "behind"}):
    """A topic of the log. `oldest` and `compacted` have offsets by partition; a missing partition is at 0.

    Events before `oldest` no longer exist. Events before `compacted` must be read from the archive.

    A topic may have ended at the end of its index. Its later records then belong to the topic `continued_in`, which
    numbers them; that topic `continues` this one, and was `begun_after_gaps`. A deleted topic with a continuation
    remains as a topic without partitions, since its records still arrive.
    """

    partitions: int
    sealed: bool = False
    oldest: Mapping[int, int] = field(default_factory=dict)
    compacted: Mapping[int, int] = field(default_factory=dict)
    continues: str | None = None
    continued_in: str | None = None
    begun_after_gaps: tuple[str, ...] = ()
