"""The drivers of streams: one task per stream that carries facts to its session, and lines to the client.

`StreamDriver` is the common part of streams of both kinds, `LowLevelDriver` the driver of an event type's streams. Only
its driver writes to a stream, one chunk after the other. The driver takes events only when everything before them is
written, so that a client that does not read delays only its own stream.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Outcome, Unavailable, UnreadableEvents
from nakadi.ports.clock import Clock
from nakadi.streaming.chunks import EventRun
from nakadi.streaming.feeds import PartitionReader
from nakadi.streaming.formats import StreamFormat
from nakadi.streaming.session import (
    LowLevelSession,
    SendEvents,
    SendProblem,
    SendStreamKeepAlive,
    StreamAction,
    StreamEnd,
)

# Event loops count milliseconds, and may fire a timer up to one millisecond too early, so timers are set this much
# later.
TIMER_SLACK_SECONDS = 0.001

# A timer for a deadline that is farther off, or infinitely far, is set again when it fires.
MAX_TIMER_SECONDS = 3600.0

# Small batches that are due together are written together. Joining large batches would cost more than another write.
MAX_UNWRITTEN_BYTES = 32 * 1024

# How long a stream whose client does not read may last beyond its end.
SLOW_CLIENT_MARGIN_SECONDS = 30.0

ApplyFact = Callable[[float], Sequence[Any]]
"""A fact, as a call of the session with the current time; it returns the actions that follow."""

DescribeProblem = Callable[[Exception], bytes]

_EVENT_COUNT_OF = attrgetter("count")


class StreamOutlet(Protocol):
    """The connection to the client."""

    async def write(self, chunk: bytes) -> None:
        """Send and flush the bytes, and return once the client has room for more. Raises `ConnectionError` if the
        client has disconnected.
        """

    def when_client_gone(self) -> asyncio.Future[None]:
        """A future that is done when the client has disconnected."""

    def when_shutting_down(self) -> asyncio.Future[None]:
        """A future that is done when the process is about to end."""


class StreamFigures(Protocol):
    """Counts the events that a stream sends."""

    @property
    def next_report_at(self) -> float:
        """The time of the steady clock from which `report` has something to do."""

    def record_sent_batch(
        self, event_type: str, events: int, size: int, newest: datetime, runs: Sequence[EventRun]
    ) -> None:
        """Record that a batch is about to be sent; its newest event was stored at `newest`."""

    def report(self) -> None:
        """Report the counts since the last report."""


class WriteBuffer:
    """Collects lines in their order, and writes several of them at once."""

    def __init__(self, outlet: StreamOutlet) -> None:
        self._outlet = outlet
        self._lines: list[bytes] = []
        self._bytes = 0

        # Whether to flush the buffer before anything is added.
        self.is_full = False

    def put(self, line: bytes) -> None:
        if line:
            self._lines.append(line)
            self._bytes += len(line)
            self.is_full = self._bytes >= MAX_UNWRITTEN_BYTES

    async def flush(self) -> None:
        lines, self._lines, self._bytes, self.is_full = self._lines, [], 0, False
        if lines:
            await self._outlet.write(lines[0] if len(lines) == 1 else b"".join(lines))


class DeadlineTimer:
    """Calls `fire` at the deadline or before; firing too early costs less than setting the timer again each time."""

    def __init__(self, clock: Clock, fire: Callable[[], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._set: tuple[float, asyncio.TimerHandle] | None = None

    def set(self, deadline: float) -> None:
        if self._set is not None and self._set[0] <= deadline:
            return
        self.cancel()
        delay = min(deadline - self._clock.monotonic() + TIMER_SLACK_SECONDS, MAX_TIMER_SECONDS)
        self._set = (deadline, asyncio.get_running_loop().call_later(delay, self._on_timer))

    def cancel(self) -> None:
        if self._set is not None:
            self._set[1].cancel()
            self._set = None

    def _on_timer(self) -> None:
        self._set = None
        self._fire()


class StreamSession(Protocol):
    """The methods that a driver and the access monitor need, in sessions of both kinds."""

    @property
    def end(self) -> Any:
        """Why the stream has ended; None until then."""

    def next_tick_at(self) -> float:
        """The time at which `tick` next has something to do. Until then, only facts and events change anything."""

    def tick(self, now: float, /) -> Sequence[Any]:
        """Do what is due at `now`."""

    def handle_block(self) -> Sequence[Any]:
        """Record that an administrator has blocked the client or its event types."""

    def handle_refusal(self, error: Exception, /) -> Sequence[Any]:
        """End the stream, because the client may no longer read, or the stream cannot continue."""


class EventSource(Protocol):
    """The source from which a stream takes the events of a partition."""

    @property
    def is_topic_missing(self) -> bool:
        """Whether the topic does not exist any longer; a call of `update_event_type` with a newer event type should
        follow.
        """

    @property
    def needs_move(self) -> bool:
        """Whether `move_to_next_event` must be called before events can be taken."""

    @property
    def has_more(self) -> bool:
        """Whether more events may be ready after `take_run`. If not, `wake` will be called."""

    async def move_to_next_event(self, wake: Callable[[], None]) -> None:
        """Move to the place where the next event is or will be. `wake` is called when there may be events to take."""

    def update_event_type(self, event_type: EventType) -> None:
        """Take a newer event type, which may have other timelines."""

    def take_run(self) -> EventRun | None:
        """The next events that are ready, None while there are none."""

    def release(self) -> None:
        """Release all resources of the source."""


class StreamDriver(ABC):
    """`add_fact`, `update_event_type` and `wake` must be called on the event loop. So nothing here needs a lock:
    another thread can only schedule these calls on the loop, and nothing else runs there between two awaits of the
    driver.
    """

    def __init__(self, outlet: StreamOutlet, clock: Clock, figures: StreamFigures) -> None:
        self._outlet = outlet
        self._clock = clock
        self._figures = figures
        self._facts: list[ApplyFact] = []
        self._updates: list[EventType] = []
        self._is_woken = False
        # A function to call if the driver is woken while it waits for something other than `wake`.
        self._on_wake: Callable[[], None] | None = None
        # The future that an idle driver awaits. An `asyncio.Event` would take several times as much memory.
        self._sleep: asyncio.Future[None] | None = None
        self._timer = DeadlineTimer(clock, self.wake)
        self._buffer = WriteBuffer(outlet)

    @property
    @abstractmethod
    def session(self) -> StreamSession: ...

    def add_fact(self, fact: ApplyFact) -> None:
        """Queue a fact, which the next round passes to the session."""
        self._facts.append(fact)
        self.wake()

    def update_event_type(self, event_type: EventType) -> None:
        """Take a newer event type, which may have a new timeline in which to continue."""
        self._updates.append(event_type)
        self.wake()

    def wake(self) -> None:
        self._is_woken = True
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
        elif self._on_wake is not None:
            self._on_wake()

    async def _run_until_end(self, opening: bytes, on_disconnect: ApplyFact, on_shutdown: ApplyFact) -> None:
        """Serve until the session ends. The driver's resources are released in any case."""
        watched = [(self._outlet.when_client_gone(), on_disconnect), (self._outlet.when_shutting_down(), on_shutdown)]
        callbacks = [(future, partial(self._add_fact_when_done, fact)) for future, fact in watched]
        for future, callback in callbacks:
            future.add_done_callback(callback)
        session = self.session
        try:
            self._buffer.put(opening)
            while True:
                # Cleared before the round begins, so that events during the round wake the driver again.
                self._is_woken = False
                moved = await self._process_pending()
                now, deadline = self._clock.monotonic(), session.next_tick_at()
                if now >= deadline and not session.end:
                    await self._carry_out_and_flush(session.tick(now))
                    deadline = session.next_tick_at()
                if now >= self._figures.next_report_at:
                    self._figures.report()
                self._timer.set(deadline)
                # A client that does not read makes the driver wait here; a disconnection and the deadline are noted
                # meanwhile.
                await self._flush()
                if session.end:
                    return
                if moved:
                    await asyncio.sleep(0)  # so that other streams run too
                elif not self._is_woken:
                    self._sleep = asyncio.get_running_loop().create_future()
                    await self._sleep
        finally:
            for future, callback in callbacks:
                future.remove_done_callback(callback)
            self._timer.cancel()
            self._release_all()
            self._figures.report()

    def _add_fact_when_done(self, fact: ApplyFact, _future: asyncio.Future[None]) -> None:
        self.add_fact(fact)

    @abstractmethod
    async def _process_pending(self) -> bool:
        """Pass the waiting facts and events to the session; return whether there may be more of them."""

    @abstractmethod
    async def _carry_out_and_flush(self, actions: Sequence[Any]) -> None:
        """Carry out actions in their order, and write before too much is buffered."""

    @abstractmethod
    async def _flush(self) -> None:
        """Write buffered lines, if there is still a client."""

    @abstractmethod
    def _release_all(self) -> None:
        """Release all sources, and end the timers and tasks that were begun."""


