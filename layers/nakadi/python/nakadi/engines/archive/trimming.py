"""Removes events from the hot half once they are archived."""

from __future__ import annotations

from datetime import datetime

from nakadi.model.events import datetime_from_microseconds
from nakadi.ports.event_log import EventLog
from nakadi.ports.log_index import LogIndex


def trim_all_archived(hot: EventLog, index: LogIndex, topic: str, partition: int) -> None:
    """Let the hot half remove all archived events, including the last ones, unless an unarchived event was stored at
    the same time as these.
    """
    state = index.index_heads([(topic, partition)])[topic, partition].state
    behind = datetime_from_microseconds(state.latest_stored_at + 1)
    # All archived events can go only if no unarchived event has the time of the last archived one. Events that arrive
    # now have a later time.
    if hot.first_offset_since(topic, partition, behind) <= state.next_offset:
        hot.trim(topic, partition, behind)
    else:
        trim_hot_log(hot, index, topic, partition)


def trim_hot_log(
    hot: EventLog, index: LogIndex, topic: str, partition: int, stored_before: datetime | None = None
) -> bool:
    """Let the hot half remove archived events that were stored before a moment; return whether archived events may be
    left for a later call.

    The last archived events stay. This is safe, because no unarchived event is older than these.
    """
    latest = datetime_from_microseconds(
        index.index_heads([(topic, partition)])[topic, partition].state.latest_stored_at
    )
    limit = latest if stored_before is None else min(stored_before, latest)
    if hot.first_offset_since(topic, partition, limit) > hot.bounds(topic, [partition])[partition].oldest:
        hot.trim(topic, partition, limit)
    return limit < latest
