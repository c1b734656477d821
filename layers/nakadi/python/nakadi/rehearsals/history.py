"""The stored events of an event type, as a stream from the beginning reads them: each once, across timelines and across
the boundary between archive and log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from nakadi.event_types.positions import count_events_between, next_event_location, shifted_position
from nakadi.event_types.repository import EventTypes, not_found_error
from nakadi.event_types.snapshot import PartitionSnapshot
from nakadi.model.event_type import Cursor, EventType, Position, Timeline
from nakadi.model.events import EPOCH
from nakadi.model.outcomes import Invalid, NotFound, Unavailable
from nakadi.ports.event_log import EventLogs, OffsetUnavailable, UnknownTopic
from nakadi.streaming.chunks import EventChunk, EventRun

MAX_CHUNK_EVENTS = 1000
MAX_CHUNK_BYTES = 1_000_000

# The pauses between attempts to read while the log does not answer, or to write the result while the registry does not.
RETRY_PAUSES_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0)

DURATION_PATTERN = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_EVENTS = 100_000_000

BAD_DURATION_MESSAGE = "`last` is a number with a unit (s, m, h or d), such as 7d"
BAD_NUMBER_MESSAGE = f"`events` is a number between 1 and {MAX_EVENTS}"
ONE_SPAN_MESSAGE = "Give either `last`, how far back the rehearsal begins, or `events`, how many events it has"


class Span(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The events of a rehearsal: those of the `last` seconds, hours or days, or the newest ones, `events` at most."""

    last: str | None = None
    events: int | None = None

    @classmethod
    def parse(cls, last: str | None, events: int | None) -> Span:
        """Parse a span, which must have exactly one of `last` and `events`, within its limits. Raises `Invalid`."""
        if (last is None) == (events is None):
            raise Invalid(ONE_SPAN_MESSAGE)
        if last is not None and DURATION_PATTERN.fullmatch(last) is None:
            raise Invalid(BAD_DURATION_MESSAGE)
        if events is not None and not 1 <= events <= MAX_EVENTS:
            raise Invalid(BAD_NUMBER_MESSAGE)
        return cls(last=last, events=events)


def parse_duration(text: str) -> timedelta:
    found = DURATION_PATTERN.fullmatch(text)
    assert found is not None, "a span is checked when it is made"
    return timedelta(seconds=int(found[1]) * _SECONDS_BY_UNIT[found[2]])


class PartitionSpan(Struct, frozen=True, kw_only=True):
    """The events of a partition after `start`, up to `end`: `count` of them, or fewer if some were compacted."""

    partition: int
    start: Position
    end: Position
    count: int


def partition_spans(
    event_type: EventType, snapshot: PartitionSnapshot, span: Span, now: datetime
) -> Sequence[PartitionSpan]:
    """The part of a span in each partition, up to the newest event at this moment."""
    begins, ends = snapshot.positions_before_oldest(), snapshot.end_positions()
    starts: Mapping[str, Position]
    if span.events is None:
        assert span.last is not None
        since = (now - min(parse_duration(span.last), now - EPOCH)).isoformat(timespec="milliseconds")
        starts = {partition: snapshot.resolve(Cursor(partition, since)) for partition in ends}
    else:
        available = {each: count_events_between(event_type, each, begins[each], ends[each]) for each in ends}
        shares = even_shares(span.events, available)
        starts = {
            each: shifted_position(event_type, each, begins[each], available[each] - shares[each]) for each in ends
        }
    return [
        PartitionSpan(
            partition=int(each),
            start=starts[each],
            end=end,
            count=max(0, count_events_between(event_type, each, starts[each], end)),
        )
        for each, end in ends.items()
    ]


def even_shares(total: int, available: Mapping[str, int]) -> Mapping[str, int]:
    """The shares of a total among partitions, as even as the available numbers of events allow."""
    shares: dict[str, int] = {}
    left = total
    for number, name in enumerate(sorted(available, key=available.__getitem__)):
        shares[name] = min(available[name], -(-left // (len(available) - number)))
        left -= shares[name]
    return shares


class HistoryReader(Struct, frozen=True, kw_only=True):
    """Reads spans. `pause` waits for a number of seconds, and may raise to end the reading."""

    event_types: EventTypes
    logs: EventLogs
    pause: Callable[[float], None]

    def read_span(self, event_type: EventType, span: PartitionSpan) -> Iterator[EventRun]:
        """The events of a span, in order. Events that retention removes meanwhile are left out.

        Raises `NotFound` if the event type is deleted meanwhile.
        """
        position = span.start
        while position < span.end:
            timeline, offset = next_event_location(event_type, position, span.partition)
            if Position(timeline.order, offset) > span.end:
                return
            try:
                chunk = self._read_chunk(timeline, span.partition, offset)
            except UnknownTopic:
                event_type = self._reread(event_type, timeline)
                continue
            if chunk.next_offset == offset:
                return
            position = Position(timeline.order, chunk.next_offset - 1)
            run = EventRun(chunk, 0, chunk.count)
            if position > span.end:
                run = EventRun(chunk, 0, chunk.run_from_offset(span.end.offset + 1).first)
            if run.count:
                yield run

    def _read_chunk(self, timeline: Timeline, partition: int, offset: int) -> EventChunk:
        attempts = iter(RETRY_PAUSES_SECONDS)
        while True:
            try:
                log = self.logs.for_storage(timeline.storage_id)
                found = log.read(timeline.topic, partition, offset, limit=MAX_CHUNK_EVENTS, max_bytes=MAX_CHUNK_BYTES)
                return EventChunk(timeline.order, offset, found)
            except OffsetUnavailable:
                oldest = log.bounds(timeline.topic, [partition])[partition].oldest
                if oldest <= offset:
                    raise
                offset = oldest
            except Unavailable:
                seconds = next(attempts, None)
                if seconds is None:
                    raise
                self.pause(seconds)

    def _reread(self, known: EventType, timeline: Timeline) -> EventType:
        """Read the event type again, because the events of a timeline no longer exist."""
        current = self.event_types.find(known.name)
        if current is None or current.id != known.id:
            raise not_found_error(known.name)
        if not any(each.id == timeline.id and each.deleted for each in current.timelines):
            raise NotFound(f"The events of timeline {timeline.order} are gone")
        return current
