"""The form in which the file stores records, in rows with a frame each; and the statements that read them, one for each
kind of read.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count, repeat
from typing import NamedTuple, TypeVar, overload

import orjson
from msgspec import Struct

from nakadi.engines.common import frames
from nakadi.model.events import (
    EventSlice,
    EventTextBlock,
    LazyEvents,
    OffsetBounds,
    Record,
    RecordLines,
    StoredEvent,
    datetime_from_microseconds,
    microseconds_since_epoch,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import OffsetUnavailable, UnknownTopic

T = TypeVar("T")

ROW_HEAD_FORMAT = struct.Struct("<QIqI")
"""The beginning of a body: first offset, count, time of storing, length. With it, the bodies of several rows can be
joined by SQLite and split here.
"""

MAX_RECORD_BYTES_TO_JOIN = 8_000
"""Records up to this size are encoded only when it is known with which other records they share a frame."""

TARGET_FRAME_BYTES = 64_000
"""Frames are cut at about this size: readers fetch and unpack whole frames."""


class Chunk(Struct, frozen=True, array_like=True):
    """Records that share a frame. `frame` is missing if they will probably be joined with other records.

    An append from another process has either its records or its frame.
    """

    records: Sequence[Record]
    count: int
    size: int
    frame: bytes | None = None


class FrameRow(NamedTuple):
    """A row of frames, as it was read. `offset_count` is how many offsets it covers."""

    first_offset: int
    offset_count: int
    stored_at: int
    frame: bytes

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.offset_count

    def stored_body(self, frame: bytes | None = None) -> bytes:
        """The body of the row as it is stored, with its own frame or another one."""
        frame = self.frame if frame is None else frame
        return ROW_HEAD_FORMAT.pack(self.first_offset, self.offset_count, self.stored_at, len(frame)) + frame


def split_into_chunks(records: Sequence[Record]) -> Iterator[Chunk]:
    if isinstance(records, RecordLines):
        for part in records.split_by_size(TARGET_FRAME_BYTES):
            size = len(part.text) + 1
            yield Chunk(part, part.number, size, frames.encode(part) if size > MAX_RECORD_BYTES_TO_JOIN else None)
        return
    for group, size in _groups_of_frame_size(records, [len(record.value or b"") + 1 for record in records]):
        if size > MAX_RECORD_BYTES_TO_JOIN:
            yield Chunk(group, len(group), size, frames.encode(group))
        else:
            frames.check_no_line_breaks(group)
            yield Chunk(group, len(group), size)


def merge_small_chunks(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Join neighbours that are small: readers of single events would otherwise fetch as many rows."""
    # A chunk that has a frame stays unchanged: decoding the frame here would take longer than reading one more row.
    for group, size in _groups_of_frame_size(
        chunks, [chunk.size if chunk.records else TARGET_FRAME_BYTES + 1 for chunk in chunks]
    ):
        if len(group) == 1:
            yield group[0]
        elif _are_alike(lines := [each.records for each in group if isinstance(each.records, RecordLines)], len(group)):
            joined = RecordLines.join(lines)
            yield Chunk(joined, joined.number, size)
        else:
            records = [record for chunk in group for record in chunk.records]
            yield Chunk(records, len(records), size)


def _are_alike(lines: Sequence[RecordLines], number: int) -> bool:
    """Whether all parts are lines, either all with keys or all without."""
    return len(lines) == number and len({each.keys is None for each in lines}) == 1


