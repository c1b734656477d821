"""Batches of a consumer: the events of one partition, with the cursor of the last one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from msgspec.structs import replace

from nakadi_client.decoding import Cursor, PoisonEvent

Event = TypeVar("Event")

# 001-0001-000000000000000042: format, timeline, number. The offset before the first event is 001-0001--1.
_OFFSET = re.compile(r"(\d{3}-[0-9a-fA-F]{4}-)(-?\d+)")


class Batch(Generic[Event]):
    """Events of one partition, in their order.

    `for event in batch` tracks the progress of the loop, so that slow work on a long batch can be committed in part.
    A loop over `consume` marks a batch as done when its body ends; `done()` does so earlier, such as before a `break`.
    """

    __slots__ = ("_done", "before", "cursor", "events", "number", "poison", "progress", "stream_id")

    def __init__(
        self,
        events: list[Event],
        cursor: Cursor,
        stream_id: str,
        number: int = 0,
        *,
        before: str | None = None,
        poison: tuple[PoisonEvent, ...] = (),
    ) -> None:
        self.events: list[Event] = events
        self.cursor: Cursor = cursor
        self.stream_id: str = stream_id
        self.number: int = number
        self.before: str | None = before
        self.poison: tuple[PoisonEvent, ...] = poison
        self.progress: int = 0
        self._done: Callable[[Batch[Event]], None] = lambda _batch: None

    @property
    def event_type(self) -> str:
        return self.cursor.event_type

    @property
    def partition(self) -> str:
        return self.cursor.partition

    @property
    def offset(self) -> str:
        """The offset of the last event."""
        return self.cursor.offset

    def done(self) -> None:
        """Mark the batch as processed: it may be committed, with everything before it in its partition."""
        self._done(self)

    def when_done(self, done: Callable[[Batch[Event]], None]) -> None:
        """Set the function that `done()` calls with this batch."""
        self._done = done

    def __iter__(self) -> Iterator[Event]:
        for place, event in enumerate(self.events):
            self.progress = place
            yield event
        self.progress = len(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} events up to {self.offset} of {self.event_type}:{self.partition}>"

    def cursor_of_progress(self) -> Cursor | None:
        """Return a cursor that covers only events that the loop has finished, or None if no such cursor is known. The
        broker does not send the offsets of single events, and numbers may be missing between them. The number of an
        event is at least that of the offset before the batch plus the event's position in the batch, so committing this
        sum covers no later event.
        """
        before, last = _OFFSET.fullmatch(self.before or ""), _OFFSET.fullmatch(self.offset)
        if not self.progress or before is None or last is None or before[1] != last[1]:
            return None
        number = min(int(before[2]) + self.progress, int(last[2]))
        return replace(self.cursor, offset=f"{last[1]}{number:018d}")
