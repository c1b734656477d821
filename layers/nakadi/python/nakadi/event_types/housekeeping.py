"""Housekeeping: retention, compaction and other tasks that run on a schedule.

Each step is small and can be repeated, also by two processes at the same time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.common.chores import Stopped, attempted
from nakadi.common.metrics import Metrics
from nakadi.event_types.deletion import DeletedEventTypes
from nakadi.event_types.repository import EventTypes, cleanup_note
from nakadi.event_types.timelines import Timelines
from nakadi.model.event_type import CleanupPolicy, EventType
from nakadi.model.timeline import Timeline
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLogs, UnknownTopic
from nakadi.ports.registry import ChangedMeanwhile

log = logging.getLogger(__name__)

# Events are compacted only after a while, so that a reader close behind the newest event sees all of them. Tombstones
# are kept for a day more, so that a reader further behind sees them.
COMPACTION_LAG = timedelta(minutes=1)
TOMBSTONES_STAY = timedelta(days=1)


class Housekeeping(Struct, frozen=True, kw_only=True):
    """Runs the tasks of this package, and tasks of others."""

    event_types: EventTypes
    timelines: Timelines
    leftovers: DeletedEventTypes
    logs: EventLogs
    clock: Clock
    more: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """Tasks of other packages, by name."""
    metrics: Metrics = field(default_factory=Metrics)
    _ending: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Run each task once. A failure is logged and counted, and the task is tried again in the next round."""
        tasks = {"deleted event types": self.leftovers.clear_all, **self.more, "event types": self._run_for_all}
        began = self.clock.monotonic()
        with suppress(Stopped):
            for name, step in tasks.items():
                self._attempt("round", name, step)
            self.metrics.housekeeping_seconds.observe(self.clock.monotonic() - began)
            self.metrics.housekeeping_at.set(self.clock.now().timestamp())

    def stop(self) -> None:
        """End a round that is in progress after its current step. No other round begins."""
        self._ending.set()

    def _run_for_all(self) -> None:
        for event_type in self.event_types.all():
            self._run_for(event_type)

    def _run_for(self, event_type: EventType) -> None:
        now = self.clock.now()
        self._try("switch of timelines", event_type, lambda: self.timelines.finish_abandoned(event_type))
        for timeline in event_type.timelines:
            if not timeline.deleted:
                for partition in range(timeline.partitions):
                    self._try("retention", event_type, partial(self._trim, event_type, timeline, partition, now))
                    self._try("compaction", event_type, partial(self._compact, event_type, timeline, partition, now))
        expired = expired_timelines(event_type, now)
        if expired:
            self._try("removal of old timelines", event_type, lambda: self._remove_expired(event_type, expired))

    def _try(self, operation: str, event_type: EventType, step: Callable[[], None]) -> None:
        """Run one step, so that a failure does not stop the others.

        A step that fails because the event type was deleted or changed meanwhile is no failure: the next round reads
        the event type again.
        """

        def unless_changed() -> None:
            try:
                step()
            except ChangedMeanwhile:
                log.info(
                    "The %s of %s is postponed to the next round: the event type was changed",
                    operation,
                    event_type.name,
                )
            except UnknownTopic:
                if self._exists(event_type):
                    raise
                log.info("The %s of %s is not needed any more: the event type was deleted", operation, event_type.name)

        self._attempt(operation, event_type.name, unless_changed)

    def _attempt(self, operation: str, thing: str, step: Callable[[], None]) -> None:
        if self._ending.is_set():
            raise Stopped
        attempted(operation, thing, step)

    def _exists(self, event_type: EventType) -> bool:
        current = self.event_types.find(event_type.name)
        return current is not None and current.id == event_type.id

    def _trim(self, event_type: EventType, timeline: Timeline, partition: int, now: datetime) -> None:
        """Remove the events that are older than the retention time, unless the event type is only compacted."""
        if event_type.cleanup_policy is not CleanupPolicy.COMPACT:
            before = now - timedelta(milliseconds=event_type.retention_time)
            self.logs.of(timeline.storage_id).trim(timeline.topic, partition, before)

    def _compact(self, event_type: EventType, timeline: Timeline, partition: int, now: datetime) -> None:
        if event_type.cleanup_policy.compacts:
            self.logs.of(timeline.storage_id).compact(
                timeline.topic, partition, upto=now - COMPACTION_LAG, tombstones_before=now - TOMBSTONES_STAY
            )

    def _remove_expired(self, event_type: EventType, expired: tuple[Timeline, ...]) -> None:
        """Mark the timelines as deleted before their events are removed, so that no reader finds one without events."""
        marked = tuple(replace(each, deleted=True) if each in expired else each for each in event_type.timelines)
        note = cleanup_note(expired[-1].id, expired)
        self.event_types.replace(event_type, replace(event_type, timelines=marked), note)
        self.leftovers.clear(note.key)


def expired_timelines(event_type: EventType, now: datetime) -> tuple[Timeline, ...]:
    """The closed timelines whose events may be removed."""
    return tuple(
        each
        for each in event_type.timelines
        if not each.deleted and each.cleaned_up_at is not None and each.cleaned_up_at <= now
    )
