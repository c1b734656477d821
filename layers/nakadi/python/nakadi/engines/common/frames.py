"""Frames: several records in one block of bytes, which is stored or sent whole or not at all.

    magic 2 · version 1 · flags 1 · number of records 4 · length of the notes 4 · notes · lines

The lines are the events as newline-delimited JSON, with an empty line for a tombstone or a removed record. The notes
are a JSON object with everything that the lines do not contain, such as keys; a frame of plain events has no notes.
Notes and lines are compressed together if that makes them much smaller.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

import orjson
import zstandard

from nakadi.model.authorization import Attribute
from nakadi.model.events import Record, RecordLines

HEADER_FORMAT = struct.Struct("<2sBBII")
MAGIC_BYTES = b"nf"
FORMAT_VERSION = 1
HAS_METADATA_FLAG = 1
COMPRESSED_FLAG = 2

MIN_BYTES_TO_COMPRESS = 1500
"""Below this many bytes, compression saves less than it costs."""

COMPRESSION_LEVEL = 1
"""For events, higher levels take longer and save no more bytes."""

MAX_DECOMPRESSED_BYTES = 1 << 30

ALL_RECORDS = slice(None)
ENDLESS_NONES = repeat(None)
NO_KEY_OWNER_SUBSCRIPTION = (None, None, None)
"""No key, no owner, no subscription."""


class BadFrame(Exception):
    """Raised when bytes are not a frame, or a frame of an unknown version."""


def encode(records: Sequence[Record | None]) -> bytes:
    """A frame of these records; None keeps the place of a removed record."""
    if isinstance(records, RecordLines):
        joined, notes = records.text, b"" if records.keys is None else orjson.dumps({"keys": records.keys})
    else:
        joined, notes = (
            b"\n".join([record.value or b"" if record else b"" for record in records]),
            _metadata_json(records),
        )
    if records and joined.count(b"\n") != len(records) - 1:
        raise ValueError("an event contains a line break")
    flags, payload = _compressed_if_smaller(HAS_METADATA_FLAG if notes else 0, notes + joined)
    return HEADER_FORMAT.pack(MAGIC_BYTES, FORMAT_VERSION, flags, len(records), len(notes)) + payload


def check_no_line_breaks(records: Sequence[Record]) -> None:
    """Raise `ValueError` for records that no frame can hold."""
    for record in records:
        if record.value is not None and b"\n" in record.value:
            raise ValueError("an event contains a line break")


def decode(frame: bytes, selection: slice = ALL_RECORDS) -> list[Record | None]:
    """The records of a frame, or those that `selection` selects, with None in the places of removed records."""
    count, notes, joined = _split_frame(frame)
    lines = joined.split(b"\n") if count else []
    if len(lines) != count:
        raise BadFrame(f"a frame of {count} records has {len(lines)} lines")
    if notes:
        return _records_from_lines_and_metadata(lines, notes)[selection]
    return list(map(Record._make, zip(lines[selection], ENDLESS_NONES, ENDLESS_NONES, ENDLESS_NONES, strict=False)))


def text_and_ends(frame: bytes) -> tuple[bytes, list[int]]:
    """The text of a frame's plain events, with commas between them, and the end of each event in the text. Call it only
    if `has_metadata` is false."""
    count, _, joined = _split_frame(frame)
    find = joined.find
    ends: list[int] = []
    end = find(b"\n")
    while end >= 0:
        ends.append(end)
        end = find(b"\n", end + 1)
    if count:
        ends.append(len(joined))
    if len(ends) != count:
        raise BadFrame(f"a frame of {count} records has {len(ends)} lines")
    return joined.replace(b"\n", b","), ends


def has_metadata(frame: bytes) -> bool:
    """Whether the frame has notes: then some records may have been removed, or have keys."""
    return bool(HEADER_FORMAT.unpack_from(frame)[2] & HAS_METADATA_FLAG)


def keys_and_tombstones(frame: bytes) -> list[tuple[str | None, bool] | None]:
    """For each record, the key and whether it is a tombstone, without reading the events; None for removed records."""
    count, notes, _ = _split_frame(frame)
    columns = orjson.loads(notes) if notes else {}
    found: list[tuple[str | None, bool] | None] = [(key, False) for key in columns.get("keys", [None] * count)]
    for index in columns.get("tombstones", ()):
        found[index] = (columns.get("keys", [None] * count)[index], True)
    for index in columns.get("gone", ()):
        found[index] = None
    return found


def records_size_bytes(records: Sequence[Record]) -> int:
    return sum([len(record.value) if record.value else 1 for record in records])


def _metadata_json(records: Sequence[Record | None]) -> bytes:
    if all(
        record is not None and record[0] is not None and record[1:] == NO_KEY_OWNER_SUBSCRIPTION for record in records
    ):
        return b""
    columns = {
        "gone": [index for index, record in enumerate(records) if record is None],
        "tombstones": [index for index, record in enumerate(records) if record is not None and record.value is None],
        "keys": _column_unless_empty([record.key if record else None for record in records]),
        "owners": _column_unless_empty([_event_owner_pair(record.owner) if record else None for record in records]),
        "directed_to": _column_unless_empty([record.directed_to if record else None for record in records]),
    }
    return orjson.dumps({name: column for name, column in columns.items() if column})


def _column_unless_empty(values: list[Any]) -> list[Any]:
    return values if any(value is not None for value in values) else []


def _event_owner_pair(owner: Attribute | None) -> tuple[str, str] | None:
    return (owner.data_type, owner.value) if owner else None


def _records_from_lines_and_metadata(lines: list[bytes], notes: bytes) -> list[Record | None]:
    columns = orjson.loads(notes)
    nothing = [None] * len(lines)
    values: list[bytes | None] = list(lines)
    for index in columns.get("tombstones", ()):
        values[index] = None
    owners = [Attribute(*pair) if pair else None for pair in columns.get("owners", nothing)]
    found = zip(values, columns.get("keys", nothing), owners, columns.get("directed_to", nothing), strict=True)
    records: list[Record | None] = list(map(Record._make, found))
    for index in columns.get("gone", ()):
        records[index] = None
    return records


def _compressed_if_smaller(flags: int, payload: bytes) -> tuple[int, bytes]:
    if len(payload) >= MIN_BYTES_TO_COMPRESS:
        packed = _THREAD_ZSTD.compressor.compress(payload)
        if len(packed) < 0.8 * len(payload):
            return flags | COMPRESSED_FLAG, packed
    return flags, payload


def _split_frame(frame: bytes) -> tuple[int, bytes, bytes]:
    """The number of records, the notes and the lines."""
    try:
        magic, version, flags, count, notes = HEADER_FORMAT.unpack_from(frame)
    except struct.error as error:
        raise BadFrame("shorter than a frame's header") from error
    if magic != MAGIC_BYTES or version != FORMAT_VERSION:
        raise BadFrame(f"not a frame of version {FORMAT_VERSION}")
    payload = frame[HEADER_FORMAT.size :]
    if flags & COMPRESSED_FLAG:
        payload = _decompress(payload)
    return (count, payload[:notes], payload[notes:]) if notes else (count, b"", payload)


class _ZstdPerThread(threading.local):
    """The compressor and decompressor of a thread: two threads must not share them, and creating one takes as long as
    compressing a frame.
    """

    @cached_property
    def compressor(self) -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)

    @cached_property
    def decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor()


_THREAD_ZSTD = _ZstdPerThread()


def _decompress(payload: bytes) -> bytes:
    try:
        if zstandard.frame_content_size(payload) > MAX_DECOMPRESSED_BYTES:
            raise BadFrame("a frame that claims to be longer than any")
        return _THREAD_ZSTD.decompressor.decompress(payload)
    except zstandard.ZstdError as error:
        raise BadFrame(f"a damaged frame: {error}") from error
