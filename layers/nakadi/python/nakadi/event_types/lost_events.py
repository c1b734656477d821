"""New timelines for event types that may have lost events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from nakadi.common.chores import run_and_log_failure
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.storages import Storages
from nakadi.event_types.timelines import with_timelines_after_loss
from nakadi.model.event_type import EventType, Timeline
from nakadi.model.log_index import ShardGap
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLogs, LossReportingLog, UnknownTopic

log = logging.getLogger(__name__)


ReportNewTimeline = Callable[[EventType, EventType], None]
"""Called with an event type before and after it got new timelines."""


class LostEventsRecovery(Struct, kw_only=True):
    """Begins new timelines for event types that may have lost events.

    A log that another process indexes may lose events before they are indexed. It reports such a gap, and indexes
    nothing after it. The affected event types get new timelines for later events, so that their consumers notice the
    loss; then the gap is closed. Each step can be repeated, also by several processes at the same time.
    """

    event_types: EventTypes
    storages: Storages
    logs: EventLogs
    clock: Clock
    report_new_timeline: ReportNewTimeline
    gap_count: int = 0
    """The number of gaps that the last run has found."""

    def run(self) -> None:
        """Find the gaps in all storages, and close them."""
        self.gap_count = 0
        for storage in self.storages.all():
            run_and_log_failure(
                "search for lost events", f"storage {storage.id}", partial(self._close_gaps_of_storage, storage.id)
            )

    def _close_gaps_of_storage(self, storage_id: str) -> None:
        event_log = self.logs.for_storage(storage_id)
        gaps = event_log.gaps() if isinstance(event_log, LossReportingLog) else ()
        if not gaps or not isinstance(event_log, LossReportingLog):
            return
        self.gap_count += len(gaps)
        for gap in gaps:
            log.error("Storage %s has lost events before they were indexed: %s", storage_id, gap)
        topics: dict[str, Mapping[int, int] | None] = {}
        for event_type in self.event_types.all():
            timelines = self._continue_after_gaps(event_type.name, storage_id, event_log, gaps)
            topics |= _end_offsets_by_topic(each for each in timelines if each.storage_id == storage_id)
        event_log.close_gaps(gaps, topics)

    def _continue_after_gaps(
        self, name: str, storage_id: str, event_log: LossReportingLog, gaps: Sequence[ShardGap]
    ) -> Sequence[Timeline]:
        def attempt() -> Sequence[Timeline]:
            event_type = self.event_types.find(name)
            if event_type is None:
                return ()
            if event_type.timeline.storage_id != storage_id:
                return event_type.timelines
            try:
                continuations = event_log.ensure_continuations(event_type.timeline.topic, gaps)
            except UnknownTopic:
                # The event type was deleted meanwhile, or the log never had events of it.
                return event_type.timelines
            if not continuations:
                return event_type.timelines
            changed = with_timelines_after_loss(event_type, continuations, self.clock.now())
            self.event_types.replace(event_type, changed)
            log.error("Event type %s may have lost events, and continues in a new timeline", name)
            self.report_new_timeline(event_type, changed)
            return changed.timelines

        return self.event_types.retry_if_changed(attempt)


def _end_offsets_by_topic(timelines: Iterable[Timeline]) -> Mapping[str, Mapping[int, int] | None]:
    """The offset after the last event of each partition, by topic; None for an open topic."""
    return {
        each.topic: None
        if each.latest_positions is None
        else {partition: last + 1 for partition, last in each.latest_positions.items()}
        for each in timelines
        if not each.deleted
    }
