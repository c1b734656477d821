"""Filters: which events of its event types a subscription's client gets to see."""

from __future__ import annotations

from typing import Any

import orjson

from nakadi.consuming.reading import Deliverable
from nakadi.model.authorization import Subject
from nakadi.model.events import Record
from nakadi.model.subscription import EventTypePartition
from nakadi.streaming.judge import Judge


def deliverable(judge: Judge, subscription_id: str, subject: Subject, attached: str = "") -> Deliverable:
    """Whether a subject may see an event of a subscription; of an event type that is `attached` to it, only those that
    are tagged for it."""

    def is_for_them(place: EventTypePartition, record: Record) -> bool:
        if record.directed_to is not None:
            if record.directed_to != subscription_id:
                return False
            record = record._replace(directed_to=None)
        elif place.event_type == attached:
            return False
        return judge.may_read(record, subject) and not (judge.misplaced_are_skipped and is_misplaced(place, record))

    return is_for_them


def is_misplaced(place: EventTypePartition, record: Record) -> bool:
    """Whether an event says of itself that it belongs elsewhere; one that says nothing is where it should be."""
    event: Any = orjson.loads(record.value or b"{}")
    metadata = event.get("metadata") if isinstance(event, dict) else None
    said = metadata.get("event_type") if isinstance(metadata, dict) else None
    return said is not None and said != place.event_type
