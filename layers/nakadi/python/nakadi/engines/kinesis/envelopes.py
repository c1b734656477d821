"""The envelope of a record in the stream, which contains a whole frame, a part of a frame, or a seal."""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER_FORMAT = struct.Struct("<2sBxIq")
PART_HEADER_FORMAT = struct.Struct("<8sHH")
MAGIC_BYTES = b"nk"

WHOLE_FRAME, FRAME_PART, SEAL = 1, 2, 3
ENVELOPE_KINDS = {WHOLE_FRAME, FRAME_PART, SEAL}

MAX_HEADER_BYTES = HEADER_FORMAT.size + PART_HEADER_FORMAT.size
MAX_PARTS = (1 << 16) - 1


class Envelope(NamedTuple):
    kind: int
    event_count: int
    stored_at: int
    frame: bytes
    append_id: bytes = b""
    part_number: int = 0
    part_count: int = 1


def pack_frame(event_count: int, stored_at: int, frame: bytes) -> bytes:
    return HEADER_FORMAT.pack(MAGIC_BYTES, WHOLE_FRAME, event_count, stored_at) + frame


def pack_seal(stored_at: int) -> bytes:
    """A seal: a record after which the records of its partition are ignored."""
    return HEADER_FORMAT.pack(MAGIC_BYTES, SEAL, 0, stored_at)


def pack_parts(event_count: int, stored_at: int, frame: bytes, append_id: bytes, max_record_bytes: int) -> list[bytes]:
    size = max_record_bytes - MAX_HEADER_BYTES
    pieces = [frame[start : start + size] for start in range(0, len(frame), size)]
    if len(pieces) > MAX_PARTS:
        raise ValueError("a frame too long to be cut into records")
    head = HEADER_FORMAT.pack(MAGIC_BYTES, FRAME_PART, event_count, stored_at)
    return [
        head + PART_HEADER_FORMAT.pack(append_id, number, len(pieces)) + piece for number, piece in enumerate(pieces)
    ]


def parse_envelope(data: bytes) -> Envelope | None:
    """The content of a record; None if the broker did not write it."""
    try:
        magic, kind, count, stored_at = HEADER_FORMAT.unpack_from(data)
        if magic != MAGIC_BYTES or kind not in ENVELOPE_KINDS:
            return None
        if kind != FRAME_PART:
            return Envelope(kind, count, stored_at, data[HEADER_FORMAT.size :])
        append, part, total = PART_HEADER_FORMAT.unpack_from(data, HEADER_FORMAT.size)
    except struct.error:
        return None
    return Envelope(kind, count, stored_at, data[MAX_HEADER_BYTES:], append, part, total)
