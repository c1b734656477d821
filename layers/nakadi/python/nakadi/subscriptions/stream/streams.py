"""Streams of subscriptions: opens and serves the streams of a subscription's events."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from nakadi.subscriptions.api.objectives import FreshnessReports
from nakadi.subscriptions.api.parked_events import ParkedEventStore
from nakadi.subscriptions.stream.actions import (
    ProcessLease,
    SessionContext,
    SessionEnd,
    SubscriptionStreamLimits,
    SubscriptionStreamParameters,
    stream_limits,
)
from nakadi.subscriptions.stream.admission import (
    AcceptsEvent,
    KnownEventTypes,
    PartitionStart,
    PartitionStarts,
    StreamAdmission,
    delivery_filter,
)
from nakadi.subscriptions.stream.avro_format import AvroSubscriptionFormat, make_avro_format
from nakadi.subscriptions.stream.calls import DeadLetterPublisher, SessionCallExecutor
from nakadi.subscriptions.stream.driver import SessionCallThreads, SubscriptionDriver, SubscriptionFormat
from nakadi.subscriptions.stream.freshness import REPORT_INTERVAL_SECONDS, FreshnessRecorder
from nakadi.subscriptions.stream.leases import LEASE_RENEWAL_INTERVAL_SECONDS, LeaseKeeper, renew_and_clean_up
from nakadi.subscriptions.stream.members import SubscriptionSessions, SubscriptionWatch
from nakadi.subscriptions.stream.parking import ParkingService, ReplaySource
from nakadi.subscriptions.stream.projected_format import format_for
from nakadi.subscriptions.stream.session import SubscriptionSession
from nakadi.subscriptions.stream.stream_memory import StreamMemory

log = logging.getLogger(__name__)

CALL_THREAD_COUNT = 8

CANNOT_CONTINUE = "Failed to continue streaming"

Endings = list[Callable[[], None]]
"""The functions that end the parts of a stream, in the order in which these parts began."""


class JoinedStream(Struct, frozen=True, kw_only=True):
    """A stream that has joined its subscription, and must be served or abandoned. Events that `accepts` refuses are
    skipped, like those that the subject may not read. `memory` bounds the bytes of events that it holds.
    """

    id: str
    subscription: Subscription
    event_types: Sequence[EventType]
    subject: Subject
    limits: SubscriptionStreamLimits
    lease: ProcessLease
    accepts: AcceptsEvent | None = None
    memory: StreamMemory | None = None


class StreamBounds(Struct, frozen=True, kw_only=True):
    """`max_stream_seconds` is the longest duration of a stream here, and `max_seconds_between_lines` the longest
    silence; None means that only the API's own limits apply. `redrive_event_type` is the event type that subscriptions
    may receive besides their own.
    """

    max_commit_seconds: int = 60
    max_stream_seconds: int | None = None
    max_seconds_between_lines: float | None = None
    pick_seconds: PickSeconds = random.randint
    redrive_event_type: str = ""


def _end_all(endings: Endings) -> None:
    """End all parts, the last one first. If a part fails to end, the others still end."""
    for end in reversed(endings):
        try:
            end()
        except Exception:  # whatever the error was, the stream is over
            log.exception("A part of a stream did not end properly")


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
        reports: FreshnessReports,
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
        self._threads = ThreadPoolExecutor(CALL_THREAD_COUNT, thread_name_prefix="nakadi-consuming")
        # Two kinds of calls have separate threads. The search for a partition's start also reads the registry, which
        # may not answer. If leases then were not renewed in time, healthy streams would lose their partitions.
        self._opening = ThreadPoolExecutor(CALL_THREAD_COUNT, thread_name_prefix="nakadi-opening")
        self._keeping = ThreadPoolExecutor(1, thread_name_prefix="nakadi-leases")
        self._watch = SubscriptionWatch(self._threads)
        self._drivers: dict[SubscriptionDriver, JoinedStream] = {}
        self._renewal: asyncio.Task[None] | None = None
        self._freshness = FreshnessRecorder(admission.subscription_repository, reports, clock, self._metrics)
        self._reporting: asyncio.Task[None] | None = None
        admission.event_types.add_change_listener(lambda _: self._monitor.check_soon())
        self._metrics.partitions_held.add_source(self._count_partitions)
        self._metrics.subscription_uncommitted.add_source(self._uncommitted_by_subscription)
        self._metrics.subscription_lag.add_source(self._lags_by_subscription)
        self._metrics.subscription_objective.add_source(self._freshness.objective_ratios)

    # Opening

    def check_can_open(self, subscription_id: str, asked: SubscriptionStreamParameters, subject: Subject) -> None:
        """Raise an outcome if a stream could not be opened. Clients can observe the order of the checks, so keep it."""
        limits = self._limits_from(asked)
        self._admission.admit(subscription_id, asked.partitions, subject)
        self._sessions_of(subscription_id).check_room_for(self._new_session(str(uuid4()), "", limits, asked.partitions))

    def open(self, subscription_id: str, asked: SubscriptionStreamParameters, subject: Subject) -> JoinedStream:
        """Let a new stream join its subscription, if the subject may stream it. Raises outcomes."""
        return self._open(subscription_id, self._limits_from(asked), subject, asked.partitions)

    def open_for_sink(
        self,
        subscription_id: str,
        limits: SubscriptionStreamLimits,
        subject: Subject,
        accepts: AcceptsEvent | None,
        memory: StreamMemory,
    ) -> JoinedStream:
        """Let a new stream join a subscription for its sink; the broker itself is the client. Raises outcomes."""
        return replace(self._open(subscription_id, limits, subject, ()), accepts=accepts, memory=memory)

    def ensure_process_lease(self) -> str:
        """Ensure that other processes consider this one alive for some time; return the name of its lease. Raises
        `Unavailable`.
        """
        return self._keeper.ensure_lease().process_id

    def _open(
        self,
        subscription_id: str,
        limits: SubscriptionStreamLimits,
        subject: Subject,
        partitions: tuple[EventTypePartition, ...],
    ) -> JoinedStream:
        # Read before the first event, because this process may not have read the features yet.
        self._access.refresh_features()
        subscription, event_types = self._admission.admit(subscription_id, partitions, subject)
        stream_id = str(uuid4())
        try:
            # Take the lease before joining: any other process would remove a session without a lease.
            lease = self._keeper.ensure_lease()
            self._join(subscription_id, self._new_session(stream_id, lease.process_id, limits, partitions))
            self._require_subscription_exists(subscription)
            self._check_starts_readable(subscription_id, stream_id, event_types)
        except Unavailable as error:
            # The session may or may not be in the assignment. Removing a session that is not there changes nothing.
            self._keeper.remove_session_later(subscription_id, stream_id)
            log.warning("A stream of subscription %s cannot begin: %s", subscription_id, error.__cause__ or error)
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

    def make_avro_format(self, joined: JoinedStream) -> AvroSubscriptionFormat:
        """The format of a stream in Avro. Asks the registry. Raises `Invalid`."""
        return make_avro_format(self._admission.event_types, joined.event_types, joined.subscription)

    def abandon(self, joined: JoinedStream) -> None:
        """Remove the session of a stream that has joined and will not be served."""
        self._remove_session(joined.subscription.id, joined.id)

    def _join(self, subscription_id: str, session: shared.Session) -> None:
        members = self._sessions_of(subscription_id)
        self._keeper.remove_expired_sessions([(members, members.assignment())])
        members.join(session)

    def _require_subscription_exists(self, subscription: Subscription) -> None:
        """Raise `NotFound` if the subscription was deleted. A deletion removes the subscription first, and then the
        shared state of its streams, so this process must clear the state that it writes afterwards.
        """
        try:
            self._admission.check_subscription_exists(subscription)
        except NotFound:
            self._coordination.remove_subscription_state(subscription.id)
            raise

    def _check_starts_readable(self, subscription_id: str, stream_id: str, event_types: Sequence[EventType]) -> None:
        """Raise `UnusableCursor` if a partition of the stream cannot be read: once the stream has begun, it has no way
        to report that.
        """
        known = {each.name: each for each in event_types}
        offsets = self._coordination.committed_offsets(subscription_id)
        for partition, offset in offsets.items():
            if offset.owner == stream_id:
                self._starts.find(partition, offset.position, known.get(partition.event_type))

    def _remove_session(self, subscription_id: str, stream_id: str) -> None:
        """Remove a session after any failure: a session without a stream would keep its partitions as long as this
        process lives.
        """
        try:
            self._sessions_of(subscription_id).remove({stream_id})
        except Exception:
            log.warning("Removing the session %s of %s failed, trying again", stream_id, subscription_id, exc_info=True)
            self._keeper.remove_session_later(subscription_id, stream_id)

    # Serving

    async def serve(
        self,
        joined: JoinedStream,
        lines: SubscriptionFormat,
        outlet: StreamOutlet,
        figures: StreamFigures,
        on_start: Callable[[SubscriptionDriver], None] = lambda _: None,
    ) -> None:
        """Stream until the end, and leave the subscription before the client sees the end."""
        # An `ExitStack` would be a tenth of what an idle stream takes.
        endings: Endings = [
            partial(self._report_freshness_at_end, joined.subscription.id),
            self._freshness.follow(joined.subscription),
        ]
        try:
            driver = self._new_driver(joined, lines, outlet, figures, endings)
            on_start(driver)
            with count_stream(self._metrics, "subscription", lambda: driver.session.end):
                await self._run(driver, joined, endings)
        finally:
            _end_all(endings)

    async def _run(self, driver: SubscriptionDriver, joined: JoinedStream, endings: Endings) -> None:
        # The driver is added before the first `await`, because the lease is renewed only while there are drivers, and
        # this driver relies on it.
        self._drivers[driver] = joined
        self._begin_lease_renewal()
        self._begin_freshness_reports()
        endings += [partial(self._drivers.__delitem__, driver), driver.session.release_memory]
        try:
            for event_type in joined.event_types:
                endings.append(self._monitor.follow(driver, joined.subject, event_type))
            endings.append(self._watch.follow(self._sessions_of(joined.subscription.id), driver.add_state))
            await driver.run()
        finally:
            leaving = asyncio.get_running_loop().run_in_executor(self._threads, self._end_session, joined, driver)
            # Even after a cancellation, the session must give up its partitions.
            await asyncio.shield(leaving)

    def close(self) -> None:
        """Called when no stream is open any longer."""
        self._feeds.close()
        self._monitor.close()
        self._opening.shutdown(wait=False, cancel_futures=True)
        for threads in (self._threads, self._keeping):
            threads.shutdown(wait=True, cancel_futures=True)
        self._report_last_counts()
        self._keeper.close()

    def _new_driver(
        self,
        joined: JoinedStream,
        lines: SubscriptionFormat,
        outlet: StreamOutlet,
        figures: StreamFigures,
        endings: Endings,
    ) -> SubscriptionDriver:
        known = KnownEventTypes(joined.event_types, self._monitor.check_soon)
        overseen = {each.name for each in joined.event_types}
        policy = retry_policy_from_annotations(joined.subscription.annotations)
        store = ParkedEventStore(self._coordination, joined.subscription.id)
        parking = ParkingService(store, self._clock, parks_keys=policy is not None and policy.parks_keys)
        context = self._new_session_context(joined, known)
        session = SubscriptionSession(joined.id, joined.limits, self._clock.monotonic(), context, policy)

        def find_start(partition: EventTypePartition, stored: Position) -> PartitionStart:
            return self._starts.find(partition, stored, known.get(partition.event_type))

        def open_source(partition: EventTypePartition, start: PartitionStart) -> EventSource:
            if partition.event_type not in overseen:
                # An attached event type is watched too: the subject needs no permission to read it, but the event type
                # may change.
                overseen.add(partition.event_type)
                endings.append(self._monitor.follow(driver, None, start.event_type))
            return self._new_source(partition, start, parking)

        driver = SubscriptionDriver(
            session,
            SessionCallExecutor(
                self._sessions_of(joined.subscription.id),
                session,
                find_start,
                partial(self._dead_letters.publish_or_skip, joined.subscription),
                parking,
                self._metrics,
            ),
            format_for(lines, joined.subscription, joined.event_types),
            outlet,
            clock=self._clock,
            figures=figures,
            threads=SessionCallThreads(for_opening=self._opening, for_others=self._threads),
            open_source=open_source,
            known=known,
            count_consumed=partial(self._freshness.count, joined.subscription.id),
        )
        return driver

    def _new_session_context(self, joined: JoinedStream, known: KnownEventTypes) -> SessionContext:
        redrive = self._bounds.redrive_event_type
        attached = "" if redrive in joined.subscription.event_types else redrive
        return SessionContext(
            measure_distance=known.event_distance,
            is_deliverable=delivery_filter(
                self._access, joined.subscription.id, joined.subject, attached, accepts=joined.accepts
            ),
            filters_events=joined.accepts is not None,
            memory=joined.memory,
            lease=joined.lease,
            reading_rules=self._access,
            attached_event_type=attached,
            has_objective=partial(self._freshness.has_objective, joined.subscription.id),
        )

    def _new_source(self, partition: EventTypePartition, start: PartitionStart, parking: ParkingService) -> EventSource:
        """The source of the events: the log, or parked events first."""
        plan = start.planned_replay
        onward = start.position if plan is None else plan.resume_position
        reader = PartitionReader(
            self._feeds,
            self._cursor_resolver,
            start.event_type,
            partition.partition,
            onward,
            reports_failures=True,
        )
        if plan is None:
            return reader
        return ReplaySource(plan.events, start.position, plan.last_position, parking.event_value, self._threads, reader)

    def _end_session(self, joined: JoinedStream, driver: SubscriptionDriver) -> None:
        session = driver.session
        reason = session.end.value if session.end is not None else "it was cut off"
        log.info("The stream %s of subscription %s ended: %s", joined.id, joined.subscription.id, reason)
        if session.end in (SessionEnd.REMOVED, SessionEnd.LEASE_LOST):
            self._metrics.partitions_lost.add(session.progress().partition_count)
        if session.end is SessionEnd.REMOVED:
            return
        try:
            self._sessions_of(joined.subscription.id).leave(joined.id, session.departure_record())
        except Exception:  # any error: see `_remove_session`
            log.warning(
                "Removing the session %s of %s failed, trying again", joined.id, joined.subscription.id, exc_info=True
            )
            self._keeper.remove_session_later(joined.subscription.id, joined.id)

    # Keeping the lease

    def _begin_lease_renewal(self) -> None:
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.get_running_loop().create_task(self._renew_lease_regularly())

    async def _renew_lease_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        # Checked on the loop, where streams begin: a stream that begins after this check finds the task done, and
        # begins another.
        while self._drivers or self._keeper.has_unremoved_sessions:
            try:
                await loop.run_in_executor(self._keeping, self._renew_lease_and_clean_up)
            except Exception:  # any error: without a lease every stream of this process ends
                log.warning(
                    "Renewing the lease failed, trying again in %s s", LEASE_RENEWAL_INTERVAL_SECONDS, exc_info=True
                )
            now = self._clock.monotonic()
            # A session whose lease has expired must end: other processes may have given its partitions away.
            for driver, joined in tuple(self._drivers.items()):
                if not joined.lease.is_valid(now):
                    # Any fact makes a session check its lease; a tick does nothing else that is not due.
                    driver.add_fact(driver.session.tick)
            await asyncio.sleep(LEASE_RENEWAL_INTERVAL_SECONDS)

    def _renew_lease_and_clean_up(self) -> None:
        renew_and_clean_up(self._keeper, self._watch.last_read_assignments().items(), self._sessions_of)

    # Freshness

    def _begin_freshness_reports(self) -> None:
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.get_running_loop().create_task(self._report_freshness_regularly())

    async def _report_freshness_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        # Checked on the loop, as in `_renew_lease_regularly`.
        while self._freshness.is_following:
            await asyncio.sleep(REPORT_INTERVAL_SECONDS)
            try:
                await loop.run_in_executor(self._threads, self._freshness.report)
            except Exception:  # whatever the error was, the counts are kept, and the next report has them
                log.warning("Reporting how soon events were consumed failed, trying again", exc_info=True)

    def _report_freshness_at_end(self, subscription_id: str) -> None:
        """Report the counts when the last stream of a subscription has ended, instead of at the next regular report. If
        this report fails, the regular one repeats it."""
        if self._freshness.has_unreported_end(subscription_id):
            asyncio.get_running_loop().run_in_executor(self._threads, self._report_freshness_of, subscription_id)

    def _report_freshness_of(self, subscription_id: str) -> None:
        try:
            self._freshness.report_subscription(subscription_id)
        except Exception:  # no code waits for the result, and the next report repeats it
            log.warning("Reporting how soon events were consumed failed, trying again", exc_info=True)

    def _report_last_counts(self) -> None:
        try:
            self._freshness.report()
        except Exception:  # the process is about to end, and must do so
            log.warning("The latest consumed events are missing in the freshness of subscriptions", exc_info=True)

    # Metrics. Other threads than the loop read them, so values that the loop changes are copied first.

    def _count_partitions(self) -> MetricRows:
        return {(): sum([driver.session.progress().partition_count for driver in self._drivers.copy()])}

    def _uncommitted_by_subscription(self) -> MetricRows:
        found: dict[Labels, float] = {}
        for driver, joined in self._drivers.copy().items():
            labels = (joined.subscription.id,)
            found[labels] = found.get(labels, 0) + driver.session.progress().uncommitted_events
        return found

    def _lags_by_subscription(self) -> MetricRows:
        found: dict[Labels, float] = {}
        now = self._clock.now()
        for driver, joined in self._drivers.copy().items():
            labels, oldest = (joined.subscription.id,), driver.session.progress().oldest_stored_at
            age = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
            found[labels] = max(found.get(labels, 0.0), age)
        return found

    # Parts

    def _limits_from(self, asked: SubscriptionStreamParameters) -> SubscriptionStreamLimits:
        bounds = self._bounds
        limits = stream_limits(asked, bounds.max_commit_seconds, bounds.pick_seconds, bounds.max_stream_seconds)
        return replace(
            limits,
            max_seconds_between_lines=min(limits.max_seconds_between_lines, bounds.max_seconds_between_lines or inf),
        )

    def _sessions_of(self, subscription_id: str) -> SubscriptionSessions:
        return SubscriptionSessions(self._coordination, subscription_id, self._clock, self._admission.execute_reset)

    def _new_session(
        self,
        stream_id: str,
        process_id: str,
        limits: SubscriptionStreamLimits,
        partitions: tuple[EventTypePartition, ...],
    ) -> shared.Session:
        return shared.Session(
            id=stream_id,
            process_id=process_id,
            started_at=self._clock.now(),
            commit_timeout=limits.commit_seconds,
            requested_partitions=partitions,
            flush_timeout=0.0 if limits.sends_each_event_at_once else limits.flush_seconds,
        )
