"""Events as the event log keeps them, and moments as whole microseconds, which every store can keep and compare."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from msgspec import Struct

from nakadi.model.authorization import Attribute

# Moments --------------------------------------------------------------------------------------------------------------


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def moment_of(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND


# Events ---------------------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """What a publisher hands to the log.

    `value` is the event as compact JSON text in UTF-8, without any line break; None is a tombstone.
    `key` is what compaction goes by. `owner` is who may read this single event, `directed_to` the one subscription
    that may see it; most events have neither.
    """

    value: bytes | None
    key: str | None = None
    owner: Attribute | None = None
    directed_to: str | None = None


class StoredEvent(NamedTuple):
    """A record in its place."""

    offset: int
    record: Record
    stored_at: datetime


class Slice(Struct, frozen=True):
    """What a read found: events in order, and the offset to read on from.

    `next_offset` is past the last event, and also past offsets that compaction has emptied.
    """

    events: tuple[StoredEvent, ...]
    next_offset: int


class Continuation(Struct, frozen=True):
    """A topic that continues another one, whose partitions ended in front of these offsets."""

    topic: str
    ends: Mapping[int, int]


class Bounds(Struct, frozen=True):
    """`oldest` is the first offset still there, `next` the one that the next event will get; equal when empty.

    Only deleting old events moves `oldest`: after compaction there may be a hole, which reads step over.
    """

    oldest: int
    next: int

    @property
    def newest(self) -> int:
        """The newest event's offset; one before `oldest` when there is none."""
        return self.next - 1


class Stored(Struct, frozen=True):
    """The fate of a partition's part of an append: it is durable."""


class Refused(Struct, frozen=True):
    """The fate of a partition's part of an append: not (or not provably) stored, in the words of the API."""

    reason: str


Fate = Stored | Refused
