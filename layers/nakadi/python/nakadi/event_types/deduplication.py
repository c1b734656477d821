"""Which event types can deduplicate: their events must have ids, and their log must recognize these ids."""

from __future__ import annotations

from nakadi.model.annotations import DEDUPLICATION_ANNOTATION
from nakadi.model.event_type import (
    MAX_DEDUPLICATION_SECONDS,
    Category,
    EventType,
    deduplication_seconds_in_annotation,
)
from nakadi.model.outcomes import Invalid
from nakadi.ports.deduplication import DeduplicatingLogs

UNDEFINED_CATEGORY_MESSAGE = "deduplication is not available for 'undefined' event type category"


def check_deduplication(event_type: EventType, logs: DeduplicatingLogs) -> None:
    if deduplication_seconds_in_annotation(event_type.annotations) == 0:
        raise Invalid(
            f"Annotation {DEDUPLICATION_ANNOTATION} is not valid. "
            f'Provided value: "{event_type.annotations[DEDUPLICATION_ANNOTATION]}". '
            f"Possible values are whole numbers from 1 to {MAX_DEDUPLICATION_SECONDS}."
        )
    if event_type.deduplication_window is not None and event_type.category is Category.UNDEFINED:
        raise Invalid(UNDEFINED_CATEGORY_MESSAGE)
    for timeline in filter(None, (event_type.timeline, event_type.switching_to)):
        check_storage_deduplicates(event_type, timeline.storage_id, logs)


def check_storage_deduplicates(event_type: EventType, storage_id: str, logs: DeduplicatingLogs) -> None:
    """Refuse a storage without deduplication for an event type that deduplicates."""
    if event_type.deduplication_window is None:
        return
    if logs.find(storage_id) is None:
        raise Invalid(f"deduplication is not available in storage {storage_id}: it does not know events by their eid")
