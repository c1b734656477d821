"""Builds values with good defaults, so a test states only what matters to it."""

import itertools
from datetime import UTC, datetime
from typing import Any

from nakadi.model.event_type import Category, EventType, Schema, Timeline, Version

A_MOMENT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

_numbers = itertools.count(1)


def a_name(prefix: str = "test.event") -> str:
    """An event type name that no other test has."""
    return f"{prefix}-{next(_numbers)}"


def a_timeline(**changes: Any) -> Timeline:
    number = next(_numbers)
    defaults: dict[str, Any] = {
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "order": 1,
        "storage_id": "default",
        "topic": f"topic-{number}",
        "partitions": 1,
        "created_at": A_MOMENT,
        "switched_at": A_MOMENT,
    }
    return Timeline(**defaults | changes)


def a_schema(text: str = "{}", **changes: Any) -> Schema:
    defaults: dict[str, Any] = {"text": text, "version": Version(), "created_at": A_MOMENT}
    return Schema(**defaults | changes)


def an_event_type(**changes: Any) -> EventType:
    """A registered event type; `partitions=3` gives its only timeline three of them."""
    partitions = changes.pop("partitions", 1)
    name = changes.pop("name", None) or a_name()
    defaults: dict[str, Any] = {
        "id": f"id-of-{name}",
        "name": name,
        "owning_application": "shop",
        "category": Category.UNDEFINED,
        "schema": a_schema(),
        "retention_time": 172_800_000,
        "created_at": A_MOMENT,
        "updated_at": A_MOMENT,
        "timelines": (a_timeline(partitions=partitions),),
        "revision": 1,
    }
    return EventType(**defaults | changes)
