"""Delays compaction until tables have all events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from nakadi.event_types.repository import EventTypes
from nakadi.model.annotations import (
    MATERIALIZE_ANNOTATION,
)
from nakadi.model.event_type import EventType
from nakadi.model.events import TopicPartition, datetime_from_microseconds
from nakadi.model.log_index import IndexSegment
from nakadi.ports.event_log import EventLog
from nakadi.ports.log_index import LogIndex


class CompactionGuard(Struct, frozen=True, kw_only=True):
    """Decides which events compaction must not touch yet, so that tables get every published event.

    Compaction is delayed by at most `longest_delay`: after that, events are compacted even if no job runs.
    """

    event_types: EventTypes
    log_index: LogIndex
    longest_delay: timedelta

    def compactable_until(
        self, event_type: EventType, topic_partition: TopicPartition, event_log: EventLog, now: datetime
    ) -> datetime:
        """The time until which events of a partition may be compacted: every earlier event is in its table, or has
        waited too long.

        A job stores the progress of a table after its commit, so this time is never too late. The events of a partition
        are stored in the order of their offsets.
        """
        no_table = event_type.annotations.get(MATERIALIZE_ANNOTATION) == "off"
        if no_table or not self.longest_delay or self.log_index.topic(topic_partition[0]) is None:
            return now
        state = self.event_types.table_state(event_type)
        following = state.next_offsets.get(topic_partition, 0) if state else 0
        topic, partition = topic_partition
        if following >= event_log.bounds(topic, [partition])[partition].next_offset:
            return now
        head = self.log_index.index_heads([topic_partition])[topic_partition].state
        unread = (
            next(index_segments_from(self.log_index, topic_partition, following), None)
            if following < head.next_offset
            else None
        )
        # If every archived event is in the table, the events that are not archived yet were stored after the latest
        # archived one.
        since = head.latest_stored_at if unread is None else unread.first_stored_at
        return max(datetime_from_microseconds(since), now - self.longest_delay)


def index_segments_from(log_index: LogIndex, topic_partition: TopicPartition, offset: int) -> Iterator[IndexSegment]:
    """The segment with an offset, if there is one, and the first segment after the offset."""
    segment = log_index.segment_at_or_before(*topic_partition, offset)
    if segment is not None and segment.end_offset > offset:
        yield segment
    yield from log_index.segments_from(*topic_partition, offset, 1)
