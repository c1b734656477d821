"""The names of tables, and the columns that say where an event is. This module needs no Spark."""

from __future__ import annotations

import re

PLACES = (
    ("nakadi_timeline", "int", "the order of the timeline, from 1"),
    ("nakadi_partition", "int", "the partition"),
    ("nakadi_offset", "bigint", "the offset in the partition and timeline"),
    ("nakadi_time", "timestamp", "when the broker stored the event"),
    ("nakadi_key", "string", "what the event is compacted or partitioned by"),
    ("nakadi_owner", "struct<data_type:string,value:string>", "who alone may read the event"),
    ("nakadi_directed_to", "string", "the subscription that the event is for"),
    ("nakadi_tombstone", "boolean", "whether this says that there is nothing under the key any more"),
    (
        "nakadi_size",
        "int",
        (
            "how many bytes the event has as it is stored and delivered, with the metadata that the broker adds; "
            "0 for a tombstone"
        ),
    ),
    ("nakadi_publisher", "string", "the application that published the event"),
    ("nakadi_event", "string", "the whole event as JSON, if the columns do not hold all of it"),
)
"""Columns that every table has: name, type, and meaning."""

ORDER = ("nakadi_timeline", "nakadi_partition", "nakadi_offset")
"""The columns that identify an event. Tables are sorted by them."""

LATEST_SUFFIX = "__latest"
"""The suffix of the table with the newest event of each key. No event type's own table has two adjacent underscores."""


def table_name(event_type: str) -> str:
    """A name that every query engine accepts."""
    return re.sub(r"[^a-z0-9]+", "_", event_type.lower()).strip("_") or "events"
