"""Housekeeping: what has to happen now and then without anybody asking.

Every step is small, can be repeated, and does no harm when two processes do it at once.
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

# Events rest before they are compacted, so that a reader close behind the newest event sees all of them; a tombstone
# stays a day longer, so that a reader who is not so close learns of it.
COMPACTION_LAG = timedelta(minutes=1)
TOMBSTONES_STAY = timedelta(days=1)


class Housekeeping(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    timelines: Timelines
    leftovers: DeletedEventTypes
    logs: EventLogs
    clock: Clock
    more: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """What other rooms want done, by what it is."""
    metrics: Metrics = field(default_factory=Metrics)
    _ending: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look after everything once. What fails is logged and counted, and tried again the next time."""
        rounds = {"deleted event types": self.leftovers.clear_all, **self.more, "event types": self._look_after_all}
        began = self.clock.monotonic()
        with suppress(Stopped):
            for what, step in rounds.items():
                self._attempted("round", what, step)
            self.metrics.housekeeping_seconds.observe(self.clock.monotonic() - began)
            self.metrics.housekeeping_at.set(self.clock.now().timestamp())

    def stop(self) -> None:
        """End a round that is under way after its current step; no other begins."""
        self._ending.set()

    def _look_after_all(self) -> None:
        for event_type in self.event_types.all():
            self._look_after(event_type)

    def _look_after(self, event_type: EventType) -> None:
        now = self.clock.now()
        self._try("switch of timelines", event_type, lambda: self.timelines.finish_abandoned(event_type))
        for timeline in event_type.timelines:
            if not timeline.deleted:
                for partition in range(timeline.partitions):
                    self._try("retention", event_type, partial(self._trim, event_type, timeline, partition, now))
                    self._try("compaction", event_type, partial(self._compact, event_type, timeline, partition, now))
        expired = expired_timelines(event_type, now)
        if expired:
            self._try("removal of old timelines", event_type, lambda: self._drop(event_type, expired))

    def _try(self, operation: str, event_type: EventType, step: Callable[[], None]) -> None:
        """One partition or one step that fails does not keep the others from their turn. What fails because the event
        type was deleted or changed meanwhile is not missed: the next round finds what there is then."""

        def unless_overtaken() -> None:
            try:
                step()
            except ChangedMeanwhile:
                log.info("The %s of %s waits for the next round: it was changed meanwhile", operation, event_type.name)
            except UnknownTopic:
                if self._is_there(event_type):
                    raise
                log.info("The %s of %s is over: it was deleted meanwhile", operation, event_type.name)

        self._attempted(operation, event_type.name, unless_overtaken)

    def _attempted(self, operation: str, thing: str, step: Callable[[], None]) -> None:
        if self._ending.is_set():
            raise Stopped
        attempted(operation, thing, step)

    def _is_there(self, event_type: EventType) -> bool:
        current = self.event_types.find(event_type.name)
        return current is not None and current.id == event_type.id

    def _trim(self, event_type: EventType, timeline: Timeline, partition: int, now: datetime) -> None:
        """Events older than the retention time go, but for event types that are only compacted."""
        if event_type.cleanup_policy is not CleanupPolicy.COMPACT:
            before = now - timedelta(milliseconds=event_type.retention_time)
            self.logs.of(timeline.storage_id).trim(timeline.topic, partition, before)

    def _compact(self, event_type: EventType, timeline: Timeline, partition: int, now: datetime) -> None:
        if event_type.cleanup_policy.compacts:
            self.logs.of(timeline.storage_id).compact(
                timeline.topic, partition, upto=now - COMPACTION_LAG, tombstones_before=now - TOMBSTONES_STAY
            )

    def _drop(self, event_type: EventType, expired: tuple[Timeline, ...]) -> None:
        """The registry first: nobody may find a timeline whose events are gone."""
        marked = tuple(replace(each, deleted=True) if each in expired else each for each in event_type.timelines)
        note = cleanup_note(expired[-1].id, expired)
        self.event_types.replace(event_type, replace(event_type, timelines=marked), note)
        self.leftovers.clear(note.key)


def expired_timelines(event_type: EventType, now: datetime) -> tuple[Timeline, ...]:
    """Closed timelines whose events may go."""
    return tuple(
        each
        for each in event_type.timelines
        if not each.deleted and each.cleaned_up_at is not None and each.cleaned_up_at <= now
    )
