"""Housekeeping, which runs on a schedule: retention, compaction and other tasks.

Each step is small and can be repeated, also by two processes at the same time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.common.chores import ChoreStopped, run_and_log_failure
from nakadi.common.metrics import Metrics
from nakadi.event_types.compaction_guard import CompactionGuard
from nakadi.event_types.deletion import DeletedEventTypeCleanup
from nakadi.event_types.repository import EventTypes, cleanup_note
from nakadi.event_types.timeline_states import TimelineFact, TimelineState, timeline_after, timeline_state
from nakadi.event_types.timelines import Timelines
from nakadi.model.event_type import CleanupPolicy, EventType, Timeline
from nakadi.model.events import TopicPartition
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLogs, UnknownTopic
from nakadi.ports.registry import ChangedMeanwhile

log = logging.getLogger(__name__)


# Events are compacted only after a while, so that a reader close behind the newest event gets every event. Tombstones
# are kept for another day, so that readers further behind get them.
COMPACTION_LAG = timedelta(minutes=1)
TOMBSTONE_RETENTION = timedelta(days=1)

TRIM_INTERVAL_SHARE = 0.01
"""The interval at which expired events of a partition are removed, as a share of their retention time. Events may stay
that much longer. So a round looks at few partitions, however many there are."""


class Housekeeping(Struct, frozen=True, kw_only=True):
    """Runs the tasks of this package, and those that other packages add."""

    event_types: EventTypes
    timelines: Timelines
    deleted_event_type_cleanup: DeletedEventTypeCleanup
    logs: EventLogs
    clock: Clock
    further_tasks: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    """Tasks of other packages, by name."""
    compaction_guard: CompactionGuard | None = None
    """Delays compaction, if there may be tables."""
    metrics: Metrics
    stop_requested: threading.Event = field(default_factory=threading.Event)
    """Set by `stop`. Long tasks check it."""
    trimmed_at: dict[TopicPartition, float] = field(default_factory=dict)
    """For each partition, when expired events were last removed, by the steady clock."""

    def run(self) -> None:
        """Run each task once. A failure is logged and counted, and the task is tried again in the next round."""
        tasks = {
            "deleted event types": self.deleted_event_type_cleanup.clean_up_all,
            **self.further_tasks,
            "event types": self._run_for_all_event_types,
        }
        began = self.clock.monotonic()
        with suppress(ChoreStopped):
            for name, step in tasks.items():
                self._attempt_and_log_failure("round", name, step)
            self.metrics.housekeeping_seconds.observe(self.clock.monotonic() - began)
            self.metrics.housekeeping_at.set(self.clock.now().timestamp())

    def stop(self) -> None:
        """End a round after its current step. No other round begins."""
        self.stop_requested.set()

    def _run_for_all_event_types(self) -> None:
        existing: set[TopicPartition] = set()
        for event_type in self.event_types.all():
            self._run_for_event_type(event_type)
            existing.update((each.topic, number) for each in event_type.timelines for number in range(each.partitions))
        for gone in self.trimmed_at.keys() - existing:
            del self.trimmed_at[gone]

    def _run_for_event_type(self, event_type: EventType) -> None:
        now = self.clock.now()
        self._attempt_step_for_event_type(
            "switch of timelines", event_type, lambda: self.timelines.finish_abandoned_switch(event_type)
        )
        for timeline in event_type.timelines:
            if not timeline.deleted:
                for partition in range(timeline.partitions):
                    self._attempt_step_for_event_type(
                        "retention",
                        event_type,
                        partial(self._delete_expired_events, event_type, timeline, partition, now),
                    )
                    self._attempt_step_for_event_type(
                        "compaction", event_type, partial(self._compact_partition, event_type, timeline, partition, now)
                    )
        expired = expired_timelines(event_type, now)
        if expired:
            self._attempt_step_for_event_type(
                "removal of old timelines", event_type, lambda: self._remove_expired_timelines(event_type, expired)
            )

    def _attempt_step_for_event_type(self, operation: str, event_type: EventType, step: Callable[[], None]) -> None:
        """Run one step, so that a failure does not stop the others.

        If a step fails because the event type was deleted or changed meanwhile, this does not count as a failure: the
        next round reads the event type again.
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
                log.info("The %s of %s is no longer needed: the event type was deleted", operation, event_type.name)

        self._attempt_and_log_failure(operation, event_type.name, unless_changed)

    def _attempt_and_log_failure(self, operation: str, thing: str, step: Callable[[], object]) -> None:
        if self.stop_requested.is_set():
            raise ChoreStopped
        run_and_log_failure(operation, thing, step)

    def _exists(self, event_type: EventType) -> bool:
        current = self.event_types.find(event_type.name)
        return current is not None and current.id == event_type.id

    def _delete_expired_events(self, event_type: EventType, timeline: Timeline, partition: int, now: datetime) -> None:
        """Remove the events that are older than the retention time, unless the event type is only compacted, or they
        were removed a moment ago.
        """
        if event_type.cleanup_policy is CleanupPolicy.COMPACT:
            return
        retention = timedelta(milliseconds=event_type.retention_time)
        place, moment = (timeline.topic, partition), self.clock.monotonic()
        if moment - self.trimmed_at.get(place, -inf) >= TRIM_INTERVAL_SHARE * retention.total_seconds():
            self.logs.for_storage(timeline.storage_id).trim(timeline.topic, partition, now - retention)
            self.trimmed_at[place] = moment

    def _compact_partition(self, event_type: EventType, timeline: Timeline, partition: int, now: datetime) -> None:
        if event_type.cleanup_policy.compacts:
            event_log, upto = self.logs.for_storage(timeline.storage_id), now - COMPACTION_LAG
            if self.compaction_guard is not None:
                place = (timeline.topic, partition)
                upto = min(upto, self.compaction_guard.compactable_until(event_type, place, event_log, now))
            event_log.compact(
                timeline.topic, partition, stored_before=upto, tombstones_before=now - TOMBSTONE_RETENTION
            )

    def _remove_expired_timelines(self, event_type: EventType, expired: tuple[Timeline, ...]) -> None:
        """Mark timelines as deleted before their events are removed, so that no reader finds a timeline without
        events.
        """
        marked = tuple(
            timeline_after(each, TimelineFact.EXPIRED, deleted=True) if each in expired else each
            for each in event_type.timelines
        )
        note = cleanup_note(expired[-1].id, expired)
        self.event_types.replace(event_type, replace(event_type, timelines=marked), note)
        self.deleted_event_type_cleanup.clean_up(note.key)


def expired_timelines(event_type: EventType, now: datetime) -> tuple[Timeline, ...]:
    return tuple(
        each
        for each in event_type.timelines
        if timeline_state(each) is TimelineState.CLOSED and each.cleaned_up_at is not None and each.cleaned_up_at <= now
    )
