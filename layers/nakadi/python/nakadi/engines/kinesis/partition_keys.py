"""Partition keys of records in the stream: they name the topic and the partition."""

from __future__ import annotations

import hashlib
import re

from nakadi.model.events import TopicPartition

HASH_KEY_COUNT = (1 << 128) - 1
"""The number of hash keys in use: all but the greatest one, which not every implementation of Kinesis accepts."""

MAX_TOPIC_CHARACTERS = 240
"""The longest name of a topic: a partition key has at most 256 characters, and also contains the number of the
partition.
"""

GAP_MARKER_PARTITION_KEY = "behind a gap"
"""The partition key of records that only mark a position in a shard, from which reading can continue."""

CONTINUING_TOPIC_PATTERN = re.compile(r"(.+)~[0-9]+")


def original_topic(topic: str) -> str:
    """The topic whose name is in the records: this topic itself, or the one that it continues."""
    continued = CONTINUING_TOPIC_PATTERN.fullmatch(topic)
    return continued[1] if continued else topic


def next_topic_name(topic: str) -> str:
    first = original_topic(topic)
    number = int(topic.removeprefix(f"{first}~")) if topic != first else 1
    return f"{first}~{number + 1}"


def partition_key(topic: str, partition: int) -> str:
    return f"{original_topic(topic)}/{partition}"


def parse_partition_key(key: str) -> TopicPartition | None:
    """The topic and partition in a key; None if the broker did not write the key."""
    topic, slash, number = key.rpartition("/")
    return (topic, int(number)) if slash and topic and number.isascii() and number.isdigit() else None


def hash_key(key: str) -> int:
    """The hash key. This function must never change: a record with another hash key could be in another shard, and the
    partition would lose its order.
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:16]) % HASH_KEY_COUNT
