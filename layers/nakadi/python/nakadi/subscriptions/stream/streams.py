"""Streams of subscriptions: the door to a subscription's events."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from math import inf
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.counting import Labels, MetricRows
from nakadi.common.metrics import Metrics
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model import subscription as shared
from nakadi.model.authorization import Subject
from nakadi.model.event_type import EventType, Position
from nakadi.model.outcomes import NotFound, TryLater, Unavailable
from nakadi.model.subscription import EventTypePartition, Subscription
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.ports.event_log import EventLogs
from nakadi.streaming.access import ReadAccess, StreamAccessMonitor
from nakadi.streaming.driver import EventSource, StreamFigures, StreamOutlet
from nakadi.streaming.feeds import Feeds, PartitionReader
from nakadi.streaming.session import PickSeconds
from nakadi.streaming.streams import count_stream
from nakadi.subscriptions.api.fields import retry_policy_from_annotations
from nakadi.subscriptions.api.parked_events import ParkedEventStore
from nakadi.subscriptions.stream.actions import ProcessLease, SessionContext, SessionEnd
from nakadi.subscriptions.stream.admission import (
    KnownEventTypes,
    PartitionStart,
    PartitionStarts,
    StreamAdmission,
    delivery_filter,
)
from nakadi.subscriptions.stream.calls import DeadLetterPublisher, SessionCallExecutor
from nakadi.subscriptions.stream.driver import SessionCallThreads, SubscriptionDriver, SubscriptionFormat
from nakadi.subscriptions.stream.leases import LEASE_RENEWAL_INTERVAL_SECONDS, LeaseKeeper, renew_and_clean_up
from nakadi.subscriptions.stream.limits import SubscriptionStreamLimits, SubscriptionStreamParameters, limits_of
from nakadi.subscriptions.stream.members import SubscriptionSessions, SubscriptionWatch
from nakadi.subscriptions.stream.parking import ParkingService, ReplaySource
from nakadi.subscriptions.stream.session import SubscriptionSession

log = logging.getLogger(__name__)

CALL_THREADS = 8

CANNOT_CONTINUE = "Failed to continue streaming"


class JoinedStream(Struct, frozen=True, kw_only=True):
    """A stream that has joined its subscription, and is to be served or given up."""

    id: str
    subscription: Subscription
    event_types: Sequence[EventType]
    subject: Subject
    limits: SubscriptionStreamLimits
    lease: ProcessLease


class StreamBounds(Struct, frozen=True, kw_only=True):
    """`longest_seconds` is the most that a stream may last here, and `max_seconds_between_lines` the most that it may
    be silent; None leaves it to the API's own limits. `redrive` is an event type that may come to subscriptions beside
    their own.
    """

    most_commit_seconds: int = 60
    longest_seconds: int | None = None
    max_seconds_between_lines: float | None = None
    pick_seconds: PickSeconds = random.randint
    redrive: str = ""


class SubscriptionStreams:
    def __init__(  # noqa: PLR0913  # every part by its name
        self,
        *,
        admission: StreamAdmission,
        coordination: Coordination,
        cursor_resolver: CursorResolver,
        logs: EventLogs,
        access: ReadAccess,
        dead_letters: DeadLetterPublisher,
        clock: Clock,
        bounds: StreamBounds,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._admission = admission
        self._coordination = coordination
        self._cursor_resolver = cursor_resolver
        self._access = access
        self._monitor = StreamAccessMonitor(access)
        self._dead_letters = dead_letters
        self._clock = clock
        self._bounds = bounds
        self._starts = PartitionStarts(admission.event_types, cursor_resolver, clock)
        self._keeper = LeaseKeeper(coordination, clock, metrics=self._metrics)
        self._feeds = Feeds(logs)
        self._threads = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix="nakadi-consuming")
        # Two kinds of calls have threads of their own. Where a partition begins is asked of the registry, too, which
        # may not answer. And if leases are not kept in time, partitions are taken from streams that work well.
        self._opening = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix="nakadi-opening")
        self._keeping = ThreadPoolExecutor(1, thread_name_prefix="nakadi-leases")
        self._watch = SubscriptionWatch(self._threads)
        self._drivers: dict[SubscriptionDriver, JoinedStream] = {}
        self._renewal: asyncio.Task[None] | None = None
        admission.event_types.add_change_listener(lambda _: self._monitor.check_soon())
        self._metrics.partitions_held.add_source(self._partitions_by_subscription)
        self._metrics.subscription_uncommitted.add_source(self._uncommitted_by_subscription)
        self._metrics.subscription_lag.add_source(self._read_lags)

    # Opening

    def check(self, subscription_id: str, asked: SubscriptionStreamParameters, subject: Subject) -> None:
        """Whether a stream could be opened, in the order in which clients can see it. Raises outcomes."""
        limits = self._limits(asked)
        self._admission.admit(subscription_id, asked.partitions, subject)
        self._sessions_of(subscription_id).check(self._session(str(uuid4()), "", limits, asked))

    def open(self, subscription_id: str, asked: SubscriptionStreamParameters, subject: Subject) -> JoinedStream:
        """Have a stream join its subscription, if it may. Raises outcomes."""
        limits = self._limits(asked)
        # Before the first event: this process may not have read them yet.
        self._access.refresh_features()
        subscription, event_types = self._admission.admit(subscription_id, asked.partitions, subject)
        stream_id = str(uuid4())
        try:
            # The lease first: a session without one would be removed by any process that looks.
            lease = self._keeper.lease()
            self._join(subscription_id, self._session(stream_id, lease.holder, limits, asked))
            self._require_event_types_exist(subscription)
            self._check_beginnings(subscription_id, stream_id, event_types)
        except Unavailable as error:
            # It is not known whether the session is in the assignment. Removing one that is not there changes nothing.
            self._keeper.retry_removal(subscription_id, stream_id)
            raise TryLater(CANNOT_CONTINUE) from error
        except Exception:
            self._remove_session(subscription_id, stream_id)
            raise
        return JoinedStream(
            id=stream_id,
            subscription=subscription,
            event_types=event_types,
            subject=subject,
            limits=limits,
            lease=lease,
        )

    def abandon(self, opening: JoinedStream) -> None:
        """A stream will not be served after all."""
        self._remove_session(opening.subscription.id, opening.id)

    def _join(self, subscription_id: str, session: shared.Session) -> None:
        members = self._sessions_of(subscription_id)
        self._keeper.remove_expired_sessions([(members, members.assignment())])
        members.join(session)

    def _require_event_types_exist(self, subscription: Subscription) -> None:
        """A deletion removes the subscription first, and then what its streams share: what we have put there in
        between, or after, is ours to clear away."""
        try:
            self._admission.check_still_there(subscription)
        except NotFound:
            self._coordination.remove_subscription_state(subscription.id)
            raise

    def _check_beginnings(self, subscription_id: str, stream_id: str, event_types: Sequence[EventType]) -> None:
        """Raise `Unusable` now if a partition cannot be read: later there is no way to say so."""
        known = {each.name: each for each in event_types}
        offsets = self._coordination.committed_offsets(subscription_id)
        for partition, offset in offsets.items():
            if offset.owner == stream_id:
                self._starts.find(partition, offset.position, known.get(partition.event_type))

    def _remove_session(self, subscription_id: str, stream_id: str) -> None:
        """Whatever goes wrong: a session without a stream would keep its partitions as long as this process lives."""
        try:
            self._sessions_of(subscription_id).remove({stream_id})
        except Exception:
            log.warning("Removing the session %s of %s failed, tried again", stream_id, subscription_id, exc_info=True)
            self._keeper.retry_removal(subscription_id, stream_id)

    # Serving

    async def serve(
        self, opening: JoinedStream, lines: SubscriptionFormat, outlet: StreamOutlet, figures: StreamFigures
    ) -> None:
        """Stream until the end, and leave before the client can see it."""
        with ExitStack() as stack:
            driver = self._driver(opening, lines, outlet, figures, stack)
            stack.enter_context(count_stream(self._metrics, "subscription", lambda: driver.session.end))
            # Before anything waits: the lease is renewed while there are drivers, and this one relies on it.
            self._drivers[driver] = opening
            self._begin_lease_renewal()
            stack.callback(self._drivers.pop, driver)
            try:
                for event_type in opening.event_types:
                    stack.enter_context(self._monitor.monitor(driver, opening.subject, event_type))
                stack.callback(self._watch.follow(self._sessions_of(opening.subscription.id), driver.state_read))
                await driver.run()
            finally:
                leaving = asyncio.get_running_loop().run_in_executor(self._threads, self._leave, opening, driver)
                # After a cancellation the partitions must not stay with this session.
                await asyncio.shield(leaving)

    def close(self) -> None:
        """To be called when no stream is open any more."""
        self._feeds.close()
        self._monitor.close()
        self._opening.shutdown(wait=False, cancel_futures=True)
        for threads in (self._threads, self._keeping):
            threads.shutdown(wait=True, cancel_futures=True)
        self._keeper.close()

    def _driver(
        self,
        opening: JoinedStream,
        lines: SubscriptionFormat,
        outlet: StreamOutlet,
        figures: StreamFigures,
        stack: ExitStack,
    ) -> SubscriptionDriver:
        known = KnownEventTypes(opening.event_types, self._monitor.check_soon)
        overseen = {each.name for each in opening.event_types}
        members = self._sessions_of(opening.subscription.id)
        access = self._access

        def find_start(partition: EventTypePartition, stored: Position) -> PartitionStart:
            return self._starts.find(partition, stored, known.get(partition.event_type))

        redrive = self._bounds.redrive
        attached = "" if redrive in opening.subscription.event_types else redrive
        policy = retry_policy_from_annotations(opening.subscription.annotations)
        store = ParkedEventStore(self._coordination, opening.subscription.id)
        parking = ParkingService(store, self._clock, follows=policy is not None and policy.parks_keys)

        def open_source(partition: EventTypePartition, start: PartitionStart) -> EventSource:
            if partition.event_type not in overseen:
                # It is attached to the subscription: the subject needs no permission to read it, but it may change.
                overseen.add(partition.event_type)
                stack.enter_context(self._monitor.monitor(driver, None, start.event_type))
            return self._source(partition, start, parking)

        context = SessionContext(
            measure=known.distance,
            deliverable=delivery_filter(access, opening.subscription.id, opening.subject, attached),
            lease=opening.lease,
            access=access,
            attached=attached,
        )
        session = SubscriptionSession(opening.id, opening.limits, self._clock.monotonic(), context, policy)
        driver = SubscriptionDriver(
            session,
            SessionCallExecutor(
                members,
                session,
                find_start,
                partial(self._dead_letters.handle, opening.subscription),
                parking,
                self._metrics,
            ),
            lines,
            outlet,
            clock=self._clock,
            figures=figures,
            threads=SessionCallThreads(opening=self._opening, others=self._threads),
            open_source=open_source,
            known=known,
        )
        return driver

    def _source(self, partition: EventTypePartition, start: PartitionStart, parking: ParkingService) -> EventSource:
        """Where the events come from: the log, or parked events first."""
        replay = start.again
        onward = start.start if replay is None else replay.onward
        reader = PartitionReader(self._feeds, self._cursor_resolver, start.event_type, partition.partition, onward)
        if replay is None:
            return reader
        return ReplaySource(replay.events, start.start, replay.last_position, parking.value, self._threads, reader)

    def _leave(self, opening: JoinedStream, driver: SubscriptionDriver) -> None:
        session = driver.session
        reason = session.end.value if session.end is not None else "it was cut off"
        log.info("The stream %s of subscription %s ended: %s", opening.id, opening.subscription.id, reason)
        if session.end in (SessionEnd.REMOVED, SessionEnd.LEASE_LOST):
            self._metrics.partitions_lost.add(session.progress().partitions)
        if session.end is SessionEnd.REMOVED:
            return
        try:
            self._sessions_of(opening.subscription.id).leave(opening.id, session.result())
        except Exception:  # whatever it was: see `_remove_session`
            log.warning(
                "Removing the session %s of %s failed, tried again", opening.id, opening.subscription.id, exc_info=True
            )
            self._keeper.retry_removal(opening.subscription.id, opening.id)

    # Keeping the lease

    def _begin_lease_renewal(self) -> None:
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.get_running_loop().create_task(self._renew_lease_regularly())

    async def _renew_lease_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        # Asked on the loop, where streams begin: one that begins behind this look finds the task done, and begins
        # another.
        while self._drivers or self._keeper.has_unremoved:
            try:
                await loop.run_in_executor(self._keeping, self._renew_lease_and_clean_up)
            except Exception:  # whatever it was: without a lease every stream of this process ends
                log.warning(
                    "Renewing the lease failed, tried again in %s s", LEASE_RENEWAL_INTERVAL_SECONDS, exc_info=True
                )
            now = self._clock.monotonic()
            # A session whose lease is over has to end: other processes may have given its partitions away.
            for driver, opening in tuple(self._drivers.items()):
                if not opening.lease.is_good(now):
                    # Any fact makes a session look at its lease; this one does nothing else that is not due.
                    driver.add_fact(driver.session.tick)
            await asyncio.sleep(LEASE_RENEWAL_INTERVAL_SECONDS)

    def _renew_lease_and_clean_up(self) -> None:
        renew_and_clean_up(self._keeper, self._watch.assignments().items(), self._sessions_of)

    # Metrics: asked for by other threads than the loop, so what it changes is copied first

    def _partitions_by_subscription(self) -> MetricRows:
        return {(): sum([driver.session.progress().partitions for driver in self._drivers.copy()])}

    def _uncommitted_by_subscription(self) -> MetricRows:
        found: dict[Labels, float] = {}
        for driver, opening in self._drivers.copy().items():
            labels = (opening.subscription.id,)
            found[labels] = found.get(labels, 0) + driver.session.progress().uncommitted
        return found

    def _read_lags(self) -> MetricRows:
        found: dict[Labels, float] = {}
        now = self._clock.now()
        for driver, opening in self._drivers.copy().items():
            labels, oldest = (opening.subscription.id,), driver.session.progress().oldest
            age = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
            found[labels] = max(found.get(labels, 0.0), age)
        return found

    # Parts

    def _limits(self, asked: SubscriptionStreamParameters) -> SubscriptionStreamLimits:
        bounds = self._bounds
        limits = limits_of(asked, bounds.most_commit_seconds, bounds.pick_seconds, bounds.longest_seconds)
        return replace(
            limits,
            max_seconds_between_lines=min(limits.max_seconds_between_lines, bounds.max_seconds_between_lines or inf),
        )

    def _sessions_of(self, subscription_id: str) -> SubscriptionSessions:
        return SubscriptionSessions(self._coordination, subscription_id, self._clock, self._admission.execute_reset)

    def _session(
        self, stream_id: str, holder: str, limits: SubscriptionStreamLimits, asked: SubscriptionStreamParameters
    ) -> shared.Session:
        return shared.Session(
            id=stream_id,
            process_id=holder,
            started_at=self._clock.now(),
            commit_timeout=limits.commit_seconds,
            requested_partitions=asked.partitions,
        )
