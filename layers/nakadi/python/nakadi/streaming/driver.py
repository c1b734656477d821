"""The driver: one task per stream that carries facts to its session and actions to the client.

It is the only one who writes, and writes one thing after the other. Events are taken when everything before them is on
its way, so that a client that does not read holds up its own stream and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Outcome, Unavailable
from nakadi.ports.clock import Clock
from nakadi.streaming.feeds import PartitionReader
from nakadi.streaming.lines import StreamFormat
from nakadi.streaming.session import LowLevelSession, SendEvents, SendKeepAlive, SendProblem, StreamAction, StreamEnd

# Event loops count milliseconds and may wake us up to one too early, for nothing.
SLACK_SECONDS = 0.001

# An alarm that is farther off, or for no time at all, is set anew when it rings.
LONGEST_SECONDS_AHEAD = 3600.0


class DeadlineTimer:
    """Calls `ring` at the deadline or before; one that is too early costs less than setting a new one."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._set: tuple[float, asyncio.TimerHandle] | None = None

    def set(self, deadline: float) -> None:
        if self._set is not None and self._set[0] <= deadline:
            return
        self.cancel()
        delay = min(deadline - self._clock.monotonic() + SLACK_SECONDS, LONGEST_SECONDS_AHEAD)
        self._set = (deadline, asyncio.get_running_loop().call_later(delay, self._rings))

    def cancel(self) -> None:
        if self._set is not None:
            self._set[1].cancel()
            self._set = None

    def _rings(self) -> None:
        self._set = None
        self._ring()


# Small batches that are due together travel together.
WRITE_BYTES = 64 * 1024


class Outlet(Protocol):
    """The way to the client."""

    async def write(self, chunk: bytes) -> None:
        """Send, flushed, and return once the client has room for more; raises when nobody is there."""

    async def gone(self) -> None:
        """Return when the client has gone away."""

    async def draining(self) -> None:
        """Return when the process is about to end."""


class WriteBuffer:
    """Lines in their order, several of them in one write."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._lines: list[bytes] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        return self._bytes >= WRITE_BYTES

    def put(self, line: bytes) -> None:
        if line:
            self._lines.append(line)
            self._bytes += len(line)

    async def flush(self) -> None:
        lines, self._lines, self._bytes = self._lines, [], 0
        if lines:
            await self._outlet.write(lines[0] if len(lines) == 1 else b"".join(lines))


# How long a client that takes nothing may hold its stream beyond its time.
GRACE_SECONDS = 30.0

StreamFact = Callable[[float], Sequence[StreamAction]]
DescribeProblem = Callable[[Exception], bytes]


class LowLevelDriver:
    """`find_out` is called when a topic is gone: whoever knows should `update`, or `tell` what became of it."""

    def __init__(
        self,
        session: LowLevelSession,
        places: Sequence[PartitionReader],
        lines: StreamFormat,
        outlet: Outlet,
        *,
        clock: Clock,
        describe: DescribeProblem,
        find_out: Callable[[], None],
    ) -> None:
        self.session = session
        self._places = places
        self._lines = lines
        self._outlet = outlet
        self._clock = clock
        self._describe = describe
        self._find_out = find_out
        self._facts: list[StreamFact] = []
        self._news: EventType | None = None
        self._bell = asyncio.Event()
        self._alarm = DeadlineTimer(clock, self.wake)
        self._pen = WriteBuffer(outlet)

    # From outside, on the loop

    def tell(self, fact: StreamFact) -> None:
        """Let the session know; `fact` is called with the time, and answers with what the session wants done."""
        self._facts.append(fact)
        self.wake()

    def update(self, event_type: EventType) -> None:
        """The event type has changed: there may be a new timeline to go on in."""
        self._news = event_type
        self.wake()

    def wake(self) -> None:
        self._bell.set()

    # Carrying

    async def run(self, seconds: float) -> None:
        """Serve until the session ends, which takes about this time at most. Raises what the outlet raises.

        If this is cancelled, the client may have a part of a line. Everything held is given back in any case.
        """
        watchers = [
            asyncio.ensure_future(self._watch(self._outlet.gone(), lambda _: self.session.gone())),
            asyncio.ensure_future(self._watch(self._outlet.draining(), self.session.drain)),
        ]
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                await self._serve()
        finally:
            for watcher in watchers:
                watcher.cancel()
            self._alarm.cancel()
            for place in self._places:
                place.leave()

    async def _watch(self, condition: Awaitable[None], fact: StreamFact) -> None:
        await condition
        self.tell(fact)

    async def _serve(self) -> None:
        self._pen.put(self._lines.opening())
        while True:
            self._bell.clear()
            moved = await self._round()
            if self.session.end is not StreamEnd.GONE:
                await self._pen.flush()
            if self.session.end:
                return
            if moved:
                await asyncio.sleep(0)  # others have clients too
            else:
                self._alarm.set(self.session.deadline())
                await self._bell.wait()

    async def _round(self) -> bool:
        """Hand in what has happened and what is at hand; whether there may be more of it."""
        facts, self._facts = self._facts, []
        for fact in facts:
            await self._carry_out(fact(self._clock.monotonic()))
        moved = False
        try:
            self._take_notice()
            for place in self._places:
                moved = await self._take(place) or moved
        except (Outcome, Unavailable) as error:
            await self._carry_out(self.session.refused(error))
        await self._carry_out(self.session.tick(self._clock.monotonic()))
        return moved

    def _take_notice(self) -> None:
        event_type, self._news = self._news, None
        if event_type is not None:
            for place in self._places:
                place.update(event_type)

    async def _take(self, place: PartitionReader) -> bool:
        if self.session.end:
            return False
        if place.at_border:
            await place.move(self.wake)
        run = place.take()
        if run is None:
            if place.lost:
                self._find_out()
            return False
        await self._carry_out(self.session.arrived(place.partition, run, self._clock.monotonic()))
        return True

    async def _carry_out(self, actions: Iterable[StreamAction]) -> None:
        for action in actions:
            if self._pen.full:
                await self._pen.flush()
            match action:
                case SendEvents():
                    self._pen.put(self._lines.batch(action))
                case SendKeepAlive():
                    self._pen.put(self._lines.keep_alive(action))
                case SendProblem(error):
                    self._pen.put(self._lines.problem(self._describe(error)))