class LowLevelDriver(StreamDriver):
    """The driver of a stream of one event type. It calls `find_out` when a topic no longer exists, and then expects a
    call of `update_event_type` or `add_fact` that reports what has changed.
    """

    def __init__(  # noqa: PLR0913  # every part by its name
        self,
        session: LowLevelSession,
        partitions: Sequence[PartitionReader],
        lines: StreamFormat,
        outlet: StreamOutlet,
        *,
        event_type: str,
        clock: Clock,
        figures: StreamFigures,
        describe: DescribeProblem,
        find_out: Callable[[], None],
    ) -> None:
        super().__init__(outlet, clock, figures)
        self._event_type = event_type
        self._session = session
        self._partitions = partitions
        self._lines = lines
        self._describe = describe
        self._find_out = find_out

    @property
    def session(self) -> LowLevelSession:
        return self._session

    async def run(self, seconds: float) -> None:
        """Serve until the session ends, for at most about this time. Raises the outlet's errors.

        After a cancellation, the client may have received only a part of a line.
        """
        opening, session = self._lines.stream_opening(), self._session
        async with asyncio.timeout(seconds + SLOW_CLIENT_MARGIN_SECONDS):
            await self._run_until_end(opening, lambda _: session.handle_disconnect(), session.handle_shutdown)

    async def _process_pending(self) -> bool:
        facts, self._facts = self._facts, []
        for fact in facts:
            await self._carry_out_and_flush(fact(self._clock.monotonic()))
        moved = False
        try:
            # Updates are taken before anything is awaited; a later update has already requested the next round.
            updates, self._updates = self._updates, []
            for event_type in updates:
                for partition in self._partitions:
                    partition.update_event_type(event_type)
            for partition in self._partitions:
                moved = await self._pass_on_next_run(partition) or moved
        except UnreadableEvents as error:
            await self._carry_out_and_flush(self._session.handle_unreadable_events(error, self._clock.monotonic()))
        except (Outcome, Unavailable) as error:
            await self._carry_out_and_flush(self._session.handle_refusal(error))
        return moved

    async def _pass_on_next_run(self, partition: PartitionReader) -> bool:
        if self._session.end:
            return False
        if partition.needs_move:
            await partition.move_to_next_event(self.wake)
        run = None if partition.is_complete else partition.take_run()
        if run is not None:
            actions = self._session.handle_events(partition.partition, run, self._clock.monotonic())
            await self._carry_out_and_flush(actions)
        elif partition.is_topic_missing:
            self._find_out()
        if partition.is_complete:
            await self._end_partition(partition)
            return False
        # At the end of the log, a stream does not try for more events after it has sent one, because a thousand streams
        # may follow the event type.
        return run is not None and partition.has_more

    async def _end_partition(self, partition: PartitionReader) -> None:
        assert partition.until is not None
        self._partitions = [each for each in self._partitions if each is not partition]
        partition.release()
        await self._carry_out_and_flush(
            self._session.handle_partition_end(partition.partition, partition.until, self._clock.monotonic())
        )

    async def _carry_out_and_flush(self, actions: Sequence[StreamAction]) -> None:
        for action in actions:
            if self._buffer.is_full:
                await self._buffer.flush()
            match action:
                case SendEvents(_, _, runs):
                    line = self._lines.encode_batch(action)
                    self._buffer.put(line)
                    events, newest = sum(map(_EVENT_COUNT_OF, runs)), runs[-1].stored_at(-1)
                    self._figures.record_sent_batch(self._event_type, events, len(line), newest, runs)
                case SendStreamKeepAlive():
                    self._buffer.put(self._lines.encode_keep_alive(action))
                case SendProblem(error):
                    self._buffer.put(self._lines.encode_problem(self._describe(error)))

    async def _flush(self) -> None:
        if self._session.end is not StreamEnd.GONE:
            await self._buffer.flush()

    def _release_all(self) -> None:
        for partition in self._partitions:
            partition.release()
