"""Where a partition lives: its name in the stream, and the point of the hash range that its records go to."""

from __future__ import annotations

import hashlib
import re

HASH_KEYS = (1 << 128) - 1
"""The greatest hash key of all is left out: not every Kinesis takes it."""

LONGEST_TOPIC = 240
"""A partition key has 256 characters."""

GAP_KEY = "behind a gap"
"""The key of records that only mark a place in a shard, so that there is something to go on from."""

CONTINUED = re.compile(r"(.+)~[0-9]+")


def shared(topic: str) -> str:
    """The topic whose records this one counts: its own, or those of the topic that it continues."""
    continued = CONTINUED.fullmatch(topic)
    return continued[1] if continued else topic


def following(topic: str) -> str:
    """The name of the topic that continues this one."""
    first = shared(topic)
    number = int(topic.removeprefix(f"{first}~")) if topic != first else 1
    return f"{first}~{number + 1}"


def partition_key(topic: str, partition: int) -> str:
    return f"{shared(topic)}/{partition}"


def place_of(key: str) -> tuple[str, int] | None:
    """The topic and partition that a key names, or None when it is not one of ours."""
    topic, slash, number = key.rpartition("/")
    return (topic, int(number)) if slash and topic and number.isascii() and number.isdigit() else None


def hash_key(key: str) -> int:
    """Fixed for ever: another one would be another place, and the partition's order would be lost."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:16]) % HASH_KEYS
