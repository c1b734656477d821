"""The log index's information about a log: records of a stream in the order of their numbers, and archived segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field


class RecordPosition(NamedTuple):
    """A record's place in a stream. Sequence numbers of different shards say nothing about each other."""

    shard: str
    sequence: int


class UnfinishedAppendPart(NamedTuple):
    """A record that holds a part of an append whose last part was not met yet."""

    append_id: bytes
    part_number: int
    position: RecordPosition
    arrived_at: int


class IndexingState(Struct, frozen=True, kw_only=True):
    """A partition up to and with the record at `last_position`: everything that the offsets behind it depend on."""

    last_position: RecordPosition | None = None
    next_offset: int = 0
    latest_stored_at: int = 0
    sealed_at: RecordPosition | None = None
    unfinished_parts: tuple[UnfinishedAppendPart, ...] = ()


NOTHING_INDEXED = IndexingState()

SEALED_AT_INDEX_END = RecordPosition("", 0)
"""The seal of a partition that ends where it is indexed: no record has this place."""


class ShardProgress(NamedTuple):
    """How far a shard is indexed: every record up to `last_sequence`; 0 is none.

    `complete_until` is a time, in milliseconds, up to which none is missing; None where that was never noted. A shard
    has `ended` when it is closed and all of it is indexed. Later progress is greater.
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
    """Neighbouring events: `offset_count` places from `state_before.next_offset` on. The first of them was stored at
    `first_stored_at`, the last one at `last_stored_at`, in microseconds.

    Counting on from `state_before` through the stream finds them; so does a look at `location`, when there is one.
    `event_count` is how many of them are still there, if they were counted when they were written.
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
    """How far a partition is indexed. `revision` grows with every change; 0 is what was never written."""

    state: IndexingState = NOTHING_INDEXED
    revision: int = 0


class Topic(Struct, frozen=True, kw_only=True, rename={"begun_after_gaps": "behind"}):
    """A topic of the log. `oldest` and `compacted` tell offsets per partition; a partition they lack is at 0.

    What is before `oldest` is gone. What is before `compacted` is to be read from the archive alone.

    A topic may have been ended where it was indexed. Then the topic `continued_in` shares its records, and counts those
    that follow; that one `continues` it, and was `begun_after_gaps`. A topic that was deleted but is continued stays as
    one without partitions, for its records go on coming.
    """

    partitions: int
    sealed: bool = False
    oldest: Mapping[int, int] = field(default_factory=dict)
    compacted: Mapping[int, int] = field(default_factory=dict)
    continues: str | None = None
    continued_in: str | None = None
    begun_after_gaps: tuple[str, ...] = ()