class ChunkedRecords(Sequence[Record]):
    """Records whose chunks the sending process has already created."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks

    def __len__(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        records = [record for chunk in self.chunks for record in chunk.records or frames.decode(chunk.frame or b"")]
        return [record for record in records if record is not None][index]


def _groups_of_frame_size(items: Sequence[T], sizes: Iterable[int]) -> Iterator[tuple[list[T], int]]:
    group: list[T] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if group and total + size > TARGET_FRAME_BYTES:
            yield group, total
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group, total


# The size of the first row limits the rows to consider. Of these, the statement fetches rows until the limit of events
# or of bytes is reached. The window function has no order of its own: it takes the rows as they come, here by offset.
SELECT_JOINED_ROWS = """
    SELECT logs.oldest,
        (SELECT first + count FROM frames WHERE log = logs.id ORDER BY first DESC LIMIT 1),
        (SELECT CAST(group_concat(body, '') AS BLOB) FROM (
            SELECT frames.body FROM (
                SELECT id, sum(size) OVER earlier AS bytes, sum(count) OVER earlier AS events FROM (
                    SELECT id, size, min(count, first + count - :start) AS count FROM frames
                    WHERE log = logs.id AND first + count > :start AND first >= coalesce(
                        (SELECT max(first) FROM frames WHERE log = logs.id AND first <= :start), :start)
                    ORDER BY first LIMIT coalesce((SELECT :limit / frames.count + 2
                        FROM topics JOIN logs ON logs.topic = topics.id AND logs.partition = :partition
                        JOIN frames ON frames.log = logs.id AND frames.first <= :start
                        WHERE topics.name = :topic ORDER BY frames.first DESC LIMIT 1), :limit))
                WINDOW earlier AS (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS wanted
            CROSS JOIN frames ON frames.id = wanted.id
            WHERE coalesce(bytes, 0) < :max_bytes AND coalesce(events, 0) < :limit))
    FROM topics JOIN logs ON logs.topic = topics.id AND logs.partition = :partition
    WHERE topics.name = :topic
"""

SELECT_BOUNDS = """
    SELECT json_group_array(json_array(logs.partition, logs.oldest,
        (SELECT first + count FROM frames WHERE log = logs.id ORDER BY first DESC LIMIT 1)))
    FROM topics JOIN logs ON logs.topic = topics.id AND logs.partition IN (SELECT value FROM json_each(:partitions))
    WHERE topics.name = :topic
"""

# A binary search: frames are in the order of time, and a frame's events have one time. Its rows alternate: one has the
# time of the event in the middle (if nothing is stored there, the place counts as old), and the next one has the half
# in which the search continues.
SEARCH_OFFSET_AT_TIME = """
    WITH RECURSIVE search (log, low, high, found) AS (
        SELECT logs.id, logs.oldest,
            coalesce((SELECT first + count FROM frames WHERE log = logs.id ORDER BY first DESC LIMIT 1), 0), NULL
        FROM topics JOIN logs ON logs.topic = topics.id AND logs.partition = :partition
        WHERE topics.name = :topic
        UNION ALL
        SELECT log,
            iif(found < :moment, (low + high) / 2 + 1, low),
            iif(found >= :moment, (low + high) / 2, high),
            iif(found IS NULL, coalesce((SELECT stored_at FROM frames WHERE log = search.log
                AND first <= (low + high) / 2 ORDER BY first DESC LIMIT 1), -1 << 62), NULL)
        FROM search WHERE low < high)
    SELECT low FROM search WHERE low >= high
"""


def read_slice(
    connection: sqlite3.Connection, topic: str, partition: int, start: int, limit: int, max_bytes: int
) -> EventSlice:
    limit = max(limit, 1)
    place = start
    while True:
        end, rows = read_end_and_rows(connection, topic, partition, place, limit=limit, max_bytes=max_bytes)
        if not rows and place < end:
            raise Unavailable(f"The rows from offset {place} to {end} of {topic}/{partition} are damaged.")
        events = _events_of_rows(rows, start, limit)
        if len(events) == limit:
            place = events[-1].offset + 1
        elif rows:
            place = rows[-1].end_offset
        if events or place >= end:
            return EventSlice(events, place, place >= end)


def read_bounds(connection: sqlite3.Connection, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
    wanted = {"topic": topic, "partitions": orjson.dumps(list(partitions)).decode()}
    (found,) = connection.execute(SELECT_BOUNDS, wanted).fetchone()
    bounds = {number: OffsetBounds(oldest, following or 0) for number, oldest, following in orjson.loads(found)}
    missing = [number for number in partitions if number not in bounds]
    if missing or not (bounds or is_known_topic(connection, topic)):
        raise UnknownTopic(f"{topic} is unknown, or has no partition {missing}")
    return {number: bounds[number] for number in partitions}


def first_offset_since(connection: sqlite3.Connection, topic: str, partition: int, moment: datetime) -> int:
    wanted = {"topic": topic, "partition": partition, "moment": microseconds_since_epoch(moment)}
    found = connection.execute(SEARCH_OFFSET_AT_TIME, wanted).fetchone()
    if found is None:
        raise UnknownTopic(f"{topic} is unknown, or has no partition {partition}")
    return int(found[0])


def is_known_topic(connection: sqlite3.Connection, topic: str) -> bool:
    return connection.execute("SELECT 1 FROM topics WHERE name = ?", (topic,)).fetchone() is not None


def read_end_and_rows(
    connection: sqlite3.Connection, topic: str, partition: int, start: int, *, limit: int, max_bytes: int
) -> tuple[int, list[FrameRow]]:
    """The end of the log, and its next rows from an offset on."""
    wanted = {"topic": topic, "partition": partition, "start": start, "limit": limit, "max_bytes": max_bytes}
    found = connection.execute(SELECT_JOINED_ROWS, wanted).fetchone()
    if found is None:
        raise UnknownTopic(f"{topic} is unknown, or has no partition {partition}")
    oldest, following, joined = found
    if not oldest <= start <= (following or 0):
        raise OffsetUnavailable(f"{start} is not between {oldest} and {following or 0}")
    return following or 0, list(_split_joined_rows(joined or b""))


def _split_joined_rows(joined: bytes) -> Iterator[FrameRow]:
    """Split the rows that SQLite has joined."""
    place = following = 0
    while place < len(joined):
        body = place + ROW_HEAD_FORMAT.size
        first, count, stored_at, length = (
            ROW_HEAD_FORMAT.unpack_from(joined, place) if body <= len(joined) else (-1, 0, 0, 0)
        )
        place = body + length
        if first < following or place > len(joined):
            raise Unavailable(f"The rows behind offset {following} are damaged.")
        yield FrameRow(first, count, stored_at, joined[body:place])
        following = first + count


def records_of_row(row: FrameRow, selection: slice = frames.ALL_RECORDS) -> list[Record | None]:
    if not row.frame:
        return []
    try:
        return frames.decode(row.frame, selection)
    except frames.BadFrame as error:
        raise _damaged_row_error(row, error) from error


def keys_and_tombstones_of_row(row: FrameRow) -> list[tuple[str | None, bool] | None]:
    """For each offset of the row, the key and whether the record is a tombstone; None for a removed event."""
    if not row.frame:
        return []
    try:
        return frames.keys_and_tombstones(row.frame)
    except frames.BadFrame as error:
        raise _damaged_row_error(row, error) from error


def _events_of_rows(rows: Sequence[FrameRow], start: int, limit: int) -> Sequence[StoredEvent]:
    """The first events of these rows, beginning at an offset."""
    if not any(row.frame and frames.has_metadata(row.frame) for row in rows):
        return LazyEvents(list(_blocks_of_rows(rows, start, limit)))
    events: list[StoredEvent] = []
    for row in rows:
        events += _events_of_row(row, start, limit - len(events))
    return tuple(events[:limit])


def _blocks_of_rows(rows: Sequence[FrameRow], start: int, limit: int) -> Iterator[EventTextBlock]:
    """The first events of rows of plain events, beginning at an offset."""
    for row in rows:
        if not row.frame or limit <= 0:
            continue
        try:
            block = EventTextBlock(
                row.first_offset, datetime_from_microseconds(row.stored_at), *frames.text_and_ends(row.frame)
            )
        except frames.BadFrame as error:
            raise _damaged_row_error(row, error) from error
        first = max(start - row.first_offset, 0)
        last = min(len(block.ends), first + limit)
        if first < last:
            yield block.block_between(first, last)
            limit -= last - first


def _events_of_row(row: FrameRow, start: int, limit: int) -> list[StoredEvent]:
    """Events of a row, beginning at an offset: as many as wanted, if they exist."""
    skipped = max(start - row.first_offset, 0)
    has_gaps = row.frame and frames.has_metadata(row.frame)
    records = records_of_row(row, slice(skipped, None if has_gaps else skipped + max(limit, 0)))
    moment = datetime_from_microseconds(row.stored_at)
    events = map(StoredEvent._make, zip(count(row.first_offset + skipped), records, repeat(moment), strict=False))
    return [event for event in events if event.record is not None] if has_gaps else list(events)


def _damaged_row_error(row: FrameRow, error: frames.BadFrame) -> Unavailable:
    return Unavailable(f"The frame at offset {row.first_offset} is damaged: {error}.")
