"""A subscription with a projection receives only the members that it reads.

Events are reduced in the last step, when lines are written: all earlier steps, such as filters, parking and dead
letters, use the whole event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from nakadi.event_types.members import always_sent_members
from nakadi.model.event_type import EventType
from nakadi.model.events import EventSlice, EventTextBlock, LazyEvents, StoredEvent
from nakadi.model.subscription import Subscription
from nakadi.schemas.projection import Projection
from nakadi.schemas.read_paths import parse_read_path
from nakadi.streaming.chunks import EventChunk, EventRun, runs_in_steps
from nakadi.subscriptions.stream.actions import SendBatch, SessionLine
from nakadi.subscriptions.stream.driver import LineInSteps, SubscriptionFormat

# How many projections are remembered: creating one takes a millisecond, and the streams of a subscription share it.
MAX_SHARED_PROJECTIONS = 1000

MAX_CUT_BYTES = 256 * 1024
"""The size of the events that one step reduces, in about two milliseconds."""


def format_for(
    lines: SubscriptionFormat, subscription: Subscription, event_types: Iterable[EventType]
) -> SubscriptionFormat:
    """The format in which a stream of this subscription sends its events."""
    if not subscription.projection or subscription.reads is None:
        return lines
    reads = subscription.reads
    projections = {each.name: make_projection(reads, always_sent_members(each.category)) for each in event_types}
    return ProjectedFormat(lines, projections)


@lru_cache(MAX_SHARED_PROJECTIONS)
def make_projection(reads: Sequence[str], always_sent: Sequence[str]) -> Projection:
    return Projection([*((name,) for name in always_sent), *map(parse_read_path, reads)])


class ProjectedFormat:
    """Applies another format to reduced events. An event type that is attached to the subscription without being one of
    its own has no projection: the subscription has not declared reads of it.
    """

    def __init__(self, lines: SubscriptionFormat, projections: Mapping[str, Projection]) -> None:
        self._lines = lines
        self._projections = projections
        self.content_type = lines.content_type

    def stream_opening(self, stream_id: str) -> bytes:
        return self._lines.stream_opening(stream_id)

    def encode_line(self, line: SessionLine) -> bytes | LineInSteps:
        if isinstance(line, SendBatch) and (projection := self._projections.get(line.partition.event_type)):
            return self._encode_batch(line, projection)
        return self._lines.encode_line(line)

    def _encode_batch(self, batch: SendBatch, projection: Projection) -> LineInSteps:
        cut: list[EventRun] = []
        for run in runs_in_steps(batch.runs, MAX_CUT_BYTES):
            if cut:
                yield
            cut.append(projected_run(run, projection))
        encoded = self._lines.encode_line(replace(batch, runs=tuple(cut)))
        return encoded if isinstance(encoded, bytes) else (yield from encoded)


def projected_run(run: EventRun, projection: Projection) -> EventRun:
    """The same events at their positions, reduced to the members that are read."""
    chunk = run.chunk
    events: Sequence[StoredEvent]
    if chunk.lazy is not None:
        events = LazyEvents(
            [_projected_block(each, projection) for each in chunk.lazy.blocks_between(run.first, run.last)]
        )
    else:
        events = tuple(_projected_event(each, projection) for each in chunk.events[run.first : run.last])
    first = chunk.offset_at(run.first)
    return EventChunk(chunk.order, first, EventSlice(events, run.end.offset + 1)).run_from_offset(first)


def _projected_block(block: EventTextBlock, projection: Projection) -> EventTextBlock:
    return EventTextBlock.join(block.first_offset, block.stored_at, projection.cut_all(block.text, block.ends))


def _projected_event(event: StoredEvent, projection: Projection) -> StoredEvent:
    value = event.record.value
    if value is None:
        return event
    return event._replace(record=event.record._replace(value=projection.cut(value)))
