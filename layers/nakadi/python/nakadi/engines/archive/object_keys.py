"""The keys of archive objects: folders for original and for rewritten events, and namespaces in them."""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

LOG_FOLDER = "log/"
"""The folder of objects with events as they were archived, of one partition or of many."""

REWRITTEN_FOLDER = "compacted/"
"""The folder of objects with rewritten events, each object with those of one partition only."""

UNKNOWN_EVENT_TYPE = "_"
"""Stands for the name of an unknown event type."""


def new_log_key(namespace: str, event_type: str | None, topic: str, first_stored_at: datetime) -> str:
    folder = f"{LOG_FOLDER}{namespace}/{event_type or UNKNOWN_EVENT_TYPE}/{first_stored_at:%Y-%m-%d}"
    return f"{folder}/{topic}-{uuid4().hex}.json.gz"


def new_rewritten_key(old_key: str, topic: str, partition: int, first_offset: int) -> str:
    """A new key for rewritten events that were in the object `old_key` so far."""
    return new_rewritten_key_in(namespace_of_key(old_key), topic, partition, first_offset)


def new_rewritten_key_in(namespace: str, topic: str, partition: int, first_offset: int) -> str:
    return f"{REWRITTEN_FOLDER}{namespace}/{topic}/{partition}/{first_offset:018d}-{uuid4().hex}.json.gz"


def new_key_beside(key: str) -> str:
    """A new key, in the same folder, for the remaining events of an object."""
    folder, _, name = key.rpartition("/")
    return f"{folder}/{name.split('.')[0].rpartition('-')[0] or 'rest'}-{uuid4().hex}.json.gz"


def namespace_of_key(key: str) -> str:
    return key.split("/", 2)[1]
