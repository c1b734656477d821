"""Events from the stores of a broker, without the broker: its data folder, or DynamoDB, Kinesis, Kafka and S3.

Any number of tasks read archived events from the archive, without load on other stores. Only the rest comes from the
log. Anyone with access to the stores can read every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from types import TracebackType
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from nakadi.app.broker import open_broker
from nakadi.app.engines import log_index_url, open_log_index
from nakadi.app.settings import Settings
from nakadi.engines.archive.reading import ArchiveReader
from nakadi.engines.archive.segment_cache import SegmentCache
from nakadi.engines.archive.stores import open_archive
from nakadi.event_types.positions import (
    count_events_between,
    last_offset_if_closed,
    shifted_position,
    timelines_with_partition,
)
from nakadi.event_types.snapshot import PartitionSnapshot
from nakadi.event_types.table_states import positions_after_table
from nakadi.model.event_type import Cursor, EventType, Position, Timeline
from nakadi.model.events import EventSlice, StoredEvent
from nakadi.model.outcomes import NotFound
from nakadi.ports.event_log import OffsetUnavailable
from nakadi_jobs.columns import parse_schema
from nakadi_spark.errors import BadRead
from nakadi_sql.http_source import BEGIN, LogRange
from nakadi_sql.rows import LoggedEvent
from nakadi_sql.sources import EventTypeInfo, Seam, is_in_table

EVENTS_PER_SHARE = 100_000
"""`plan` divides ranges with more offsets than this, so that several tasks read them."""

EVENTS_PER_READ = 2000
MAX_READ_BYTES = 4_000_000


class Piece(Struct, frozen=True):
    """A range of offsets of a partition in one timeline: from `first` to before `end`."""

    timeline: Timeline
    first: int
    end: int


class StoreSource:
    """The event types in the stores of a broker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open = ExitStack()
        self._broker = open_broker(settings)
        self._open.callback(self._broker.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @cached_property
    def _archive(self) -> ArchiveReader | None:
        if not self._settings.archive:
            return None
        store, index = open_archive(self._settings.archive), open_log_index(log_index_url(self._settings))
        self._open.callback(store.close)
        self._open.callback(index.close)
        reader = ArchiveReader(index, SegmentCache(store))
        self._open.callback(reader.close)
        return reader

    def names(self) -> Iterator[str]:
        return (each.name for each in self._broker.event_types.all())

    def find(self, name: str) -> EventTypeInfo | None:
        event_type = self._broker.event_types.find(name)
        if event_type is None:
            return None
        state = self._broker.event_types.table_state(event_type)
        return EventTypeInfo(
            name=name,
            category=event_type.category,
            schemas=[
                parse_schema(each.type, each.text) for each in reversed(self._broker.event_types.schemas(event_type))
            ],
            table="" if state is None else state.table_name,
            seam={} if state is None else _make_seam(positions_after_table(state, event_type)),
        )

    def plan(
        self, event_type: EventTypeInfo, since: datetime | None = None, until: datetime | None = None
    ) -> Sequence[LogRange]:
        """The ranges of the events that exist now, that the table lacks, and that were stored between these times."""
        found, view = self._look_at(event_type)
        ranges: list[LogRange] = []
        for partition, (oldest, newest) in view.oldest_and_newest_events().items():
            start = Position(oldest.timeline, oldest.offset - 1)
            if since is not None:
                start = max(start, view.resolve(Cursor(partition, _time_text(since))))
            last = newest if until is None else min(newest, view.resolve(Cursor(partition, _time_text(until))))
            pieces = pieces_between(found, int(partition), start, last)
            ranges += _cut(partition, behind_table(event_type.seam, int(partition), pieces))
        return ranges

    def pin(self, _event_type: EventTypeInfo, ranges: Sequence[LogRange]) -> Sequence[LogRange]:
        return ranges

    def first_offsets(self, event_type: EventTypeInfo, since: datetime | None = None) -> Mapping[str, str]:
        """For each partition, the offset before its first event; with `since`, its first one stored then or later."""
        _, view = self._look_at(event_type)
        start = BEGIN if since is None else _time_text(since)
        return {each: str(view.resolve(Cursor(each, start))) for each in view.oldest_and_newest_events()}

    def last_offsets(self, event_type: EventTypeInfo) -> Mapping[str, str]:
        """For each partition, the offset of its last event."""
        _, view = self._look_at(event_type)
        return {partition: str(newest) for partition, (_, newest) in view.oldest_and_newest_events().items()}

    def count_events(
        self, event_type: EventTypeInfo, starts: Mapping[str, str], ends: Mapping[str, str]
    ) -> Mapping[str, int]:
        """For each partition of `ends`, the number of offsets after its start, up to and including its end. Some of
        them may not have an event.
        """
        found, view = self._look_at(event_type)
        return {
            name: count_events_between(
                found, name, view.resolve(Cursor(name, starts[name])), view.resolve(Cursor(name, end))
            )
            for name, end in ends.items()
        }

    def shift(
        self, event_type: EventTypeInfo, starts: Mapping[str, str], counts: Mapping[str, int]
    ) -> Mapping[str, str]:
        """For each partition of `starts`, the offset that comes as many events later as `counts` says."""
        found, view = self._look_at(event_type)
        return {
            name: str(shifted_position(found, name, view.resolve(Cursor(name, start)), counts[name]))
            for name, start in starts.items()
        }

    def read(self, event_type: EventTypeInfo, wanted: LogRange) -> Iterator[Sequence[LoggedEvent]]:
        """The events of a range, in pieces, without those that streams do not deliver. Raises `BadRead` if the stores
        no longer have the whole range.
        """
        found, view = self._look_at(event_type)
        start = view.resolve(Cursor(wanted.partition, wanted.after))
        partition = int(wanted.partition)
        for piece in pieces_between(found, partition, start, Position(*wanted.last)):
            for some in self._read_piece(found, partition, piece):
                yield [
                    _locate(event, piece.timeline.order, partition)
                    for event in some
                    if event.record.value is not None and event.record.directed_to is None
                ]

    def _look_at(self, event_type: EventTypeInfo) -> tuple[EventType, PartitionSnapshot]:
        try:
            found = self._broker.event_types.get(event_type.name)
        except NotFound as error:
            raise BadRead(str(error)) from error
        return found, self._broker.cursor_resolver.take_snapshot(found)

    def _read_piece(self, event_type: EventType, partition: int, piece: Piece) -> Iterator[Sequence[StoredEvent]]:
        offset = piece.first
        while offset < piece.end:
            try:
                found = self._read_from(piece.timeline, partition, offset)
            except OffsetUnavailable as error:
                raise BadRead(f"Events of {event_type.name} are gone that were there: {error}") from error
            yield [event for event in found.events if event.offset < piece.end]
            if found.next_offset <= offset:
                raise BadRead(f"Partition {partition} of {event_type.name} ends before offset {piece.end - 1}.")
            offset = found.next_offset

    def _read_from(self, timeline: Timeline, partition: int, offset: int) -> EventSlice:
        archived = None
        if self._archive is not None:
            archived = self._archive.read_slice(timeline.topic, partition, offset, EVENTS_PER_READ, MAX_READ_BYTES)
        if archived is not None:
            return archived
        log = self._broker.logs.for_storage(timeline.storage_id)
        return log.read(timeline.topic, partition, offset, limit=EVENTS_PER_READ, max_bytes=MAX_READ_BYTES)


def _make_seam(positions: Iterator[tuple[str, Position]]) -> Seam:
    seam: dict[int, dict[int, int]] = {}
    for partition, position in positions:
        seam.setdefault(int(partition), {})[position.timeline] = position.offset + 1
    return seam


def behind_table(seam: Seam, partition: int, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The parts of these pieces that lie after the end of the table."""
    for piece in pieces:
        if not is_in_table(seam, piece.timeline.order, partition, piece.end - 1):
            following = seam.get(partition, {}).get(piece.timeline.order, 0)
            yield replace(piece, first=max(piece.first, following))


def _cut(partition: str, pieces: Iterable[Piece]) -> Iterator[LogRange]:
    """Divide the pieces of a partition into ranges, each for one task."""
    for piece in pieces:
        order = piece.timeline.order
        for first in range(piece.first, piece.end, EVENTS_PER_SHARE):
            end = min(first + EVENTS_PER_SHARE, piece.end)
            yield LogRange(partition, str(Position(order, first - 1)), (order, end - 1))


def pieces_between(event_type: EventType, partition: int, start: Position, last: Position) -> Iterator[Piece]:
    """The offsets of a partition after `start`, up to and including `last`, as one piece for each timeline."""
    for timeline in timelines_with_partition(event_type, partition):
        if start.timeline <= timeline.order <= last.timeline:
            first = start.offset + 1 if timeline.order == start.timeline else 0
            closed = last_offset_if_closed(timeline, partition)
            end = (last.offset if timeline.order == last.timeline or closed is None else closed) + 1
            if first < end:
                yield Piece(timeline, first, end)


def _locate(event: StoredEvent, timeline: int, partition: int) -> LoggedEvent:
    record = event.record
    assert record.value is not None
    return LoggedEvent(
        timeline=timeline,
        partition=partition,
        offset=event.offset,
        stored_at=event.stored_at,
        key=record.key,
        owner=None if record.owner is None else (record.owner.data_type, record.owner.value),
        text=record.value,
    )


def _time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
