"""What a record of the stream is made of: a short head that tells all that counting needs, then a frame.

    magic 2 · kind 1 · unused 1 · number of events 4 · stored at 8 [· append 8 · number of the part 2 · of so many 2]

The layout is frozen: a reader that took a record for something else would count differently from the others, for
ever. What may change has a version of its own, in the frame. A record that does not begin so is not ours, and holds no
events.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEAD = struct.Struct("<2sBxIq")
PART = struct.Struct("<8sHH")
MAGIC = b"nk"

WHOLE, PART_OF, SEAL = 1, 2, 3
KINDS = {WHOLE, PART_OF, SEAL}

LONGEST_HEAD = HEAD.size + PART.size
MOST_PARTS = (1 << 16) - 1


class Envelope(NamedTuple):
    kind: int
    events: int
    stored_at: int
    frame: bytes
    append: bytes = b""
    part: int = 0
    parts: int = 1


def whole(count: int, stored_at: int, frame: bytes) -> bytes:
    return HEAD.pack(MAGIC, WHOLE, count, stored_at) + frame


def seal(stored_at: int) -> bytes:
    """A record behind which nothing in its partition counts."""
    return HEAD.pack(MAGIC, SEAL, 0, stored_at)


def parts(count: int, stored_at: int, frame: bytes, append: bytes, most: int) -> list[bytes]:
    """A frame as several records of at most so many bytes."""
    size = most - LONGEST_HEAD
    pieces = [frame[start : start + size] for start in range(0, len(frame), size)]
    if len(pieces) > MOST_PARTS:
        raise ValueError("a frame too long to be cut into records")
    head = HEAD.pack(MAGIC, PART_OF, count, stored_at)
    return [head + PART.pack(append, number, len(pieces)) + piece for number, piece in enumerate(pieces)]


def opened(data: bytes) -> Envelope | None:
    """What is in a record, or None when it is not one of ours."""
    try:
        magic, kind, count, stored_at = HEAD.unpack_from(data)
        if magic != MAGIC or kind not in KINDS:
            return None
        if kind != PART_OF:
            return Envelope(kind, count, stored_at, data[HEAD.size :])
        append, part, total = PART.unpack_from(data, HEAD.size)
    except struct.error:
        return None
    return Envelope(kind, count, stored_at, data[LONGEST_HEAD:], append, part, total)
