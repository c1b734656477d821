"""Processes that serve streams, and the work that the driver of each stream does, without sockets and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from nakadi.model.event_type import Position
from nakadi.model.events import EventSlice, Record, StoredEvent
from nakadi.model.outcomes import Conflict, Unavailable
from nakadi.model.subscription import Session, Subscription, SubscriptionChange, SubscriptionChangeNotice
from nakadi.streaming.chunks import EventChunk, EventRun
from nakadi.subscriptions.api.fields import RetryPolicy
from nakadi.subscriptions.api.parked_events import ParkedEventStore
from nakadi.subscriptions.stream.actions import (
    ClosePartition,
    GrantExtension,
    OpenPartition,
    ProcessLease,
    SendBatch,
    SendKeepAlive,
    SessionAction,
    SessionCall,
    SessionContext,
    SessionEnd,
    SharedState,
    SubscriptionStreamLimits,
)
from nakadi.subscriptions.stream.admission import PartitionStart
from nakadi.subscriptions.stream.calls import ApplySessionFact, SessionCallExecutor
from nakadi.subscriptions.stream.leases import LeaseKeeper, renew_and_clean_up
from nakadi.subscriptions.stream.members import FULL_READ_INTERVAL_SECONDS, SharedStateReader, SubscriptionSessions
from nakadi.subscriptions.stream.parking import ParkingService
from nakadi.subscriptions.stream.session import SubscriptionSession
from tests.simulation.clocks import START, SkewedClock
from tests.simulation.history import History, Place, check_promise
from tests.simulation.operators import (
    SUBSCRIPTION,
    SimulatedEventType,
    make_offset_initialisation,
    make_reset_execution,
)
from tests.simulation.wire import UnreliableCoordination
from tests.support.chunks import ReadingRules

MOST_EVENTS_READ = 4


class SimulatedStream:
    """A stream, run as its driver would. `received` has the events that the client has received and can commit;
    `client_is_there` is true until the client leaves.
    """

    def __init__(
        self, process: SimulatedProcess, session_id: str, limits: SubscriptionStreamLimits, lease: ProcessLease
    ) -> None:
        self.process = process
        self.limits = limits
        self.lease = lease
        context = SessionContext(
            measure_distance=lambda _, first, last: last.offset - first.offset,
            is_deliverable=lambda _, record: record.directed_to is None,
            lease=lease,
            reading_rules=ReadingRules(),
        )
        policy = process.policy
        self.session = SubscriptionSession(session_id, limits, process.clock.monotonic(), context, policy)
        store: Any = ParkedEventStore(process.wire, SUBSCRIPTION)  # type: ignore[arg-type]
        parking = ParkingService(store, process.clock, parks_keys=policy is not None and policy.parks_keys)
        self.executor = SessionCallExecutor(
            process.members, self.session, process.find_partition_start, process.handle, parking
        )
        self.facts: deque[ApplySessionFact] = deque()
        self.calls: deque[SessionCall] = deque()
        self.reads: dict[Place, int] = {}
        self.received: dict[Place, list[int]] = {}
        # For each partition for which another session waits: when this session learnt that, and when its turn was first
        # too late.
        self.wanted: dict[Place, float] = {}
        self.late: dict[Place, float] = {}
        # The time until which the session has promised the client that it may commit.
        self.granted_until = -inf
        self.left = False

    @property
    def is_able(self) -> bool:
        return self.session.end is None and self.process.alive and self.lease.is_valid(self.process.clock.monotonic())

    def run_driver_round(self) -> None:
        """Do one round of the driver's work."""
        now = self.process.clock.monotonic()
        while self.facts:
            self._carry_out_actions(self.facts.popleft()(now))
        for place in tuple(self.reads):
            run = self._read(place)
            if run is not None:
                self._carry_out_actions(self.session.handle_events(place, run, now))
        if now >= self.session.next_tick_at():
            was_closing = self.session.reason
            self._carry_out_actions(self.session.tick(now))
            if was_closing is None and self.session.reason is SessionEnd.RELEASE_TIMEOUT:
                self._check_time_to_commit(now)
        else:
            self._check_nothing_is_due(now)
        self._check_hand_overs(now)
        if self.session.end and self.session.departure_record().has_timed_out:
            early = self.granted_until - now
            check_promise("extension", early <= 0, f"{self.session.id} ends {early:.1f} s before what it has granted")

    def _check_nothing_is_due(self, now: float) -> None:
        """Check that a tick before `next_tick_at` finds nothing to do, so the session has forgotten no deadline.

        Batches are the exception: a batch of one partition leaves less room for uncommitted events, which the waiting
        events of another partition may then fill. The session sends these with its next tick, whenever that is.
        """
        if not self.is_able:
            return
        early = self.session.tick(now)
        due = [each for each in early if not isinstance(each, SendBatch)]
        is_quiet = not due and self.session.end is None
        check_promise("deadline", is_quiet, f"{self.session.id} did not ask to be woken for {due or self.session.end}")
        self._carry_out_actions(early)

    def _check_hand_overs(self, now: float) -> None:
        """Check that, whatever the client commits, the session hands over a wanted partition within two commit
        timeouts, or ends.
        """
        patience = self.limits.commit_seconds
        for place, since in self.wanted.items():
            if now >= since + patience:
                late = self.late.setdefault(place, now)
                over = self.session.end is not None or now < late + patience
                check_promise(
                    "hand-over", over, f"{self.session.id} keeps {place.partition}, wanted for {now - since:.1f} s"
                )

    def _check_time_to_commit(self, now: float) -> None:
        """Check that a session that closes because other sessions wait for its partitions has first given its client a
        whole commit timeout to commit the events in them.
        """
        since = min(self.wanted.values(), default=inf)
        had = f"its client had {now - since:.1f} s to commit what others wait for"
        check_promise("time to commit", now >= since + self.limits.commit_seconds, f"{self.session.id} closes; {had}")

    def call(self) -> None:
        """Carry out the session's next call; if there is no answer, repeat it the next time."""
        call, wire = self.calls[0], self.process.wire
        try:
            wire.actor, wire.letting_go = self.session.id, not isinstance(call, OpenPartition)
            if isinstance(call, OpenPartition):
                beginning = self.executor.find_start(call)
                self.facts.append(lambda now: self._begin_reading(call, beginning, now))
            else:
                self.facts.append(self.executor.perform(call))
            if isinstance(call, GrantExtension):
                self.granted_until = call.commit_by
        except Unavailable:
            return
        finally:
            wire.actor, wire.letting_go = "", False
        self.calls.popleft()

    def leave(self) -> None:
        """Do what the request handler does when the driver has ended."""
        wire = self.process.wire
        self.left = True
        try:
            wire.actor = self.session.id
            self.process.members.leave(self.session.id, self.session.departure_record())
        except Unavailable:
            self.process.host.remove_session_later(SUBSCRIPTION, self.session.id)
        finally:
            wire.actor = ""

    def handle_state(self, shared: SharedState, now: float) -> Sequence[SessionAction]:
        actions = self.session.handle_state(shared, now)
        # The session ignores a state that is older than its own last write, so it has not learnt it.
        if self.session._seen == shared.assignment.revision:
            own = shared.assignment.session(self.session.id)
            leaves = own is not None and own.is_leaving
            check_promise(
                "leaving", not leaves or self.session.end is not None, f"{self.session.id} was left, and goes on"
            )
            self.process.history.note_heard_offsets(self.session.id, shared.offsets)
            wanted = [
                each.partition
                for each in shared.assignment.entries
                if each.owner == self.session.id and each.next_owner
            ]
            self.wanted = {place: self.wanted.get(place, now) for place in wanted}
            self.late = {place: since for place, since in self.late.items() if place in self.wanted}
        return actions

    def handle_disconnect(self, now: float) -> Sequence[SessionAction]:
        actions = self.session.handle_disconnect(now)
        released = self.session.end is not None or not self.limits.releases_on_disconnect
        check_promise("release", released, f"{self.session.id} goes on without a client")
        return actions

    def _begin_reading(self, opening: OpenPartition, beginning: PartitionStart, now: float) -> Sequence[SessionAction]:
        if not self.session.expects_opening(opening):
            return []
        self.reads[opening.partition] = beginning.position.offset + 1
        return self.session.handle_opening(
            opening, beginning.position, beginning.lost_events, now, beginning.parked_keys
        )

    def _carry_out_actions(self, actions: Iterable[SessionAction]) -> None:
        for action in actions:
            match action:
                case SendBatch(place, _, runs):
                    offsets = [run.chunk.events[index].offset for run in runs for index in range(run.first, run.last)]
                    self.process.history.check_sent_events(self.session.id, place, offsets)
                    self.received.setdefault(place, []).extend(offsets)
                case SendKeepAlive():
                    pass
                case ClosePartition(place):
                    self.reads.pop(place, None)
                case _:
                    if isinstance(action, OpenPartition):
                        self.reads.pop(action.partition, None)
                    self.calls.append(action)

    def _read(self, place: Place) -> EventRun | None:
        history = self.process.history
        start, events = self.reads[place], history.events[place]
        if start >= len(events) or not self.session.wants_events(place):
            return None
        found = events[start : start + self.process.random.randint(1, MOST_EVENTS_READ)]
        self.reads[place] = start + len(found)
        stored = tuple(
            StoredEvent(each.offset, Record(b"1", each.key, directed_to=None if each.ours else "others"), START)
            for each in found
        )
        return EventChunk(1, start, EventSlice(stored, self.reads[place])).run_from_offset(start)


