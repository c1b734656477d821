"""The state of a subscription's streams: who reads which partition, how far readers are behind, and since when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.auth.permissions import Permissions
from nakadi.common.chores import run_and_log_failure
from nakadi.event_types import positions
from nakadi.event_types.cursors import CursorError
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model.annotations import PRESSURE_METRIC_ANNOTATION
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import EventType, Position
from nakadi.model.objective import (
    LagCause,
    Objective,
    SlowestPartition,
    Window,
    lasting_burn_rate,
    pressure_of,
)
from nakadi.model.outcomes import Invalid, Unavailable
from nakadi.model.subscription import (
    Assignment,
    CommittedOffset,
    EventTypePartition,
    PartitionAssignment,
    PartitionState,
    Session,
    Standstill,
    Subscription,
)
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.ports.event_log import EventLogs, OffsetUnavailable, UnknownTopic
from nakadi.subscriptions.api.lease_watch import LeaseWatch
from nakadi.subscriptions.api.repository import Subscriptions

log = logging.getLogger(__name__)

MAX_READS_AT_ONCE = 8
MIN_STREAMS_OF_STALLED = 3
"""How many streams in a row have to end at the same offset before a partition is stalled. Clients that restart leave
one or two.
"""

HOT_PARTITION_FACTOR = 2
"""A partition is hot if more than this many times as many events wait there as in all others together."""

AGE_LOOKUP_TIMEOUT_SECONDS = 10.0
"""For how long a listing looks up the ages of events. Each look-up reads a log, and a function has to answer within
half a minute.
"""


class PartitionStats(Struct, frozen=True, kw_only=True):
    """A partition: `stream_id` and `assignment_type` belong to the live session that reads it.

    `unconsumed_events` is None before the first stream; `lag_seconds` is None if the caller did not ask for it, or the
    log could not provide it. `unreadable` says that `lag_seconds` is unknown because the next event cannot be read now.
    """

    partition: str
    state: PartitionState = PartitionState.UNASSIGNED
    stream_id: str = ""
    assignment_type: Literal["direct", "auto"] | None = None
    unconsumed_events: int | None = None
    lag_seconds: int | None = None
    stalled: bool = False
    unreadable: bool = False


# The partitions of each event type, by its name.
StatsByEventType = Mapping[str, Sequence[PartitionStats]]


class _AssignmentSnapshot(Struct, frozen=True):
    entries: Mapping[EventTypePartition, PartitionAssignment]
    sessions: Mapping[str, Session]
    standstills: Mapping[EventTypePartition, Standstill]
    offsets: Mapping[EventTypePartition, CommittedOffset]

    def reading_session(self, partition: EventTypePartition) -> Session | None:
        entry = self.entries.get(partition)
        return None if entry is None or entry.owner is None else self.sessions.get(entry.owner)

    def is_stalled(
        self, partition: EventTypePartition, since: datetime | None, now: datetime, max_commit_seconds: float
    ) -> bool:
        """Whether streams make no progress in a partition where events wait: several streams in a row have ended at its
        present offset, or the current stream has committed nothing since `since`, for too long."""
        standstill, owner = self.standstills.get(partition), self.reading_session(partition)
        is_overdue = (
            owner is not None and since is not None and is_commit_overdue(owner, since, now, max_commit_seconds)
        )
        return is_overdue or (
            standstill is not None
            and standstill.streams >= MIN_STREAMS_OF_STALLED
            and standstill.position == self.offsets[partition].position
        )


class SubscriptionStats(Struct, frozen=True, kw_only=True):
    subscription_repository: Subscriptions
    event_types: EventTypes
    cursor_resolver: CursorResolver
    permissions: Permissions
    coordination: Coordination
    leases: LeaseWatch
    logs: EventLogs
    clock: Clock
    max_commit_seconds: float

    def stats_of(self, subscription_id: str, subject: Subject, *, with_lag: bool) -> StatsByEventType:
        subscription = self.subscription_repository.get(subscription_id)
        self.permissions.require(Operation.VIEW, subscription.resource, subject)
        event_types = [self.event_types.get(name) for name in subscription.event_types]
        for each in event_types:
            self.permissions.require(Operation.VIEW, each.resource, subject)
        shared = self._snapshot_with_offsets(subscription)
        return {
            each.name: self._stats_of_event_type(
                each, self.cursor_resolver.end_positions(each), shared, with_lag=with_lag
            )
            for each in event_types
        }

    def stats_of_each(
        self, subscriptions: Sequence[Subscription], subject: Subject, *, with_lag: bool
    ) -> Iterator[tuple[Subscription, StatsByEventType]]:
        """The statistics of many subscriptions, for existing event types that the subject may see.

        The newest positions of an event type are looked up only once. After `AGE_LOOKUP_TIMEOUT_SECONDS`, no more ages
        are looked up. If the subject may not see a subscription, its statistics have only the readers of the
        partitions, as in `status`.
        """
        newest: dict[str, Mapping[str, Position]] = {}
        ages_until = self.clock.now() + timedelta(seconds=AGE_LOOKUP_TIMEOUT_SECONDS)

        def stats(event_type: EventType, shared: _AssignmentSnapshot) -> Sequence[PartitionStats]:
            if event_type.name not in newest:
                newest[event_type.name] = self.cursor_resolver.end_positions(event_type)
            look = with_lag and self.clock.now() < ages_until
            return self._stats_of_event_type(event_type, newest[event_type.name], shared, with_lag=look)

        with ThreadPoolExecutor(MAX_READS_AT_ONCE, "nakadi-stats") as threads:
            for each, read in zip(subscriptions, threads.map(self._snapshot_with_offsets, subscriptions), strict=True):
                is_visible = self.permissions.allows(Operation.VIEW, each.resource, subject)
                shared = read if is_visible else replace(read, offsets={})
                yield each, {found.name: stats(found, shared) for found in self._visible_event_types(each, subject)}

    def slowest_partition(self, subscription: Subscription, objective: Objective) -> SlowestPartition | None:
        """The partition whose next event has waited longest; None if no event waits."""
        shared = self._snapshot_with_offsets(subscription)
        found = [
            (EventTypePartition(name, each.partition), each)
            for name in subscription.event_types
            if (event_type := self.event_types.find(name)) is not None
            for each in self._stats_of_event_type(
                event_type, self.cursor_resolver.end_positions(event_type), shared, with_lag=True
            )
        ]
        waiting = [(partition, each) for partition, each in found if each.unconsumed_events]
        if not waiting:
            return None
        partition, slowest = max(waiting, key=lambda one: one[1].lag_seconds or 0)
        lag, count = slowest.lag_seconds or 0, slowest.unconsumed_events or 0
        cause = None
        if not objective.is_met_by(timedelta(seconds=lag)):
            elsewhere = sum(each.unconsumed_events or 0 for _, each in waiting) - count
            is_hot = len(found) > 1 and count > HOT_PARTITION_FACTOR * elsewhere
            cause = lag_cause(slowest, shared.entries.get(partition), is_hot=is_hot)
        return SlowestPartition(partition.event_type, partition.partition, lag, count, cause)

    def status(self, subscription: Subscription, subject: Subject) -> StatsByEventType:
        """The readers of the partitions, for existing event types that the subject may see."""
        shared = self._snapshot_without_offsets(self.coordination.assignment(subscription.id))
        return {
            each.name: [
                stats_of_reader(EventTypePartition(each.name, name), shared) for name in _partitions_in_text_order(each)
            ]
            for each in self._visible_event_types(subscription, subject)
        }

    def _visible_event_types(self, subscription: Subscription, subject: Subject) -> Iterator[EventType]:
        for name in subscription.event_types:
            event_type = self.event_types.find(name)
            if event_type is not None and self.permissions.allows(Operation.VIEW, event_type.resource, subject):
                yield event_type

    def is_stalled(self, subscription: Subscription, assignment: Assignment) -> bool:
        """Whether a partition of the subscription is stalled. The check stops early if it is certain that none is."""
        shared = self._snapshot_without_offsets(assignment)
        if not shared.sessions and not shared.standstills:
            return False
        shared = replace(shared, offsets=self.coordination.committed_offsets(subscription.id))
        now = self.clock.now()
        suspects = {
            each.event_type
            for each, offset in shared.offsets.items()
            if shared.is_stalled(each, offset.changed_at, now, self.max_commit_seconds)
        }
        found = [self.event_types.find(name) for name in subscription.event_types if name in suspects]
        stats = [
            self._stats_of_event_type(each, self.cursor_resolver.end_positions(each), shared, with_lag=False)
            for each in found
            if each is not None
        ]
        return any(partition.stalled for each in stats for partition in each)

    def _snapshot_with_offsets(self, subscription: Subscription) -> _AssignmentSnapshot:
        shared = self._snapshot_without_offsets(self.coordination.assignment(subscription.id))
        return replace(shared, offsets=self.coordination.committed_offsets(subscription.id))

    def _snapshot_without_offsets(self, assignment: Assignment) -> _AssignmentSnapshot:
        """The snapshot without the offsets, which need a separate read."""
        living = self.leases.live_holders() if assignment.sessions else ()
        return _AssignmentSnapshot(
            entries={each.partition: each for each in assignment.entries},
            sessions={each.id: each for each in assignment.sessions if each.process_id in living},
            standstills={each.partition: each for each in assignment.standstills},
            offsets={},
        )

    def _stats_of_event_type(
        self, event_type: EventType, newest: Mapping[str, Position], shared: _AssignmentSnapshot, *, with_lag: bool
    ) -> list[PartitionStats]:
        return [
            self._stats_of_partition(event_type, name, newest[name], shared, with_lag)
            for name in _partitions_in_text_order(event_type)
        ]

    def _stats_of_partition(
        self, event_type: EventType, name: str, newest: Position, shared: _AssignmentSnapshot, with_lag: bool
    ) -> PartitionStats:
        partition = EventTypePartition(event_type.name, name)
        found, offset = stats_of_reader(partition, shared), shared.offsets.get(partition)
        if offset is None:
            return found
        unconsumed = self._count_unconsumed(event_type, name, offset.position, newest)
        # `changed_at` is the time of the last commit or change of owner, whichever was later.
        now = self.clock.now()
        suspicious = unconsumed > 0 and shared.is_stalled(partition, offset.changed_at, now, self.max_commit_seconds)
        look = suspicious or (with_lag and unconsumed > 0)
        since, unreadable = (
            self._oldest_unconsumed_stored_at(event_type, name, offset.position) if look else (None, False)
        )
        return replace(
            found,
            unconsumed_events=unconsumed,
            lag_seconds=lag_seconds(unconsumed, since, now) if with_lag else None,
            stalled=suspicious and shared.is_stalled(partition, since, now, self.max_commit_seconds),
            unreadable=with_lag and unreadable,
        )

    def _count_unconsumed(self, event_type: EventType, partition: str, committed: Position, newest: Position) -> int:
        """The number of unconsumed events. The committed position may be beyond the newest event; then the number is
        0.
        """
        try:
            return max(0, positions.count_events_between(event_type, partition, committed, newest))
        except Invalid:
            log.warning("A committed offset of %s is in no timeline: %s", event_type.name, committed)
            return 0

    def _oldest_unconsumed_stored_at(
        self, event_type: EventType, partition: str, committed: Position
    ) -> tuple[datetime | None, bool]:
        """When the first unconsumed event was stored, or None if that is unknown; and whether the reason is that the
        log, or its archive, does not answer.
        """
        try:
            return self._stored_at_of_next_event(event_type, partition, committed), False
        except (CursorError, Unavailable, UnknownTopic, OffsetUnavailable) as error:
            log.debug("The age of the next event in %s, partition %s, is unknown", event_type.name, partition)
            return None, isinstance(error, Unavailable)

    def _stored_at_of_next_event(self, event_type: EventType, partition: str, position: Position) -> datetime | None:
        number = int(partition)
        while True:
            timeline, offset = self.cursor_resolver.next_event_location(event_type, position, partition)
            event_log = self.logs.for_storage(timeline.storage_id)
            oldest = event_log.bounds(timeline.topic, [number])[number].oldest
            found = event_log.read(timeline.topic, number, max(offset, oldest), limit=1, max_bytes=1)
            end = positions.last_offset_if_closed(timeline, number)
            if found.events or end is None:
                return found.events[0].stored_at if found.events else None
            # The remaining events of this timeline no longer exist.
            position = Position(timeline.order, end)


def stats_of_reader(partition: EventTypePartition, shared: _AssignmentSnapshot) -> PartitionStats:
    """The statistics that show who reads a partition. Only live sessions count as readers."""
    owner, entry = shared.reading_session(partition), shared.entries.get(partition)
    if owner is None or entry is None:
        return PartitionStats(partition=partition.partition)
    return PartitionStats(
        partition=partition.partition,
        state=entry.state,
        stream_id=owner.id,
        assignment_type="direct" if owner.requested_partitions else "auto",
    )


def is_commit_overdue(owner: Session, since: datetime, now: datetime, max_commit_seconds: float) -> bool:
    """Whether a stream has had more time since `since` than it may take to send an event and get a commit.

    An event waits until its batch is full or the flush timeout has passed. The stream of a sink may wait for commits as
    long as the sink is down, but its commit counts as overdue after the longest commit timeout that a client may
    request.
    """
    return now - since > timedelta(seconds=owner.flush_timeout + min(owner.commit_timeout, max_commit_seconds))


def lag_cause(partition: PartitionStats, entry: PartitionAssignment | None, *, is_hot: bool) -> LagCause:
    """The reason why a partition is late: of those that apply, the most certain one."""
    if entry is not None and (entry.failed_streams or entry.search_end is not None):
        return LagCause.FAILING_EVENT
    if partition.stalled:
        return LagCause.STALLED_CONSUMER
    if partition.state is PartitionState.UNASSIGNED:
        return LagCause.NO_CONSUMER
    return LagCause.HOT_PARTITION if is_hot else LagCause.SLOW_CONSUMER


def lag_seconds(unconsumed: int, since: datetime | None, now: datetime) -> int | None:
    if unconsumed == 0:
        return 0
    return None if since is None else max(0, int((now - since).total_seconds()))


def _partitions_in_text_order(event_type: EventType) -> Sequence[str]:
    """The partitions in the order in which clients expect them, that of their names as texts: 10 comes before 2."""
    return sorted(event_type.partitions)


class ObjectiveFigures(Struct, frozen=True, kw_only=True):
    """How well an objective is met, in two numbers: the burn rate, and the pressure of the longest waiting event.
    `is_shown` says whether the subscription wants the pressure as a metric of its own.
    """

    burn_rate: float
    pressure: float
    is_shown: bool


class TroubledSubscriptions(Struct, frozen=True, kw_only=True):
    """Checks all subscriptions at intervals. `stalled_ids` are the subscriptions that were stalled at the last check,
    and `late_ids` those whose events waited longer than their objective allows. `objectives` has the figures of all
    subscriptions with an objective.

    `execute_reset` carries out a pending reset, in case its process has died and no stream has carried it out since.
    """

    subscription_repository: Subscriptions
    coordination: Coordination
    stats: SubscriptionStats
    find_windows: Callable[[str, Objective], Sequence[Window]]
    execute_reset: Callable[[str], Assignment]
    stalled_ids: list[str] = field(default_factory=list)
    late_ids: list[str] = field(default_factory=list)
    objectives: dict[str, ObjectiveFigures] = field(default_factory=dict)

    def check_all(self) -> None:
        """Check all subscriptions. This costs one read for a subscription without recent streams, and little more for
        one whose streams commit.
        """
        stalled: list[Subscription] = []
        late: list[Subscription] = []
        objectives: dict[str, ObjectiveFigures] = {}
        for each in self.subscription_repository.newest_first():
            run_and_log_failure(
                "search for stalled streams",
                f"the subscription {each.id}",
                partial(self._check_subscription, each, stalled, late, objectives),
            )
        self.stalled_ids[:] = [each.id for each in stalled]
        self.late_ids[:] = [each.id for each in late]
        self.objectives.clear()
        self.objectives.update(objectives)
        for each in stalled:
            _log_stalled(each)

    def count(self) -> int:
        """How many subscriptions are stalled or late, each counted once."""
        return len({*self.stalled_ids, *self.late_ids})

    def _check_subscription(
        self,
        subscription: Subscription,
        stalled: list[Subscription],
        late: list[Subscription],
        objectives: dict[str, ObjectiveFigures],
    ) -> None:
        assignment = self.coordination.assignment(subscription.id)
        if assignment.reset is not None:
            assignment = self.execute_reset(subscription.id)
        if self.stats.is_stalled(subscription, assignment):
            stalled.append(subscription)
        objective = subscription.objective
        if objective is not None:
            slowest = self.stats.slowest_partition(subscription, objective)
            if slowest is not None and slowest.cause is not None:
                late.append(subscription)
                _log_late(subscription, objective, slowest)
            objectives[subscription.id] = ObjectiveFigures(
                burn_rate=lasting_burn_rate(self.find_windows(subscription.id, objective)),
                pressure=0.0 if slowest is None else pressure_of(slowest.lag_seconds, objective.within_seconds),
                is_shown=subscription.annotations.get(PRESSURE_METRIC_ANNOTATION) == "on",
            )


def _log_stalled(subscription: Subscription) -> None:
    log.warning(
        "The subscription %s of %s is stalled: events wait, and its streams commit nothing",
        subscription.id,
        subscription.owning_application,
    )


def _log_late(subscription: Subscription, objective: Objective, slowest: SlowestPartition) -> None:
    log.warning(
        "The subscription %s of %s is late: in %s, partition %s, an event has waited for %s s, longer than %s (%s)",
        subscription.id,
        subscription.owning_application,
        slowest.event_type,
        slowest.partition,
        slowest.lag_seconds,
        objective.within_seconds,
        slowest.cause,
    )
