"""The courier of one sink: holds the stream of its subscription, and calls the sink.

It is the client of the stream, in the same process: batches arrive as `SessionLine` objects, which are never encoded,
and commits go to the coordination. `DeliverySession` decides what to send, and when. The courier carries that out on
one event loop, which does everything except opening streams and writing to stores. So nothing here needs a lock: the
store's callbacks run in its own threads, but only schedule work on the loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from math import exp, inf
from typing import Any

import orjson
from msgspec import Struct, field

from nakadi.common.metrics import Metrics
from nakadi.common.waiting import begin_task
from nakadi.delivery.answers import Answer, Verdict, verdict_of
from nakadi.delivery.lane_states import DeliveryState
from nakadi.delivery.lanes import (
    COMMIT_WAIT_SECONDS,
    BeginAttempt,
    CommitDelivered,
    DeliveryAction,
    DeliveryBatch,
    DeliveryLimits,
    DeliverySession,
    pause_seconds,
)
from nakadi.delivery.senders import Attempt, Sender
from nakadi.model.authorization import Subject
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Outcome, Unavailable
from nakadi.model.sink import DeliveryReport, EndedAttempt, Parallel, Sink, SinkSecrets, SinkType
from nakadi.model.subscription import CommitResult, EventTypePartition
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import CommitResultByPartition, Coordination
from nakadi.schemas.conditions import parse_condition
from nakadi.streaming.chunks import EventRun
from nakadi.streaming.driver import DeadlineTimer, StreamFigures
from nakadi.subscriptions.api.fields import retry_policy_from_annotations
from nakadi.subscriptions.stream.actions import SendBatch, SessionLine, SubscriptionStreamLimits
from nakadi.subscriptions.stream.admission import AcceptsEvent
from nakadi.subscriptions.stream.driver import SubscriptionDriver
from nakadi.subscriptions.stream.session_states import SessionState
from nakadi.subscriptions.stream.stream_memory import StreamMemory
from nakadi.subscriptions.stream.streams import JoinedStream, SubscriptionStreams

log = logging.getLogger(__name__)

# How long a sink's own stream may last before the next one begins.
STREAM_SECONDS = 3600.0 * 24
# A sink that is down must not lose its partitions because of a commit timeout, so the timeout is a year: a stream ends
# with its process, or when the sink changes or the cursors are reset, and the courier ends its deliveries properly in
# all of these cases.
COMMIT_SECONDS = 3600.0 * 24 * 365

# How many batches of a partition to hold: enough to deliver until the next commit has ended. A partition that runs out
# of batches commits at once, which costs as much as a delivery.
MAX_BATCHES_AT_HAND, MIN_BATCHES_AT_HAND = 64, 2
ENOUGH_EVENTS_AT_HAND = 6400
MIN_EVENTS_AT_HAND = 32

# With deliveries by key, a partition may hold this many events: a key whose events fail holds up other keys only when
# so many wait behind it.
EVENTS_AT_HAND_BY_KEY = 1000

MAX_BYTES_AT_HAND_OF_SINK, MAX_BYTES_AT_HAND = 8_000_000, 128_000_000
"""How many bytes of events a sink, and all sinks of a process, may hold. Beyond that, a partition gets its next read,
of about a megabyte, when everything before it is delivered and committed."""

MIN_REOPENING_SECONDS = 0.2
MAX_REOPENING_SECONDS = 5.0

COMMIT_ATTEMPTS = 4

RECENT_ATTEMPTS = 20
"""How many attempts a report shows."""

RATE_SECONDS = 60.0
"""The approximate time over which the rate is averaged."""


class CourierParts(Struct, frozen=True, kw_only=True):
    """What all couriers of a process share.

    The first call of `get_sender` for a type of sink imports its client, which takes a while, so call it in a thread.
    Call `open_secrets` and `pause_sink` in a thread too. `reading_subject` returns the subject with whose permissions a
    sink reads events.
    """

    streams: SubscriptionStreams
    coordination: Coordination
    clock: Clock
    get_sender: Callable[[SinkType], Sender]
    threads: Executor
    metrics: Metrics
    open_secrets: Callable[[Sink], SinkSecrets]
    pause_sink: Callable[[Sink, str], None]
    reading_subject: Callable[[Sink], Subject]
    new_figures: Callable[[Subject, str], StreamFigures]
    memory: StreamMemory = field(default_factory=lambda: StreamMemory(MAX_BYTES_AT_HAND_OF_SINK, MAX_BYTES_AT_HAND))
    commit_wait_seconds: float = COMMIT_WAIT_SECONDS
    pick_share: Callable[[], float] = random.random


def events_at_hand(batch_limit: int, parallel: Parallel) -> int:
    """The number of events of a partition that the stream hands over before they are committed."""
    many = min(MAX_BATCHES_AT_HAND * batch_limit, ENOUGH_EVENTS_AT_HAND)
    least = MIN_EVENTS_AT_HAND if parallel is Parallel.PARTITION else EVENTS_AT_HAND_BY_KEY
    return max(many, MIN_BATCHES_AT_HAND * batch_limit, least)


def limits_of_sink(sink: Sink) -> SubscriptionStreamLimits:
    return SubscriptionStreamLimits(
        # The lanes form the batches for the sink; the stream passes on all available events, in as few pieces as it
        # can.
        batch_limit=max(sink.batch_limit, MIN_EVENTS_AT_HAND),
        max_uncommitted_events=2**31,
        max_uncommitted_per_partition=events_at_hand(sink.batch_limit, sink.parallel),
        sends_at_once=True,
        flush_seconds=STREAM_SECONDS,
        stream_seconds=STREAM_SECONDS,
        commit_seconds=COMMIT_SECONDS,
        max_seconds_between_lines=STREAM_SECONDS,
    )


def event_filter(condition: str | None) -> AcceptsEvent | None:
    if condition is None:
        return None
    is_met = parse_condition(condition)

    def accepts(event: bytes) -> bool:
        try:
            return is_met(orjson.loads(event))
        except RecursionError:
            # The values are nested too deeply to be compared. One event too many is better than one too few.
            return True

    return accepts


class ReportDigest(Struct, frozen=True):
    """What distinguishes two reports. Making a digest costs a fraction of making a report, and the dispatcher compares
    one for each sink every second.

    `condition` says whether the sink works: why there is no stream, whether anything was delivered, and whether
    deliveries fail now.
    """

    at: datetime
    condition: tuple[str, bool, bool]
    figures: tuple[float, ...]


class Courier:
    def __init__(self, sink: Sink, parts: CourierParts, tally: DeliveryTally) -> None:
        """A sink that is paused or changed gets a new courier, which continues the tally of the previous one."""
        self.sink = sink
        self._parts = parts
        self._is_stopping = False
        # The future that the courier awaits between two streams. An `asyncio.Event` would take several times as much
        # memory.
        self._pausing: asyncio.Future[None] | None = None
        self._delivery: Delivery | None = None
        self._tally = tally
        self._problem = ""

    def stop(self) -> None:
        """Begin no further attempts; `run` ends when those in progress have ended."""
        self._is_stopping = True
        if self._pausing is not None and not self._pausing.done():
            self._pausing.set_result(None)
        if self._delivery is not None:
            self._delivery.stop()

    def failing_seconds(self) -> float:
        """How many seconds all attempts have been failing; 0 if the last one succeeded."""
        since = self._tally.failing_since
        return 0.0 if since is None else max(0.0, (self._parts.clock.now() - since).total_seconds())

    def check_up(self) -> None:
        """Called about once a second: check whether the stream should continue, and measure the rate."""
        self._tally.measure_rate(self._parts.clock.monotonic())
        if self._delivery is not None:
            self._delivery.stop_if_stream_closes()
            self._delivery.stop_if_others_wait()

    def report_digest(self) -> ReportDigest:
        """A digest of the report as it would be now."""
        tally, delivery = self._tally, self._delivery
        waits_until, in_flight = (inf, 0) if delivery is None else (delivery.next_attempt_at(), delivery.in_flight)
        return ReportDigest(
            at=self._parts.clock.now(),
            condition=(self._problem, tally.last_success_at is not None, tally.failing_since is not None),
            figures=(tally.batches, tally.failures, round(tally.events_per_second, 3), in_flight, waits_until),
        )

    def report(self, process_id: str) -> DeliveryReport:
        clock, tally, delivery = self._parts.clock, self._tally, self._delivery
        next_at = inf if delivery is None else delivery.next_attempt_at()
        waits = next_at - clock.monotonic()
        return DeliveryReport(
            process_id=process_id,
            updated_at=clock.now(),
            delivered_batches=tally.batches,
            delivered_events=tally.events,
            failed_attempts=tally.failures,
            events_per_second=round(tally.events_per_second, 3),
            in_flight=0 if delivery is None else delivery.in_flight,
            next_attempt_at=None if next_at == inf else clock.now() + timedelta(seconds=max(0.0, waits)),
            last_success_at=tally.last_success_at,
            last_failure=None if tally.last_failure is None else tally.last_failure.to_ended_attempt(),
            recent_attempts=tuple(each.to_ended_attempt() for each in tally.recent_attempts),
            problem=self._problem,
        )

    async def run(self) -> None:
        """Deliver until `stop` is called, one stream after the other."""
        failures = 0
        while not self._is_stopping:
            try:
                if await self._deliver_one_stream():
                    return
                failures = 0
            except (Outcome, Unavailable) as error:
                self._problem = str(error)
                failures += 1
                log.info("The sink of subscription %s has no stream: %s", self.sink.subscription_id, error)
            except Exception as error:  # after any error, go on serving the sink
                self._problem = f"{type(error).__name__}"
                failures += 1
                log.exception("Delivering to the sink of subscription %s failed", self.sink.subscription_id)
            pause = min(MAX_REOPENING_SECONDS, pause_seconds(failures, self._parts.pick_share())) if failures else 0
            await self._pause(max(MIN_REOPENING_SECONDS, pause) if failures else 0)

    async def _deliver_one_stream(self) -> bool:
        """Deliver one stream. Returns whether it was the last one for now, because the sink is paused."""
        parts, sink = self._parts, self.sink
        loop = asyncio.get_running_loop()
        subject = parts.reading_subject(sink)
        secrets = await loop.run_in_executor(parts.threads, parts.open_secrets, sink)
        accepts = event_filter(sink.filter)
        opening = loop.run_in_executor(
            parts.threads,
            parts.streams.open_for_sink,
            sink.subscription_id,
            limits_of_sink(sink),
            subject,
            accepts,
            parts.memory,
        )
        try:
            joined = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # A thread is still opening a stream that this courier will not serve: give the stream up once it is open.
            opening.add_done_callback(partial(_abandon_opened_stream, parts))
            raise
        self._problem = ""
        figures = parts.new_figures(subject, sink.subscription_id)
        delivery = self._delivery = Delivery(sink, secrets, joined, parts, self._tally, figures)
        if self._is_stopping:
            delivery.stop()
        try:
            await delivery.run()
        finally:
            self._delivery = None
        if delivery.pause_reason:
            await loop.run_in_executor(parts.threads, parts.pause_sink, sink, delivery.pause_reason)
            return True
        return False

    async def _pause(self, seconds: float) -> None:
        if self._is_stopping:
            return
        self._pausing = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._pausing


def _abandon_opened_stream(parts: CourierParts, opening: asyncio.Future[JoinedStream]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        parts.threads.submit(parts.streams.abandon, opening.result())


class AttemptRecord(Struct, frozen=True):
    """An attempt as reports keep it: without its events, and without texts that are made only when a client reads the
    report.
    """

    partition: EventTypePartition
    first: Position
    last: Position
    events: int
    answer: Answer
    at: datetime
    seconds: float

    def to_ended_attempt(self) -> EndedAttempt:
        delivered = verdict_of(self.answer) is Verdict.DELIVERED
        return EndedAttempt(
            at=self.at,
            event_type=self.partition.event_type,
            partition=self.partition.partition,
            first_offset=str(self.first),
            last_offset=str(self.last),
            events=self.events,
            milliseconds=round(1000 * self.seconds),
            delivered=delivered,
            status=self.answer.status,
            text="" if delivered else self.answer.text,
        )


class DeliveryTally:
    """Counts the deliveries of this process to one sink."""

    def __init__(self) -> None:
        self.batches = 0
        self.events = 0
        self.failures = 0
        self.last_success_at: datetime | None = None
        self.last_failure: AttemptRecord | None = None
        self.failing_since: datetime | None = None
        self.recent_attempts: list[AttemptRecord] = []
        self.events_per_second = 0.0
        self._measured: tuple[float, int] | None = None

    def record(self, attempt: AttemptRecord, verdict: Verdict) -> None:
        self.recent_attempts.insert(0, attempt)
        del self.recent_attempts[RECENT_ATTEMPTS:]
        if verdict is Verdict.DELIVERED:
            self.batches += 1
            self.events += attempt.events
            self.last_success_at = attempt.at
            self.failing_since = None
        else:
            self.failures += 1
            self.events += attempt.answer.delivered or 0
            self.last_failure = attempt
            self.failing_since = self.failing_since or attempt.at

    def measure_rate(self, now: float) -> None:
        if self._measured is not None and now > self._measured[0]:
            seconds = now - self._measured[0]
            rate = (self.events - self._measured[1]) / seconds
            self.events_per_second += (rate - self.events_per_second) * (1 - exp(-seconds / RATE_SECONDS))
        self._measured = (now, self.events)


class Delivery:
    """The deliveries of one stream. The stream's driver uses this object as its format, its client and its figures."""

    content_type = ""
    next_report_at = inf

    def __init__(  # the broker passes every part by name
        self,
        sink: Sink,
        secrets: SinkSecrets,
        joined: JoinedStream,
        parts: CourierParts,
        tally: DeliveryTally,
        figures: StreamFigures,
    ) -> None:
        policy = retry_policy_from_annotations(joined.subscription.annotations)
        self._sink = sink
        self._secrets = secrets
        self._joined = joined
        self._parts = parts
        self._tally = tally
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._session = DeliverySession(
            DeliveryLimits(
                batch_limit=sink.batch_limit,
                max_in_flight=sink.max_in_flight,
                max_event_attempts=None if policy is None else policy.max_failed_streams,
                parallel=sink.parallel,
                commit_wait_seconds=parts.commit_wait_seconds,
            ),
            parts.pick_share,
        )
        self._timer = DeadlineTimer(parts.clock, self._tick)
        self._work: set[asyncio.Task[None]] = set()
        self._driver: SubscriptionDriver | None = None
        self._was_awaited = False
        self._client_gone: asyncio.Future[None] = self._loop.create_future()
        self._shutting_down: asyncio.Future[None] = self._loop.create_future()

    @property
    def in_flight(self) -> int:
        return self._session.in_flight

    @property
    def pause_reason(self) -> str:
        return self._session.pause_reason

    def next_attempt_at(self) -> float:
        return self._session.next_tick_at()

    async def run(self) -> None:
        """Deliver until the stream ends."""
        try:
            await self._parts.streams.serve(self._joined, self, self, self, self._start)
        finally:
            self._timer.cancel()
            for each in tuple(self._work):
                each.cancel()
            self._figures.report()

    def stop(self) -> None:
        """Begin no further attempts, and end the stream when none is in progress."""
        self._carry_out(self._session.stop(self._parts.clock.monotonic()))

    def stop_if_stream_closes(self) -> None:
        """Stop if the stream closes, for example because cursors are being reset. A closing stream waits for commits of
        the events that it has sent, so deliveries that have not begun never begin.
        """
        if self._driver is not None and self._driver.session.state is not SessionState.STREAMING:
            self.stop()

    def stop_if_others_wait(self) -> None:
        """Stop if another stream has waited for one of this stream's partitions for two checks in a row. Without this,
        it would wait until everything at hand is delivered, which takes minutes with a slow sink. The courier's next
        stream then gets its share of the partitions.
        """
        is_awaited = self._driver is not None and self._driver.session.is_awaited
        if is_awaited and self._was_awaited:
            self.stop()
        self._was_awaited = is_awaited

    # What the driver calls

    def stream_opening(self, stream_id: str) -> bytes:  # noqa: ARG002  # nobody needs it
        return b""

    def encode_line(self, line: SessionLine) -> bytes:
        """Take a batch. Write nothing, because each delivery has a body of its own."""
        if isinstance(line, SendBatch):
            self._carry_out(self._session.receive(line.partition, line.runs, self._parts.clock.monotonic()))
        return b""

    async def write(self, chunk: bytes) -> None:
        raise AssertionError(f"a line was written: {chunk!r}")

    def when_client_gone(self) -> asyncio.Future[None]:
        return self._client_gone

    def when_shutting_down(self) -> asyncio.Future[None]:
        return self._shutting_down

    def record_sent_batch(
        self, event_type: str, events: int, size: int, newest: datetime, runs: Sequence[EventRun]
    ) -> None:
        """Record nothing: the batch is not sent yet, and `_end_attempt` records deliveries."""

    def report(self) -> None:
        """Record nothing, because `_end_attempt` records deliveries."""

    # Carrying out

    def _start(self, driver: SubscriptionDriver) -> None:
        self._driver = driver

    def _tick(self) -> None:
        self._carry_out(self._session.tick(self._parts.clock.monotonic()))

    def _carry_out(self, actions: Iterable[DeliveryAction]) -> None:
        for action in actions:
            match action:
                case BeginAttempt(number, batch):
                    self._run(self._attempt(number, batch))
                case CommitDelivered():
                    self._begin_commit(action, COMMIT_ATTEMPTS)
        self._end_stream_if_settled()
        due_at = self._session.next_tick_at()
        if due_at < inf:
            self._timer.set(due_at)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        # Kept until it is done, because the loop itself has only weak references to its tasks.
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _attempt(self, number: int, batch: DeliveryBatch) -> None:
        sink = self._sink
        attempt = Attempt(
            sink=sink,
            secrets=self._secrets,
            message_id=batch.id_for(sink.subscription_id),
            batch=batch,
            now=self._parts.clock.now(),
            timeout_seconds=float(sink.timeout_seconds),
        )
        begun_at = self._parts.clock.monotonic()
        try:
            answer = await self._parts.get_sender(sink.type).deliver(attempt)
        except Exception as error:  # without an answer, the session would wait forever
            log.exception("An attempt for the sink of subscription %s failed", sink.subscription_id)
            answer = Answer(None, f"{type(error).__name__}: {error}")
        self._end_attempt(number, batch, answer, self._parts.clock.monotonic() - begun_at)

    def _end_attempt(self, number: int, batch: DeliveryBatch, answer: Answer, seconds: float) -> None:
        verdict = verdict_of(answer)
        self._parts.metrics.sink_attempts.add(1, verdict.name.lower())
        now, count = self._parts.clock.now(), batch.count
        record = AttemptRecord(batch.partition, batch.first, batch.last, count, answer, now, seconds)
        self._tally.record(record, verdict)
        if verdict is Verdict.DELIVERED:
            newest = batch.runs[-1].stored_at(-1)
            size = sum(run.size for run in batch.runs)
            self._figures.record_sent_batch(batch.partition.event_type, count, size, newest, batch.runs)
            if self._parts.clock.monotonic() >= self._figures.next_report_at:
                self._figures.report()
        self._carry_out(self._session.handle_answer(number, answer, self._parts.clock.monotonic()))

    def _begin_commit(self, action: CommitDelivered, attempts_left: int) -> None:
        positions = {action.partition: action.position}
        ahead = {action.partition: action.done_ahead} if action.done_ahead else None
        thread = threading.get_ident()

        def end_commit(result: CommitResultByPartition | Exception) -> None:
            if threading.get_ident() == thread:
                # In memory, a commit ends as soon as it begins. Report its end later, because the session is still
                # handling another fact.
                self._loop.call_soon(self._end_commit, action, attempts_left - 1, result)
                return
            with suppress(RuntimeError):  # the loop is closed, so no stream needs the result
                self._loop.call_soon_threadsafe(self._end_commit, action, attempts_left - 1, result)

        commit = self._parts.coordination.commit
        now = self._parts.clock.now()
        begin_task(commit(self._sink.subscription_id, self._joined.id, positions, now, ahead), end_commit)

    def _end_commit(
        self, action: CommitDelivered, attempts_left: int, result: CommitResultByPartition | Exception
    ) -> None:
        if isinstance(result, Exception):
            log.warning("A commit for the sink of %s failed: %s", self._sink.subscription_id, result)
            if attempts_left and isinstance(result, Unavailable):
                self._run(self._commit_later(action, attempts_left))
                return
        # `OUTDATED` also counts as committed, because the cursor is already at or beyond this position.
        is_committed = not isinstance(result, Exception) and CommitResult.NOT_OWNED not in result.values()
        now = self._parts.clock.monotonic()
        self._carry_out(self._session.end_commit(action.partition, now, is_committed=is_committed))

    async def _commit_later(self, action: CommitDelivered, attempts_left: int) -> None:
        await asyncio.sleep(pause_seconds(COMMIT_ATTEMPTS - attempts_left, self._parts.pick_share()))
        self._begin_commit(action, attempts_left)

    def _end_stream_if_settled(self) -> None:
        if self._session.state is not DeliveryState.SETTLED or self._shutting_down.done():
            return
        if self._session.given_up is not None and self._driver is not None:
            partition, position = self._session.given_up
            stream = self._driver.session
            self._driver.add_fact(lambda now: stream.handle_failed_event(partition, position, now))
        self._shutting_down.set_result(None)