@dataclass
class SimulatedProcess:
    name: str
    clock: SkewedClock
    wire: UnreliableCoordination
    history: History
    topic: SimulatedEventType
    random: Random
    policy: RetryPolicy | None
    streams: list[SimulatedStream] = field(default_factory=list)
    alive: bool = True
    paused_until: float = 0.0

    def __post_init__(self) -> None:
        names = iter(range(10_000))
        self.wire.alive = lambda: self.alive
        execute_reset = make_reset_execution(self.wire, self.clock).try_to_execute
        self.members = SubscriptionSessions(self.wire, SUBSCRIPTION, self.clock, execute_reset, pause=lambda _: None)  # type: ignore[arg-type]
        self.host = LeaseKeeper(self.wire, self.clock, new_name=lambda: f"{self.name}-{next(names)}")  # type: ignore[arg-type]
        self.news: set[SubscriptionChangeNotice] = set()
        self.state_reader = SharedStateReader(self.members)
        self.looked_at = -inf
        self.unwatch = self.wire.add_change_listener(SUBSCRIPTION, self.news.add)

    @property
    def awake(self) -> bool:
        return self.alive and self.clock.time.seconds >= self.paused_until

    @property
    def takes_lease(self) -> bool:
        """Whether this process is taking or renewing its lease, a call during which other processes may move."""
        return self.host._lock.locked()

    @property
    def has_duties(self) -> bool:
        return bool(self.streams) or self.host.has_unremoved_sessions

    @property
    def should_read_state(self) -> bool:
        """Whether a change was reported, or none for so long that a report may have been lost."""
        return bool(self.news) or self.clock.monotonic() >= self.looked_at + FULL_READ_INTERVAL_SECONDS

    def open(
        self, subscription: Subscription, session_id: str, limits: SubscriptionStreamLimits, requested: Sequence[Place]
    ) -> SimulatedStream | None:
        """Do what the request handler does before the driver begins, and return the stream if it was opened."""
        try:
            make_offset_initialisation(self.topic, self.wire, self.clock).ensure_initialised(subscription)
        except Unavailable:
            return None
        try:
            lease = self.host.ensure_lease()
            session = Session(
                id=session_id,
                process_id=lease.process_id,
                started_at=self.clock.now(),
                commit_timeout=limits.commit_seconds,
                requested_partitions=tuple(requested),
            )
            self.host.remove_expired_sessions([(self.members, self.members.assignment())])
            self.members.join(session)
        except Unavailable:
            self.host.remove_session_later(SUBSCRIPTION, session_id)
            return None
        except Conflict:
            return None
        stream = SimulatedStream(self, session_id, limits, lease)
        self.streams.append(stream)
        self.news.add(SubscriptionChange.ASSIGNMENT)
        return stream

    def read_news(self) -> None:
        """Read the shared state once for all streams of this process."""
        streams = tuple(self.streams)
        news = set(self.news)
        self.news.clear()
        self.looked_at = self.clock.monotonic()
        try:
            shared = self.state_reader.read(news)
        except Unavailable:
            self.news |= news or {SubscriptionChange.ASSIGNMENT}
            return
        for stream in streams:
            stream.facts.append(lambda now, stream=stream: stream.handle_state(shared, now))

    def renew_and_clean_up(self) -> None:
        shared = self.state_reader.shared
        subscriptions = [(self.members, shared.assignment)] if shared else []
        try:
            renew_and_clean_up(self.host, subscriptions, lambda _: self.members)
        except Unavailable:
            return

    def find_partition_start(self, place: Place, stored: Position) -> PartitionStart:
        start = max(stored, Position(1, self.history.oldest[place] - 1))
        event_type: Any = None
        return PartitionStart(event_type, start, start.offset - stored.offset)

    def handle(self, drop: Any) -> None:
        """Note that an event need not be delivered, because consumers have failed often enough at it."""
        self.history.excused[drop.partition].add(drop.event.end.offset)

    def crash(self) -> None:
        self.alive = False
        self.unwatch()
