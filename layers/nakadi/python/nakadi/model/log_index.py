"""What the index of an event log keeps: how far each partition is counted, and where its events lie.

Times are microseconds since 1970, as in the log itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field


class Mark(NamedTuple):
    """A record's place in a stream. Sequence numbers of different shards say nothing about each other."""

    shard: str
    sequence: int


class UnfinishedAppend(NamedTuple):
    """A record that holds a part of an append whose last part was not met yet."""

    append: bytes
    number: int
    mark: Mark
    arrived: int


class Counted(Struct, frozen=True, kw_only=True):
    """A partition up to and including the record at `mark`: everything that the offsets behind it depend on."""

    mark: Mark | None = None
    next: int = 0
    latest: int = 0
    sealed_at: Mark | None = None
    parts: tuple[UnfinishedAppend, ...] = ()


NOTHING_COUNTED = Counted()

ENDED = Mark("", 0)
"""The seal of a partition that ends where it is indexed: no record has this place."""


class Progress(NamedTuple):
    """How far a shard is indexed: every record up to `sequence`; 0 is none.

    `complete_at` is a time, in milliseconds, up to which none is missing; None where that was never noted. A shard has
    `ended` when it is closed and all of it is indexed. Later progress is greater.
    """

    sequence: int
    ended: bool = False
    complete_at: int | None = None


class Gap(Struct, frozen=True):
    """A shard that has forgotten records before they were indexed, and how far it is indexed."""

    shard: str
    place: Progress

    def __str__(self) -> str:
        return f"{self.shard}/{self.place.sequence}/{self.place.complete_at}"


class Location(NamedTuple):
    """A range of bytes in an archive object."""

    key: str
    start: int
    length: int


class Segment(Struct, frozen=True, kw_only=True):
    """Neighbouring events: `count` places from `before.next` on, stored between `since` and `until`.

    Counting on from `before` through the stream finds them; so does a look at `archived`, when there is one.
    `events` is how many of them are still there, if they were counted when they were written.
    """

    before: Counted
    count: int
    since: int
    until: int
    archived: Location | None = None
    events: int | None = None

    @property
    def first(self) -> int:
        return self.before.next

    @property
    def end(self) -> int:
        return self.before.next + self.count


class Head(Struct, frozen=True):
    """How far a partition is indexed. `revision` grows with every change; 0 is what was never written."""

    counted: Counted = NOTHING_COUNTED
    revision: int = 0


class Topic(Struct, frozen=True, kw_only=True):
    """A topic of the log. `oldest` and `compacted` tell offsets per partition; a partition they lack is at 0.

    What is before `oldest` is gone. What is before `compacted` is to be read from the archive alone.

    A topic may have been ended where it was indexed. Then the topic `continued_in` shares its records, and counts those
    that follow; that one `continues` it, and was begun behind the gaps named in `behind`. A topic that was deleted but
    is continued stays as one without partitions, for its records go on coming.
    """

    partitions: int
    sealed: bool = False
    oldest: Mapping[int, int] = field(default_factory=dict)
    compacted: Mapping[int, int] = field(default_factory=dict)
    continues: str | None = None
    continued_in: str | None = None
    behind: tuple[str, ...] = ()
