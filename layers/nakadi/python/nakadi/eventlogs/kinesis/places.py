"""Where a partition lives: its name in the stream, and the point of the hash range that its records go to."""

from __future__ import annotations

import hashlib

HASH_KEYS = (1 << 128) - 1
"""The greatest hash key of all is left out: not every Kinesis takes it."""

LONGEST_TOPIC = 240
"""A partition key has 256 characters."""


def partition_key(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def place_of(key: str) -> tuple[str, int] | None:
    """The topic and partition that a key names, or None when it is not one of ours."""
    topic, slash, number = key.rpartition("/")
    return (topic, int(number)) if slash and topic and number.isascii() and number.isdigit() else None


def hash_key(key: str) -> int:
    """Fixed for ever: another one would be another place, and the partition's order would be lost."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:16]) % HASH_KEYS
