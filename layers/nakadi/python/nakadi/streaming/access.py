"""Who may read an event type and which of its events, asked when a stream begins and while it lasts.

Blocks, and changes made by other processes, can only be found by looking; so every second, while there are streams, it
is looked. What this process changes is looked at right away.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from msgspec import Struct, field

from nakadi.auth.administration import Features
from nakadi.auth.permissions import Permissions
from nakadi.event_types.repository import EventTypes, not_found
from nakadi.model.administration import Feature
from nakadi.model.authorization import Attribute, Authorization, Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import EventType
from nakadi.model.events import Record
from nakadi.model.outcomes import NotFound, NotPermitted, TryLater, Unavailable

# Clients tell a missing event type by these words here, and by others everywhere else.
NO_SUCH_EVENT_TYPE = "topic not found"


class AccessBlocked(Struct, frozen=True):
    """Neither a word nor an event more."""


class AccessRefused(Struct, frozen=True):
    """No event more, and why."""

    error: Exception


class EventTypeChanged(Struct, frozen=True):
    """Go on, with the event type as it is now."""

    event_type: EventType


AccessChange = AccessBlocked | AccessRefused | EventTypeChanged | None


class ReadAccess:
    """Looks things up, and so belongs into a thread."""

    def __init__(self, event_types: EventTypes, permissions: Permissions, features: Features) -> None:
        self._event_types = event_types
        self._permissions = permissions
        self._features = features
        self._looking = threading.Lock()
        self._owners_matter = True
        # Whether events that say of themselves that they belong elsewhere are not shown.
        self.misplaced_are_skipped = False

    def admit(self, name: str, subject: Subject) -> EventType:
        """The event type that a subject wants to read, if it may."""
        self.look_at_features()
        self._permissions.require_consumer(subject, [name])
        event_type = self._event_types.find(name)
        if event_type is None:
            raise NotFound(NO_SUCH_EVENT_TYPE)
        self._permissions.require(Operation.VIEW, event_type.resource, subject)
        self._permissions.require(Operation.READ, event_type.resource, subject)
        return event_type

    def verdict(self, subject: Subject, known: EventType) -> AccessChange:
        """What has become of a subject's right to read an event type that it was reading as it was then known."""
        try:
            self._permissions.require_consumer(subject, [known.name])
        except NotPermitted:
            return AccessBlocked()
        current = self._current(known)
        if current is None:
            return AccessRefused(TryLater(str(not_found(known.name))))
        if current.revision <= known.revision:
            return None
        try:
            self._permissions.require(Operation.READ, current.resource, subject)
        except NotPermitted as error:
            return AccessRefused(error)
        return EventTypeChanged(current)

    def change(self, known: EventType) -> AccessChange:
        """What has become of an event type that is read whatever its subject may read."""
        current = self._current(known)
        return EventTypeChanged(current) if current is not None and current.revision > known.revision else None

    def look_at_features(self) -> None:
        """Remember what is asked for every event, where there is no time to look."""
        with self._looking:  # one by one, or somebody who looked earlier might have the last word
            self._owners_matter = self._features.is_on(Feature.EVENT_OWNER_SELECTOR_AUTHZ)
            self.misplaced_are_skipped = self._features.is_on(Feature.SKIP_MISPLACED_EVENTS)

    def may_read(self, record: Record, subject: Subject) -> bool:
        """Whether a subject gets to see an event. Tombstones, and what is for one subscription, nobody does."""
        if record.value is None or record.directed_to is not None:
            return False
        return record.owner is None or not self._owners_matter or self._may_read_of(record.owner, subject)

    def _may_read_of(self, owner: Attribute, subject: Subject) -> bool:
        owned = Resource(ResourceType.EVENT, "", Authorization(admins=(), readers=(owner,)))
        return self._permissions.allows(Operation.READ, owned, subject)

    def _current(self, known: EventType) -> EventType | None:
        """The same event type as it is now; another one may have taken its name."""
        try:
            current: EventType | None = self._event_types.cached(known.name)
        except NotFound:
            return None
        if current is not None and current.id != known.id:
            # What is remembered may be the one *before* ours.
            current = self._event_types.find(known.name)
        return current if current is not None and current.id == known.id else None


# While streams last ---------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS = 1.0

MonitoredFact = Callable[[float], Sequence[Any]]


class MonitoredSession(Protocol):
    def blocked(self) -> Sequence[Any]:
        """An administrator has blocked the client or what it reads."""

    def refused(self, error: Exception, /) -> Sequence[Any]:
        """The client may not go on, or cannot."""


class MonitoredStream(Protocol):
    """A stream of any kind."""

    @property
    def session(self) -> MonitoredSession:
        """What decides about it."""

    def tell(self, fact: MonitoredFact) -> None:
        """Let the session know; `fact` is called with the time."""

    def update(self, event_type: EventType) -> None:
        """The event type has changed."""


class MonitoredReaders(Struct, eq=False):
    """The streams of one subject over one event type, which was last seen like this. Without a subject they only want
    to know of changes."""

    subject: Subject | None
    event_type: EventType
    drivers: set[MonitoredStream] = field(default_factory=set)


class StreamAccessMonitor:
    def __init__(self, judge: ReadAccess, seconds: float = CHECK_INTERVAL_SECONDS) -> None:
        self._judge = judge
        self._seconds = seconds
        self._audiences: dict[tuple[Subject | None, str], MonitoredReaders] = {}
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell = asyncio.Event()
        # One look after the other, in a thread of its own: a registry that does not answer holds up nothing else.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="nakadi-oversight")

    @contextmanager
    def over(self, driver: MonitoredStream, subject: Subject | None, event_type: EventType) -> Iterator[None]:
        """Tell a driver what it has to know while it runs; without a subject, only what changes. To be entered on its
        loop."""
        key = (subject, event_type.id)
        audience = self._audiences.setdefault(key, MonitoredReaders(subject, event_type))
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
            await _wait_for_request(self._bell, self._seconds)
            audiences = list(self._audiences.values())
            loop = asyncio.get_running_loop()
            verdicts = await loop.run_in_executor(self._threads, self._verdicts, audiences)
            for audience, verdict in zip(audiences, verdicts, strict=True):
                _tell(audience, verdict)

    def _verdicts(self, audiences: Sequence[MonitoredReaders]) -> list[AccessChange]:
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

    def _verdict(self, audience: MonitoredReaders) -> AccessChange:
        if audience.subject is None:
            return self._judge.change(audience.event_type)
        return self._judge.verdict(audience.subject, audience.event_type)


def _tell(audience: MonitoredReaders, verdict: AccessChange) -> None:
    if isinstance(verdict, EventTypeChanged):
        audience.event_type = verdict.event_type
    for driver in tuple(audience.drivers):
        match verdict:
            case AccessBlocked():
                driver.tell(_blocking(driver.session))
            case AccessRefused(error):
                driver.tell(_refusing(driver.session, error))
            case EventTypeChanged(event_type):
                driver.update(event_type)


def _blocking(session: MonitoredSession) -> MonitoredFact:
    return lambda _: session.blocked()


def _refusing(session: MonitoredSession, error: Exception) -> MonitoredFact:
    return lambda _: session.refused(error)


async def _wait_for_request(bell: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await bell.wait()
    bell.clear()
