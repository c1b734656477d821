"""The driver: one task per stream that carries facts to its session, lines to the client, and calls to the clerk.

It is the only one who writes, and writes one thing after the other. Calls are carried out in threads, one after the
other as well, while lines go on being sent. While it has to wait, for a client that takes nothing or for a log, the
session still hears what happens, and time passes for it: others may be waiting for its partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from msgspec.structs import replace

from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Outcome, Unavailable, Unusable
from nakadi.model.subscription import EventTypePartition
from nakadi.ports.clock import Clock
from nakadi.streaming.driver import DeadlineTimer, Outlet, WriteBuffer
from nakadi.subscriptions.stream.actions import (
    ClosePartition,
    OpenPartition,
    SendBatch,
    SendKeepAlive,
    SessionAction,
    SessionCall,
    SharedState,
)
from nakadi.subscriptions.stream.admission import KnownEventTypes, PartitionStart
from nakadi.subscriptions.stream.calls import SessionCallExecutor, SessionFact
from nakadi.subscriptions.stream.lines import SubscriptionFormat
from nakadi.subscriptions.stream.parking import EventSource
from nakadi.subscriptions.stream.session import SubscriptionSession

log = logging.getLogger(__name__)

# A call is tried again after these pauses while a store does not answer.
SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 2.0

# A client that commits beyond the end of the log goes on if the events come at once, as it does in other brokers: so
# long a place that cannot be read is looked at again.
BEYOND_SECONDS = 0.5

# So long after the end of its session, a client that has taken nothing for as long may still take what it was sent.
LAST_CHANCE_SECONDS = 1.0

OpenSource = Callable[[EventTypePartition, PartitionStart], EventSource]


class CallThreads(NamedTuple):
    """Where calls are carried out. To begin with a partition the registry is asked, too, which may not answer."""

    beginning: Executor
    others: Executor


class SubscriptionDriver:
    """When a topic is gone, `known` is asked to look again: then `update` or `tell` says what became of it."""

    def __init__(
        self,
        session: SubscriptionSession,
        clerk: SessionCallExecutor,
        lines: SubscriptionFormat,
        outlet: Outlet,
        *,
        clock: Clock,
        threads: CallThreads,
        new_place: OpenSource,
        known: KnownEventTypes,
    ) -> None:
        self.session = session
        self._clerk = clerk
        self._lines = lines
        self._outlet = outlet
        self._clock = clock
        self._threads = threads
        self._new_place = new_place
        self._known = known
        self._places: dict[EventTypePartition, EventSource] = {}
        self._facts: list[SessionFact] = []
        self._updates: list[EventType] = []
        self._calls: deque[SessionCall] = deque()
        self._calling: asyncio.Task[None] | None = None
        self._bell = asyncio.Event()
        self._alarm = DeadlineTimer(clock, self.wake)
        self._pen = WriteBuffer(outlet)
        self._somebody_listens = True
        # While the driver waits for somebody: what cuts the waiting short.
        self._waiting: asyncio.Timeout | None = None
        self._going_on = False

    # From outside, on the loop

    def tell(self, fact: SessionFact) -> None:
        """Let the session know; `fact` is called with the time, and answers with what the session wants done."""
        self._facts.append(fact)
        self.wake()

    def look(self, shared: SharedState) -> None:
        """The subscription is like this now."""
        self.tell(lambda now: self.session.looked(shared, now))

    def update(self, event_type: EventType) -> None:
        """An event type has changed: there may be a new timeline to go on in."""
        self._known.newest(event_type)
        self._updates.append(event_type)
        self.wake()

    def wake(self) -> None:
        self._bell.set()
        if self._waiting is not None and not self._going_on:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._go_on_while_waiting)

    # Carrying

    async def run(self) -> None:
        """Serve until the session ends. Everything held is given back in any case."""
        watchers = [
            asyncio.ensure_future(self._watch(self._outlet.gone(), self._gone)),
            asyncio.ensure_future(self._watch(self._outlet.draining(), lambda _: self.session.drain())),
        ]
        try:
            await self._serve()
        finally:
            for watcher in [*watchers, *([self._calling] if self._calling else [])]:
                watcher.cancel()
            self._alarm.cancel()
            for place in self._places.values():
                place.leave()

    async def _watch(self, condition: Awaitable[None], fact: SessionFact) -> None:
        await condition
        self.tell(fact)

    def _gone(self, now: float) -> Sequence[SessionAction]:
        self._somebody_listens = False
        return self.session.gone(now)

    async def _serve(self) -> None:
        self._pen.put(self._lines.opening(self.session.id))
        while True:
            self._bell.clear()
            moved = await self._round()
            await self._flush()
            if self.session.end:
                return
            if moved:
                await asyncio.sleep(0)  # others have clients too
            else:
                self._alarm.set(self.session.deadline())
                await self._bell.wait()

    async def _round(self) -> bool:
        """Hand in what has happened and what is at hand; whether there may be more of it."""
        self._hand_in_facts()
        await self._flush_if_full()
        moved = False
        try:
            self._take_notice()
            for each, place in tuple(self._places.items()):
                moved = await self._take(each, place) or moved
        except Outcome as outcome:
            log.info("The stream %s cannot go on: %s", self.session.id, outcome)
            self._carry_out(self.session.refused(outcome))
        self._carry_out(self.session.tick(self._clock.monotonic()))
        return moved

    def _hand_in_facts(self) -> None:
        facts, self._facts = self._facts, []
        for fact in facts:
            self._carry_out(fact(self._clock.monotonic()))

    def _take_notice(self) -> None:
        updates, self._updates = self._updates, []
        for event_type in updates:
            for each, place in self._places.items():
                if each.event_type == event_type.name:
                    place.update(event_type)

    async def _take(self, each: EventTypePartition, place: EventSource) -> bool:
        if not self.session.wants(each) or self._places.get(each) is not place:
            return False
        if place.at_border:
            await self._waited_for(place.move(self.wake))
            if self._places.get(each) is not place or self.session.end:
                place.leave()  # it was given up while it moved
                return False
        run = place.take()
        if run is None:
            if place.lost:
                self._known.look_again()
            return False
        self._carry_out(self.session.arrived(each, run, self._clock.monotonic()))
        await self._flush_if_full()
        return True

    def _carry_out(self, actions: Iterable[SessionAction]) -> None:
        for action in actions:
            match action:
                case SendBatch() | SendKeepAlive():
                    self._pen.put(self._lines.line(action))
                case ClosePartition(place):
                    self._stop_reading(place)
                case _:
                    if isinstance(action, OpenPartition):
                        self._stop_reading(action.place)
                    self._calls.append(action)
                    if self._calling is None:
                        self._calling = asyncio.create_task(self._work())

    def _stop_reading(self, place: EventTypePartition) -> None:
        if place in self._places:
            self._places.pop(place).leave()

    # Calls

    async def _work(self) -> None:
        while self._calls:
            call = self._calls.popleft()
            try:
                self.tell(await self._performed(call))
            except Exception as error:  # whatever it is, the stream must not go on as if it had worked
                log.warning("The stream %s ends, for a call failed: %s", self.session.id, call, exc_info=error)
                # What was to come after it counts on it.
                self._calls.clear()
                self.tell(lambda _, error=error: self.session.refused(error))  # type: ignore[misc]  # bound early
        self._calling = None

    async def _performed(self, call: SessionCall) -> SessionFact:
        pause, wanted_by = SHORTEST_PAUSE, self._clock.monotonic() + BEYOND_SECONDS
        while True:
            try:
                threads = self._threads.beginning if isinstance(call, OpenPartition) else self._threads.others
                return await asyncio.get_running_loop().run_in_executor(threads, self._perform, call)
            except Unavailable as error:
                log.warning("The stream %s tries again in %s s: %s", self.session.id, pause, error)
            except Unusable:
                if self._clock.monotonic() >= wanted_by:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _perform(self, call: SessionCall) -> SessionFact:
        if not isinstance(call, OpenPartition):
            return self._clerk.perform(call)
        beginning = self._clerk.begin(call)
        return lambda now: self._opened(call, beginning, now)

    def _opened(self, opening: OpenPartition, beginning: PartitionStart, now: float) -> Sequence[SessionAction]:
        if not self.session.expects(opening):
            return []
        # It may have changed since the survey looked: whoever told that was not heard by a place that was not there.
        newest = self._known.newest(beginning.event_type)
        self._places[opening.place] = self._new_place(opening.place, replace(beginning, event_type=newest))
        return self.session.opened(opening, beginning.start, beginning.lost, now, beginning.parked)

    # Writing

    async def _flush_if_full(self) -> None:
        if self._pen.full:
            await self._flush()

    async def _flush(self) -> None:
        if not self._somebody_listens:
            return
        try:
            if not await self._waited_for(self._pen.flush()):
                log.info("The stream %s ended while its client was not reading", self.session.id)
                self._somebody_listens = False
        except ConnectionError:
            self.tell(self._gone)

    # Waiting

    async def _waited_for(self, work: Awaitable[None]) -> bool:
        """Wait for this while the session goes on; False if the session came to its end before.

        It is only waited between two of the session's answers, so that no line overtakes another.
        """
        try:
            async with asyncio.timeout(None) as waiting:
                self._waiting = waiting
                self._alarm.set(self.session.deadline())
                await work
        except TimeoutError:
            if not waiting.expired():
                raise
            return False
        finally:
            self._waiting = None
        return True

    def _go_on_while_waiting(self) -> None:
        self._going_on = False
        if self._waiting is None:
            return
        self._hand_in_facts()
        self._carry_out(self.session.tick(self._clock.monotonic()))
        if self.session.end:
            self._waiting.reschedule(asyncio.get_running_loop().time() + LAST_CHANCE_SECONDS)
            self._waiting = None
        else:
            self._alarm.set(self.session.deadline())
