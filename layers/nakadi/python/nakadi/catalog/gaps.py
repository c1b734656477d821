"""Gaps in event logs: new timelines for event types that may have lost events.

A log whose events another process counts may lose some before that happens. It says so, and counts nothing behind the
gap. Here the event types concerned get timelines for what follows, so that their consumers see that something ended.
Then the gap is closed. Every step can be repeated, by several processes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from nakadi.administration.storages import Storages
from nakadi.catalog.event_types import EventTypes
from nakadi.catalog.timelines import continued
from nakadi.chores import attempted
from nakadi.model.event_type import EventType
from nakadi.model.log_index import Gap
from nakadi.model.timeline import Timeline
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLogs, Forgetful, UnknownTopic

log = logging.getLogger(__name__)

Report = Callable[[EventType, EventType], None]
"""Called with an event type before and after it got new timelines."""


@dataclass(slots=True, kw_only=True)
class LostEvents:
    event_types: EventTypes
    storages: Storages
    logs: EventLogs
    clock: Clock
    report: Report
    found: int = field(default=0, init=False)
    """How many gaps the last look has found."""

    def run(self) -> None:
        """Look for gaps in all storages, and close them."""
        self.found = 0
        for storage in self.storages.all():
            attempted("search for lost events", f"storage {storage.id}", partial(self._look, storage.id))

    def _look(self, storage_id: str) -> None:
        event_log = self.logs.of(storage_id)
        gaps = event_log.gaps() if isinstance(event_log, Forgetful) else ()
        if not gaps or not isinstance(event_log, Forgetful):
            return
        self.found += len(gaps)
        for gap in gaps:
            log.error("Storage %s has lost events before they were indexed: %s", storage_id, gap)
        topics: dict[str, Mapping[int, int] | None] = {}
        for event_type in self.event_types.all():
            timelines = self._with_new_timelines(event_type.name, storage_id, event_log, gaps)
            topics |= _ends(each for each in timelines if each.storage_id == storage_id)
        event_log.close_gaps(gaps, topics)

    def _with_new_timelines(
        self, name: str, storage_id: str, event_log: Forgetful, gaps: Sequence[Gap]
    ) -> Sequence[Timeline]:
        def attempt() -> Sequence[Timeline]:
            event_type = self.event_types.find(name)
            if event_type is None:
                return ()
            if event_type.timeline.storage_id != storage_id:
                return event_type.timelines
            try:
                continuations = event_log.continuations(event_type.timeline.topic, gaps)
            except UnknownTopic:
                # It was deleted meanwhile, or the log has nothing of it that could be lost.
                return event_type.timelines
            if not continuations:
                return event_type.timelines
            changed = continued(event_type, continuations, self.clock.now())
            self.event_types.replace(event_type, changed)
            log.error("Event type %s may have lost events, and has a new timeline", name)
            self.report(event_type, changed)
            return changed.timelines

        return self.event_types.again_if_changed(attempt)


def _ends(timelines: Iterable[Timeline]) -> Mapping[str, Mapping[int, int] | None]:
    """By topic: None for one that is open, else the offset behind the last event of each partition."""
    return {
        each.topic: None
        if each.latest_positions is None
        else {partition: last + 1 for partition, last in each.latest_positions.items()}
        for each in timelines
        if not each.deleted
    }
