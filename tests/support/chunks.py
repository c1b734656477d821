"""Events as streams get them from the log."""

from collections.abc import Iterable
from datetime import UTC, datetime

from nakadi.model.events import EventSlice, Record, StoredEvent
from nakadi.streaming.chunks import EventChunk, EventRun

STORED_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class ReadingRules:
    """The rules for reading that a session needs."""

    skips_misplaced_events = False


def a_record(text: str) -> Record:
    return Record(f'"{text}"'.encode())


def a_chunk(*records: Record | str, start: int = 0, order: int = 1) -> EventChunk:
    """A chunk of events that begins at offset `start`; a text stands for an event with this value."""
    made = [each if isinstance(each, Record) else a_record(each) for each in records]
    events = tuple(StoredEvent(start + index, record, STORED_AT) for index, record in enumerate(made))
    return EventChunk(order, start, EventSlice(events, start + len(events)))


def some_events(count: int, start: int = 0, size: int = 1) -> EventRun:
    """Consecutive events; the value of each is its offset, padded to `size` bytes."""
    records = [Record(str(offset).rjust(size, "0").encode()) for offset in range(start, start + count)]
    return a_chunk(*records, start=start).run_from_offset(start)


def values(runs: Iterable[EventRun]) -> list[bytes]:
    return [value for run in runs for value in run.values]
