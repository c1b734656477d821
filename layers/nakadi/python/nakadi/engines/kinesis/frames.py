"""Decodes frames of the stream into events, and limits these to what a reader asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nakadi.engines.common import frames
from nakadi.model.events import EventSlice, StoredEvent, datetime_from_microseconds

log = logging.getLogger(__name__)


class Frame(NamedTuple):
    """Events with their offsets. A record that completes no frame counts as a frame without events.

    With `is_incomplete`, the stream no longer had some of the frame's records when they were numbered.
    """

    first_offset: int
    event_count: int
    stored_at: int
    content: bytes
    is_incomplete: bool = False

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.event_count


def decode_frame(frame: Frame, start: int = 0) -> list[StoredEvent]:
    """The events of a frame, beginning at an offset. A damaged frame keeps its offsets, and has no events."""
    if not frame.event_count:
        return []
    try:
        records = frames.decode(frame.content)
    except Exception:  # bytes that the broker did not write can cause any error, and must not stop the shard
        log.warning("The frame at offset %s cannot be read", frame.first_offset, exc_info=True)
        return []
    moment = datetime_from_microseconds(frame.stored_at)
    numbered = enumerate(records[: frame.event_count], frame.first_offset)
    return [
        StoredEvent(offset, record, moment) for offset, record in numbered if record is not None and offset >= start
    ]


def slice_frames(found: Iterable[Frame], start: int, limit: int, max_bytes: int) -> EventSlice:
    """As many events of these frames as fit, at least one if there is one."""
    events: list[StoredEvent] = []
    following = start
    for frame in found:
        events += decode_frame(frame, start)
        following = max(following, frame.end_offset)
        if len(events) >= limit:
            break
    return slice_events(events, following, limit, max_bytes)


def cut_before(end_offset: int, event_slice: EventSlice) -> EventSlice:
    """The part of a slice before an offset. The archive may already have events that the reader must not see yet."""
    if event_slice.next_offset <= end_offset:
        return event_slice
    return EventSlice(tuple(event for event in event_slice.events if event.offset < end_offset), end_offset)


def slice_events(events: Sequence[StoredEvent], next_offset: int, limit: int, max_bytes: int) -> EventSlice:
    """The first events that fit; `next_offset` is after all of them."""
    fitting = _count_fitting(events[: max(limit, 1)], max_bytes)
    if fitting < len(events):
        next_offset = events[fitting - 1].offset + 1
    return EventSlice(tuple(events[:fitting]), next_offset)


def _count_fitting(events: Sequence[StoredEvent], max_bytes: int) -> int:
    total = 0
    for number, event in enumerate(events):
        total += len(event.record.value or b"")
        if number and total > max_bytes:
            return number
    return len(events)
