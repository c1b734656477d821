"""Who may read an event type, and which of its events. This is checked when a stream begins and while it lasts.

Only the registry shows blocks and changes made by other processes, so it is read every second while there are streams.
Changes by this process are checked at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

from msgspec import Struct, field

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.event_types.repository import EventTypes, not_found_error
from nakadi.model.authorization import Attribute, Authorization, Feature, Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import EventType
from nakadi.model.events import Record
from nakadi.model.outcomes import NotFound, NotPermitted, TryLater, Unavailable
from nakadi.streaming.driver import StreamDriver

log = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS = 1.0

# Clients recognize a missing event type by these words for streams; other operations have other words.
TOPIC_NOT_FOUND_MESSAGE = "topic not found"


class AccessBlocked(Struct, frozen=True):
    """Raised when a stream has to end without another line."""


# What a check of access finds. After an exception the stream has to end, and its client may be told why; with an event
# type, the stream continues with that revision of the event type.
AccessChange = AccessBlocked | Exception | EventType | None


class ReadAccess:
    """Checks who may read. All its methods but `may_read` read the registry, so only `may_read` may be called on an
    event loop.
    """

    def __init__(self, event_types: EventTypes, permissions: Permissions, features: Features) -> None:
        self._event_types = event_types
        self._permissions = permissions
        self._features = features
        self._refreshing = threading.Lock()
        self._owners_matter = True
        # Whether events whose metadata names another event type are left out.
        self.skips_misplaced_events = False

    def authorize(self, name: str, subject: Subject) -> EventType:
        """The event type that a subject wants to read, if the subject may read it. Raises outcomes."""
        self.refresh_features()
        self._permissions.require_consumer(subject, [name])
        event_type = self._event_types.find(name)
        if event_type is None:
            raise NotFound(TOPIC_NOT_FOUND_MESSAGE)
        self._permissions.require_all_operations((Operation.VIEW, Operation.READ), event_type.resource, subject)
        return event_type

    def access_change_for(self, subject: Subject, known: EventType) -> AccessChange:
        """How a subject's access to an event type has changed since the revision `known`; None if it has not
        changed.
        """
        try:
            self._permissions.require_consumer(subject, [known.name])
        except NotPermitted:
            return AccessBlocked()
        current = self._current_event_type(known)
        if current is None:
            return TryLater(str(not_found_error(known.name)))
        if current.revision <= known.revision:
            return None
        try:
            self._permissions.require(Operation.READ, current.resource, subject)
        except NotPermitted as error:
            return error
        return current

    def event_type_change(self, known: EventType) -> AccessChange:
        """The newer revision of an event type, for a reader whose access is not checked; None if there is none."""
        current = self._current_event_type(known)
        return current if current is not None and current.revision > known.revision else None

    def refresh_features(self) -> None:
        """Read the features on which `may_read` depends, because reading them for each event would take too long."""
        # One thread reads at a time, because otherwise an older answer could overwrite a newer one. `may_read` needs no
        # lock: it reads one attribute, and may see the old value for a moment longer, as if it had been called a moment
        # earlier.
        with self._refreshing:
            self._owners_matter = self._features.is_on(Feature.EVENT_OWNER_SELECTOR_AUTHZ)
            self.skips_misplaced_events = self._features.is_on(Feature.SKIP_MISPLACED_EVENTS)

    def may_read(self, record: Record, subject: Subject) -> bool:
        """Whether a subject may see an event. No reader of an event type sees tombstones, or events that are directed
        to a subscription.
        """
        if record.value is None or record.directed_to is not None:
            return False
        return record.owner is None or not self._owners_matter or self._may_read_owned_by(record.owner, subject)

    def _may_read_owned_by(self, owner: Attribute, subject: Subject) -> bool:
        owned = Resource(ResourceType.EVENT, "", Authorization(admins=(), readers=(owner,)))
        return self._permissions.allows(Operation.READ, owned, subject)

    def _current_event_type(self, known: EventType) -> EventType | None:
        """The current revision of the same event type; None if it was deleted, even if another event type now has its
        name.
        """
        try:
            current: EventType | None = self._event_types.cached(known.name)
        except NotFound:
            return None
        if current is not None and current.id != known.id:
            # The registry is read, because the cached revision may be older than the known one.
            current = self._event_types.find(known.name)
        return current if current is not None and current.id == known.id else None


class MonitoredReaders(Struct, eq=False):
    """The streams in which one subject reads one event type, and the event type as it was last known. Streams without a
    subject need only changes of the event type.
    """

    subject: Subject | None
    event_type: EventType
    drivers: set[StreamDriver] = field(default_factory=set)


class StreamAccessMonitor:
    """Checks for all streams of a process whether their clients may still read, once for each subject and event type.

    Belongs to one event loop; only the registry is read in a thread. So the sets of readers need no lock: they are
    copied before the thread runs, and readers that leave meanwhile are no longer in any set when it returns.
    """

    def __init__(self, access: ReadAccess, seconds: float = CHECK_INTERVAL_SECONDS) -> None:
        self._access = access
        self._seconds = seconds
        self._readers: dict[tuple[Subject | None, str], MonitoredReaders] = {}
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requested = asyncio.Event()
        # One check runs at a time, in a separate thread, so that a registry that does not answer delays nothing else.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nakadi-access")

    @contextmanager
    def monitor(self, driver: StreamDriver, subject: Subject | None, event_type: EventType) -> Iterator[None]:
        """Inform a driver of changes while the block runs, as `follow` does."""
        stop = self.follow(driver, subject, event_type)
        try:
            yield
        finally:
            stop()

    def follow(self, driver: StreamDriver, subject: Subject | None, event_type: EventType) -> Callable[[], None]:
        """Inform a driver of changes; without a subject, only of changes of the event type. The returned function ends
        this. Call both on the driver's loop.
        """
        key = (subject, event_type.id)
        readers = self._readers.setdefault(key, MonitoredReaders(subject, event_type))
        readers.drivers.add(driver)
        if event_type.revision < readers.event_type.revision:
            readers.event_type = event_type  # so that this stream gets changes that others have
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._requested = asyncio.Event()
            self._task = self._loop.create_task(self._check_regularly())
        return partial(self._stop_following, key, driver)

    def _stop_following(self, key: tuple[Subject | None, str], driver: StreamDriver) -> None:
        readers = self._readers.get(key)
        if readers is not None:
            readers.drivers.discard(driver)
            if not readers.drivers:
                del self._readers[key]
        if not self._readers and self._task is not None:
            self._task.cancel()
            self._task = self._loop = None

    def close(self) -> None:
        """End the checks. Called when no stream is open any longer. A check that waits for the registry is
        abandoned.
        """
        self._thread.shutdown(wait=False, cancel_futures=True)

    def check_soon(self) -> None:
        """Check now rather than at the next interval. May be called from any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed: no stream is left on it
                loop.call_soon_threadsafe(self._requested.set)

    async def _check_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._requested.wait()
            # Cleared before the check begins: another check covers changes during this one.
            self._requested.clear()
            checked = list(self._readers.values())
            changes = await loop.run_in_executor(self._thread, self._access_changes, checked)
            for readers, change in zip(checked, changes, strict=True):
                _inform_drivers(readers, change)

    def _access_changes(self, checked: Sequence[MonitoredReaders]) -> list[AccessChange]:
        try:
            self._access.refresh_features()
            return [self._access_change_of(each) for each in checked]
        except Unavailable as error:
            log.warning("Checking the access of open streams failed, they continue unchecked: %s", error)
        except Exception:  # after any error, later checks must take place
            log.exception("Checking the access of open streams failed, they continue unchecked")
        return [None for _ in checked]

    def _access_change_of(self, readers: MonitoredReaders) -> AccessChange:
        if readers.subject is None:
            return self._access.event_type_change(readers.event_type)
        return self._access.access_change_for(readers.subject, readers.event_type)


def _inform_drivers(readers: MonitoredReaders, change: AccessChange) -> None:
    if isinstance(change, EventType):
        readers.event_type = change
    for driver in tuple(readers.drivers):
        match change:
            case AccessBlocked():
                driver.add_fact(partial(_block_session, driver))
            case Exception():
                driver.add_fact(partial(_refuse_session, driver, change))
            case EventType():
                driver.update_event_type(change)


def _block_session(driver: StreamDriver, _now: float) -> Sequence[object]:
    return driver.session.handle_block()


def _refuse_session(driver: StreamDriver, error: Exception, _now: float) -> Sequence[object]:
    return driver.session.handle_refusal(error)
