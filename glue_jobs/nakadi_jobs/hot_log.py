"""Erases events from the embedded event log, as far as they are still in the data file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from nakadi.app.engines import open_event_log
from nakadi.engines.archive.trimming import trim_all_archived
from nakadi.model.event_type import EventType
from nakadi.model.events import TopicPartition
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog, OffsetUnavailable, UnknownTopic
from nakadi.ports.log_index import LogIndex
from nakadi_jobs.dead_members import HoldingObject
from nakadi_jobs.erasure import ErasedValue


@contextmanager
def open_hot_log(url: str, clock: Clock) -> Iterator[EventLog | None]:
    """The log in the data file; None if the broker's events are elsewhere."""
    if not url.startswith("sqlite:"):
        yield None
        return
    log = open_event_log(url, clock)
    try:
        yield log
    finally:
        log.close()


def trim(hot: EventLog, index: LogIndex, topic: str, partition: int) -> None:
    """Remove the archived events of a partition from the log, so that readers read them from the archive."""
    # A log without the topic has nothing to trim.
    with suppress(UnknownTopic):
        trim_all_archived(hot, index, topic, partition)


def remove_archived(
    hot: EventLog, index: LogIndex, event_type: EventType, wanted: ErasedValue
) -> Sequence[HoldingObject]:
    """Remove the archived events of each partition that has the value, and return the partitions that still have it."""
    left: list[HoldingObject] = []
    for topic, partition in partitions_with(hot, event_type, wanted):
        with suppress(UnknownTopic):
            # A killed run may have rewritten only the archive.
            trim(hot, index, topic, partition)
            if _contains_value(hot, topic, partition, wanted):
                place = f"partition {partition} of {event_type.name} in the log"
                left.append(HoldingObject(place, "it is not archived yet"))
    return left


def partitions_with(hot: EventLog, event_type: EventType, wanted: ErasedValue) -> Iterator[TopicPartition]:
    """The partitions whose events in the log have the value."""
    for timeline in event_type.timelines:
        for partition in range(timeline.partitions):
            with suppress(UnknownTopic):
                if _contains_value(hot, timeline.topic, partition, wanted):
                    yield timeline.topic, partition


def _contains_value(hot: EventLog, topic: str, partition: int, wanted: ErasedValue) -> bool:
    bounds = hot.bounds(topic, [partition])[partition]
    offset = bounds.oldest
    while offset < bounds.next_offset:
        try:
            found = hot.read(topic, partition, offset)
        except OffsetUnavailable:  # retention was faster
            offset = max(offset + 1, hot.bounds(topic, [partition])[partition].oldest)
            continue
        if any(wanted.occurs_in_record(event.record) for event in found.events):
            return True
        offset = max(found.next_offset, offset + 1)
    return False
