"""Housekeeping: what has to happen now and then without anybody asking.

Every step is small, can be repeated, and does no harm when two processes do it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from nakadi.catalog.event_types import EventTypes, leftover
from nakadi.catalog.leftovers import Leftovers
from nakadi.catalog.timelines import Timelines
from nakadi.model.event_type import CleanupPolicy, EventType
from nakadi.model.outcomes import Fault, Outcome
from nakadi.model.timeline import Timeline
from nakadi.ports import ChangedMeanwhile, Clock, EventLogs

log = logging.getLogger(__name__)

# Events rest before they are compacted, so that a reader close behind the newest event sees all of them; a tombstone
# stays a day longer, so that a reader who is not so close learns of it.
COMPACTION_LAG = timedelta(minutes=1)
TOMBSTONES_STAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Housekeeping:
    event_types: EventTypes
    timelines: Timelines
    leftovers: Leftovers
    logs: EventLogs
    clock: Clock
    more: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """What other rooms want done, by what it is."""

    def run(self) -> None:
        """Look after everything once. What fails is told in the log, and tried again the next time."""
        self._try("clearing up after deleted event types", self.leftovers.clear_all)
        for what, step in self.more.items():
            self._try(what, step)
        for event_type in self.event_types.all():
            self._try(f"looking after {event_type.name}", partial(self._look_after, event_type))

    def _try(self, what: str, step: Callable[[], None]) -> None:
        try:
            step()
        except (Fault, Outcome, ChangedMeanwhile):
            log.warning("%s did not succeed", what, exc_info=True)

    def _look_after(self, event_type: EventType) -> None:
        self.timelines.finish_abandoned(event_type)
        now = self.clock.now()
        for timeline in event_type.timelines:
            if not timeline.deleted:
                self._trim(event_type, timeline, now)
                self._compact(event_type, timeline, now)
        expired = expired_timelines(event_type, now)
        if expired:
            self._drop(event_type, expired)

    def _trim(self, event_type: EventType, timeline: Timeline, now: datetime) -> None:
        """Events older than the retention time go, but for event types that are only compacted."""
        if event_type.cleanup_policy is CleanupPolicy.COMPACT:
            return
        before = now - timedelta(milliseconds=event_type.retention_time)
        for partition in range(timeline.partitions):
            self.logs.of(timeline.storage_id).trim(timeline.topic, partition, before)

    def _compact(self, event_type: EventType, timeline: Timeline, now: datetime) -> None:
        if not event_type.cleanup_policy.compacts:
            return
        upto, tombstones_before = now - COMPACTION_LAG, now - TOMBSTONES_STAY
        for partition in range(timeline.partitions):
            self.logs.of(timeline.storage_id).compact(
                timeline.topic, partition, upto=upto, tombstones_before=tombstones_before
            )

    def _drop(self, event_type: EventType, expired: tuple[Timeline, ...]) -> None:
        """The registry first: nobody may find a timeline whose events are gone."""
        marked = tuple(replace(each, deleted=True) if each in expired else each for each in event_type.timelines)
        note = leftover(expired[-1].id, expired)
        self.event_types.replace(event_type, replace(event_type, timelines=marked), note)
        self.leftovers.clear(note.key)


def expired_timelines(event_type: EventType, now: datetime) -> tuple[Timeline, ...]:
    """Closed timelines whose events may go."""
    return tuple(
        each
        for each in event_type.timelines
        if not each.deleted and each.cleaned_up_at is not None and each.cleaned_up_at <= now
    )
