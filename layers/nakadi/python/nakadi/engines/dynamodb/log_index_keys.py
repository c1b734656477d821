"""The keys of items in the log index: for the engine, and for the deployment, which gives jobs access to some of them.

As in `tables`, nothing here imports the clients of AWS.
"""

from __future__ import annotations

SEGMENTS_KEY_PREFIX = "segments#"
IDENTITY_KEY = "identity"


def topic_key(topic: str) -> str:
    return f"topic#{topic}"


def head_sort_key(partition: int) -> str:
    return f"head#{partition:06d}"


def segments_key(topic: str, partition: int) -> str:
    return f"{SEGMENTS_KEY_PREFIX}{topic}/{partition}"


def topic_in_segments_key(partition_key: str) -> str:
    return partition_key.removeprefix(SEGMENTS_KEY_PREFIX).rpartition("/")[0]


def segment_sort_key(first_offset: int) -> str:
    return f"{first_offset:020d}"


def claim_key(name: str) -> str:
    return f"claim#{name}"


def stream_key(stream: str) -> str:
    return f"stream#{stream}"
