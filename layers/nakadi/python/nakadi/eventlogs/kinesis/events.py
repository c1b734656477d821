"""Frames as events, and times as the log has them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from nakadi.eventlogs import frames
from nakadi.eventlogs.kinesis.trails import Frame
from nakadi.model.events import Slice, StoredEvent
from nakadi.model.moments import moment_of

log = logging.getLogger(__name__)


def events_of(frame: Frame, start: int = 0) -> list[StoredEvent]:
    """The events of a frame from an offset on. A damaged frame keeps its numbers, and shows nothing."""
    if not frame.events:
        return []
    try:
        records = frames.decode(frame.content)
    except Exception:  # bytes that are not ours can fail anywhere, and must not stop the shard
        log.warning("The frame at offset %s cannot be read", frame.first, exc_info=True)
        return []
    moment = moment_of(frame.stored_at)
    places = enumerate(records[: frame.events], frame.first)
    return [StoredEvent(offset, record, moment) for offset, record in places if record is not None and offset >= start]


def slice_of(found: Iterable[Frame], start: int, limit: int, max_bytes: int) -> Slice:
    """As many events of these frames as fit, at least one if there is one."""
    events: list[StoredEvent] = []
    following = start
    for frame in found:
        events += events_of(frame, start)
        following = max(following, frame.end)
        if len(events) >= limit:
            break
    return cut(events, following, limit, max_bytes)


def before(end: int, found: Slice) -> Slice:
    """What of a slice is before an offset. The archive may have more already than a reader has heard of."""
    if found.next_offset <= end:
        return found
    return Slice(tuple(event for event in found.events if event.offset < end), end)


def cut(events: Sequence[StoredEvent], following: int, limit: int, max_bytes: int) -> Slice:
    """The first of these events that fit; `following` is behind all of them."""
    fitting = _fitting(events[: max(limit, 1)], max_bytes)
    if fitting < len(events):
        following = events[fitting - 1].offset + 1
    return Slice(tuple(events[:fitting]), following)


def _fitting(events: Sequence[StoredEvent], max_bytes: int) -> int:
    total = 0
    for number, event in enumerate(events):
        total += len(event.record.value or b"")
        if number and total > max_bytes:
            return number
    return len(events)
