"""Oversight: whether those who are being streamed to may still be, asked for all of them together.

Blocks, and changes made by other processes, can only be found by looking; so somebody looks once a second while there
are streams. What this process changes is looked at right away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from nakadi.model.authorization import Subject
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Unavailable
from nakadi.streaming.judge import Blocked, Changed, Judge, Refused, Verdict

log = logging.getLogger(__name__)

SECONDS = 1.0

Fact = Callable[[float], Sequence[Any]]


class Session(Protocol):
    def blocked(self) -> Sequence[Any]:
        """An administrator has blocked the client or what it reads."""

    def refused(self, error: Exception, /) -> Sequence[Any]:
        """The client may not go on, or cannot."""


class Driver(Protocol):
    """A stream of any kind."""

    @property
    def session(self) -> Session:
        """What decides about it."""

    def tell(self, fact: Fact) -> None:
        """Let the session know; `fact` is called with the time."""

    def update(self, event_type: EventType) -> None:
        """The event type has changed."""


@dataclass(slots=True, eq=False)
class Audience:
    """The streams of one subject over one event type, which was last seen like this. Without a subject they only want
    to know of changes."""

    subject: Subject | None
    event_type: EventType
    drivers: set[Driver] = field(default_factory=set)


class Oversight:
    def __init__(self, judge: Judge, seconds: float = SECONDS) -> None:
        self._judge = judge
        self._seconds = seconds
        self._audiences: dict[tuple[Subject | None, str], Audience] = {}
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell = asyncio.Event()
        # One look after the other, in a thread of its own: a registry that does not answer holds up nothing else.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="nakadi-oversight")

    @contextmanager
    def over(self, driver: Driver, subject: Subject | None, event_type: EventType) -> Iterator[None]:
        """Tell a driver what it has to know while it runs; without a subject, only what changes. To be entered on its
        loop."""
        key = (subject, event_type.id)
        audience = self._audiences.setdefault(key, Audience(subject, event_type))
        audience.drivers.add(driver)
        if event_type.revision < audience.event_type.revision:
            audience.event_type = event_type  # so that a change which the others know already is told again
        self._begin()
        try:
            yield
        finally:
            audience.drivers.discard(driver)
            if not audience.drivers:
                self._audiences.pop(key, None)
                self._end_without_audience()

    def close(self) -> None:
        """To be called when nothing is streamed any more. A look that waits for the registry is left behind."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def hurry(self) -> None:
        """Look now. From any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed: there is nobody to tell
                loop.call_soon_threadsafe(self._bell.set)

    def _begin(self) -> None:
        if self._looking is None:
            self._loop = asyncio.get_running_loop()
            self._bell = asyncio.Event()
            self._looking = self._loop.create_task(self._look_after())

    def _end_without_audience(self) -> None:
        if not self._audiences and self._looking is not None:
            self._looking.cancel()
            self._looking = self._loop = None

    async def _look_after(self) -> None:
        while True:
            await _rung(self._bell, self._seconds)
            audiences = list(self._audiences.values())
            loop = asyncio.get_running_loop()
            verdicts = await loop.run_in_executor(self._threads, self._verdicts, audiences)
            for audience, verdict in zip(audiences, verdicts, strict=True):
                _tell(audience, verdict)

    def _verdicts(self, audiences: Sequence[Audience]) -> list[Verdict]:
        try:
            self._judge.look_at_features()
            return [self._verdict(each) for each in audiences]
        except Unavailable as error:
            log.warning("Streams go on unchecked for now: %s", error)
            return [None for _ in audiences]
        except Exception:
            # Whatever it is, streams must not be left without oversight for it.
            log.exception("Streams go on unchecked for now")
            return [None for _ in audiences]

    def _verdict(self, audience: Audience) -> Verdict:
        if audience.subject is None:
            return self._judge.change(audience.event_type)
        return self._judge.verdict(audience.subject, audience.event_type)


def _tell(audience: Audience, verdict: Verdict) -> None:
    if isinstance(verdict, Changed):
        audience.event_type = verdict.event_type
    for driver in tuple(audience.drivers):
        match verdict:
            case Blocked():
                driver.tell(_blocking(driver.session))
            case Refused(error):
                driver.tell(_refusing(driver.session, error))
            case Changed(event_type):
                driver.update(event_type)


def _blocking(session: Session) -> Fact:
    return lambda _: session.blocked()


def _refusing(session: Session, error: Exception) -> Fact:
    return lambda _: session.refused(error)


async def _rung(bell: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await bell.wait()
    bell.clear()
