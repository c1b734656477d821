"""Rows: how frames lie in the file, and how records are gathered into frames."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from nakadi.eventlogs import frames
from nakadi.model.events import Record

T = TypeVar("T")

ROW = struct.Struct("<QIqI")
"""What a body begins with, so that rows can be joined within SQLite: first offset, count, stored at, length."""

FRAME_BYTES = 64_000
"""Frames are cut at about this size: readers fetch and unpack whole ones."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that stay together."""

    records: Sequence[Record]
    size: int
    frame: bytes


class Row(NamedTuple):
    """As it was read. `seats` is how many offsets it covers."""

    first: int
    seats: int
    stored_at: int
    frame: bytes

    @property
    def end(self) -> int:
        return self.first + self.seats

    def body(self, frame: bytes | None = None) -> bytes:
        """How the row is kept, with its own frame or another one."""
        frame = self.frame if frame is None else frame
        return ROW.pack(self.first, self.seats, self.stored_at, len(frame)) + frame


def chunks_of(records: Sequence[Record]) -> Iterator[Chunk]:
    for group, size in _grouped(records, [len(record.value or b"") + 1 for record in records]):
        yield Chunk(group, size, frames.encode(group))


def merged(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Join neighbours that are small: readers of single events would otherwise fetch as many rows."""
    for group, size in _grouped(chunks, [chunk.size for chunk in chunks]):
        if len(group) == 1:
            yield group[0]
        else:
            records = [record for chunk in group for record in chunk.records]
            yield Chunk(records, size, frames.encode(records))


def _grouped(items: Sequence[T], sizes: Iterable[int]) -> Iterator[tuple[list[T], int]]:
    """Neighbours in groups of about the size of a frame."""
    group: list[T] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if group and total + size > FRAME_BYTES:
            yield group, total
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group, total
