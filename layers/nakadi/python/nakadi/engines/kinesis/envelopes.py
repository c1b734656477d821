"""Records of the stream: their partition keys and their envelopes."""

from __future__ import annotations

import hashlib
import re
import struct
from typing import NamedTuple

# Partition keys -------------------------------------------------------------------------------------------------------
from nakadi.model.events import TopicPartition

HASH_KEY_COUNT = (1 << 128) - 1
"""The greatest hash key of all is left out: not every Kinesis takes it."""

MAX_TOPIC_CHARACTERS = 240
"""A partition key has 256 characters."""

GAP_MARKER_PARTITION_KEY = "behind a gap"
"""The key of records that only mark a position in a shard, so that there is something to go on from."""

CONTINUING_TOPIC_PATTERN = re.compile(r"(.+)~[0-9]+")


def original_topic(topic: str) -> str:
    """The topic whose records this one counts: its own, or those of the topic that it continues."""
    continued = CONTINUING_TOPIC_PATTERN.fullmatch(topic)
    return continued[1] if continued else topic


def next_topic_name(topic: str) -> str:
    first = original_topic(topic)
    number = int(topic.removeprefix(f"{first}~")) if topic != first else 1
    return f"{first}~{number + 1}"


def partition_key(topic: str, partition: int) -> str:
    return f"{original_topic(topic)}/{partition}"


def parse_partition_key(key: str) -> TopicPartition | None:
    """The topic and partition that a key names, or None when it is not one of ours."""
    topic, slash, number = key.rpartition("/")
    return (topic, int(number)) if slash and topic and number.isascii() and number.isdigit() else None


def hash_key(key: str) -> int:
    """Fixed for ever: another one would be in another shard, and the partition's order would be lost."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:16]) % HASH_KEY_COUNT


# Envelopes ------------------------------------------------------------------------------------------------------------


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
    """A record behind which nothing in its partition counts."""
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
    """What is in a record, or None when it is not one of ours."""
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
