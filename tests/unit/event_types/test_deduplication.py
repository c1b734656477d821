"""The event types that may deduplicate events."""

import pytest
from msgspec.structs import replace

from nakadi.event_types.deduplication import check_deduplication, check_storage_deduplicates
from nakadi.model.annotations import DEDUPLICATION_ANNOTATION
from nakadi.model.event_type import Deduplication
from nakadi.model.outcomes import Invalid
from nakadi.ports.deduplication import DeduplicatingLog
from tests.support.builders import an_event_type
from tests.support.publishing import PublisherInMemory, a_business_type

ONCE = Deduplication(window_seconds=300)
REFUSAL = "deduplication is not available in storage kafka-1: it does not know events by their eid"


class OnlyDefault:
    """The logs of storages; only the log of the default storage recognizes events by their ids."""

    def find(self, storage_id: str) -> DeduplicatingLog | None:
        return PublisherInMemory().publisher.deduplication.find(storage_id) if storage_id == "default" else None


def test_a_storage_has_to_know_events_by_their_eid():
    """An event type that deduplicates is refused in a storage that cannot recognize its events by their ids. (P156)"""
    check_storage_deduplicates(a_business_type(deduplication=ONCE), "default", OnlyDefault())
    check_storage_deduplicates(a_business_type(), "kafka-1", OnlyDefault())
    with pytest.raises(Invalid, match=REFUSAL):
        check_storage_deduplicates(a_business_type(deduplication=ONCE), "kafka-1", OnlyDefault())


def test_the_storage_that_it_moves_to_counts_as_well():
    """During a move, the new storage must support deduplication, too. (P156)"""
    settled = a_business_type(deduplication=ONCE)
    moving = replace(settled, switching_to=replace(settled.timeline, order=2, storage_id="kafka-1"))
    with pytest.raises(Invalid, match=REFUSAL):
        check_deduplication(moving, OnlyDefault())


def test_the_field_counts_before_the_annotation():
    """If an event type has both the field and the annotation, the field takes precedence. (P156)"""
    both = an_event_type(deduplication=ONCE, annotations={DEDUPLICATION_ANNOTATION: "60"})
    annotated, neither = replace(both, deduplication=None), an_event_type()
    found = [each.deduplication_window for each in (both, annotated, neither)]
    assert [each and each.total_seconds() for each in found] == [300, 60, None]
