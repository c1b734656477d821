"""Partition keys of records in the stream: they name the topic and the partition."""

from __future__ import annotations

import hashlib
import re

from nakadi.model.events import TopicPartition

HASH_KEY_COUNT = (1 << 128) - 1
"""The number of hash keys, without the greatest one, which not every Kinesis accepts."""

MAX_TOPIC_CHARACTERS = 240
"""A partition key has at most 256 characters, which also contain the number of the partition."""

GAP_MARKER_PARTITION_KEY = "behind a gap"
"""The key of records that merely mark a position in a shard, from which reading can continue."""

CONTINUING_TOPIC_PATTERN = re.compile(r"(.+)~[0-9]+")


def original_topic(topic: str) -> str:
    """The topic whose records this one counts: itself, or the topic that it continues."""
    continued = CONTINUING_TOPIC_PATTERN.fullmatch(topic)
    return continued[1] if continued else topic


def next_topic_name(topic: str) -> str:
    first = original_topic(topic)
    number = int(topic.removeprefix(f"{first}~")) if topic != first else 1
    return f"{first}~{number + 1}"


def partition_key(topic: str, partition: int) -> str:
    return f"{original_topic(topic)}/{partition}"


def parse_partition_key(key: str) -> TopicPartition | None:
    """The topic and partition in a key; None if it is not one of ours."""
    topic, slash, number = key.rpartition("/")
    return (topic, int(number)) if slash and topic and number.isascii() and number.isdigit() else None


def hash_key(key: str) -> int:
    """The hash key. It never changes: another key would be in another shard, and the partition would lose its order."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:16]) % HASH_KEY_COUNT
