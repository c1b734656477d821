"""News: what changes in subscriptions, read once for all streams of this process that share one.

A subscription is read when somebody says that it has changed, and now and then in case nobody did. Whoever is told was
following before the read began, so that nobody hears of a time before they joined. After commits only the offsets are
read; but not for longer than a minute on end, or commits without a pause would hide a change that was not told.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from math import inf

from nakadi.model.coordination import Assignment, Changed
from nakadi.subscriptions.api import assignments
from nakadi.subscriptions.stream.actions import SharedState
from nakadi.subscriptions.stream.members import SubscriptionSessions

log = logging.getLogger(__name__)

StateListener = Callable[[SharedState], None]

FULL_READ_SECONDS = 60.0

# Reading is tried again after these pauses while the store does not answer.
SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class SubscriptionWatch:
    """Belongs to one event loop; only the store is asked in threads."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._circles: dict[str, _WatchedSubscription] = {}

    def follow(self, members: SubscriptionSessions, listener: StateListener) -> Callable[[], None]:
        """Tell what is the case, and whenever something changes; the answer ends it."""
        circle = self._circles.get(members.subscription)
        if circle is None:
            circle = self._circles[members.subscription] = _WatchedSubscription(members, self._threads)
        circle.listeners.append(listener)
        circle.changed(Changed.ASSIGNMENT)
        return lambda: self._unfollow(circle, listener)

    def assignments(self) -> Mapping[SubscriptionSessions, Assignment]:
        """Every subscription that is followed, as it was last read."""
        read = [(each.members, each.last_look.shared) for each in tuple(self._circles.values())]
        return {members: shared.assignment for members, shared in read if shared is not None}

    def _unfollow(self, circle: _WatchedSubscription, listener: StateListener) -> None:
        circle.listeners.remove(listener)
        if not circle.listeners:
            del self._circles[circle.members.subscription]
            circle.close()


class _WatchedSubscription:
    """The streams of one subscription."""

    def __init__(self, members: SubscriptionSessions, threads: Executor) -> None:
        self.members = members
        self.listeners: list[StateListener] = []
        self.last_look = SharedStateReader(members)
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._news: set[Changed] = set()
        self._bell = asyncio.Event()
        self._stop = members.coordination.watch(members.subscription, self.changed)
        self._task = self._loop.create_task(self._keep_looking())

    def changed(self, what: Changed) -> None:
        """From any thread. However much happens, the loop is told once until it looks."""
        with self._lock:
            told = bool(self._news)
            self._news.add(what)
        if not told:
            with suppress(RuntimeError):  # the loop was closed: there is nobody to tell
                self._loop.call_soon_threadsafe(self._bell.set)

    def close(self) -> None:
        self._stop()
        self._task.cancel()

    async def _keep_looking(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FULL_READ_SECONDS):
                    await self._bell.wait()
            self._bell.clear()
            try:
                await self._look()
                pause = SHORTEST_PAUSE
            except Exception:  # whatever it was: streams that hear of nothing any more would stay silent
                log.warning(
                    "Reading the assignment and the offsets of %s failed, tried again in %s s",
                    self.members.subscription,
                    pause,
                    exc_info=True,
                )
                self._bell.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _look(self) -> None:
        with self._lock:
            news, self._news = self._news, set()
        listeners = tuple(self.listeners)
        try:
            shared = await self._loop.run_in_executor(self._threads, self.last_look.again, news)
        except BaseException:
            with self._lock:
                self._news |= news
            raise
        for listener in listeners:
            if listener in self.listeners:
                listener(shared)


class SharedStateReader:
    """What was last read of a subscription. One look at a time."""

    def __init__(self, members: SubscriptionSessions) -> None:
        self.shared: SharedState | None = None
        self._members = members
        self._whole_at = -inf

    def again(self, news: Collection[Changed]) -> SharedState:
        """Read what may have changed according to the news; without any, everything."""
        now = self._members.clock.monotonic()
        recent = now < self._whole_at + FULL_READ_SECONDS
        known = self.shared if set(news) == {Changed.OFFSETS} and recent else None
        self.shared = shared = read_shared_state(self._members, known)
        if known is None:
            self._whole_at = now
        return shared


def read_shared_state(members: SubscriptionSessions, known: SharedState | None) -> SharedState:
    """What the streams of a subscription share. Of what is `known` the assignment is taken as it is.

    If partitions are not shared as they should be, since whoever changed something has not come to the end of it, then
    this does.
    """
    assignment = known.assignment if known is not None else members.assignment()
    resetting = assignments.being_reset(assignment, members.clock.now())
    if known is None and assignments.rebalanced(assignment) != assignment:
        assignment = members.settle()
    return SharedState(assignment, members.coordination.offsets(members.subscription), resetting)
