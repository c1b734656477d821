"""Watching subscriptions: assignment and offsets are read once for all streams of this process that share them.

A subscription is read when the store reports a change, and every minute in case a report was lost. A listener gets only
what was read after it began to follow, so that no session sees a state from before it joined. After commits only the
offsets are read; but not for longer than a minute, or commits without a pause would hide a change whose report was
lost.
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
    """Belongs to one event loop; only the store is read in threads."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._watched: dict[str, _WatchedSubscription] = {}

    def follow(self, members: SubscriptionSessions, listener: StateListener) -> Callable[[], None]:
        """Call `listener` with the state now and after each change; the returned function ends that."""
        watched = self._watched.get(members.subscription)
        if watched is None:
            watched = self._watched[members.subscription] = _WatchedSubscription(members, self._threads)
        watched.listeners.append(listener)
        watched.changed(Changed.ASSIGNMENT)
        return lambda: self._unfollow(watched, listener)

    def assignments(self) -> Mapping[SubscriptionSessions, Assignment]:
        """Every subscription that is followed, as it was last read."""
        read = [(each.members, each.state_reader.shared) for each in tuple(self._watched.values())]
        return {members: shared.assignment for members, shared in read if shared is not None}

    def _unfollow(self, watched: _WatchedSubscription, listener: StateListener) -> None:
        watched.listeners.remove(listener)
        if not watched.listeners:
            del self._watched[watched.members.subscription]
            watched.close()


class _WatchedSubscription:
    """The streams of one subscription, and the task that reads its state for them.

    `changed` is called by threads of the store, and only notes what has changed and wakes the task. The task takes the
    notes before it reads: what changes during the read is noted again, and read again.
    """

    def __init__(self, members: SubscriptionSessions, threads: Executor) -> None:
        self.members = members
        self.listeners: list[StateListener] = []
        self.state_reader = SharedStateReader(members)
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._changes: set[Changed] = set()
        self._woken = asyncio.Event()
        self._stop = members.coordination.watch(members.subscription, self.changed)
        self._task = self._loop.create_task(self._keep_reading())

    def changed(self, what: Changed) -> None:
        """May be called from any thread. However much changes, the loop is woken once until it reads."""
        with self._lock:
            already_woken = bool(self._changes)
            self._changes.add(what)
        if not already_woken:
            with suppress(RuntimeError):  # the loop was closed: no stream is left on it
                self._loop.call_soon_threadsafe(self._woken.set)

    def close(self) -> None:
        self._stop()
        self._task.cancel()

    async def _keep_reading(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FULL_READ_SECONDS):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._read()
                pause = SHORTEST_PAUSE
            except Exception:  # whatever it is, streams without the state would neither send nor end
                log.warning(
                    "Reading the assignment and the offsets of %s failed, tried again in %s s",
                    self.members.subscription,
                    pause,
                    exc_info=True,
                )
                self._woken.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _read(self) -> None:
        with self._lock:
            changes, self._changes = self._changes, set()
        listeners = tuple(self.listeners)
        try:
            shared = await self._loop.run_in_executor(self._threads, self.state_reader.read, changes)
        except BaseException:
            with self._lock:
                self._changes |= changes
            raise
        for listener in listeners:
            if listener in self.listeners:
                listener(shared)


class SharedStateReader:
    """Reads the state of a subscription, and keeps what it read last. To be called by one thread at a time."""

    def __init__(self, members: SubscriptionSessions) -> None:
        self.shared: SharedState | None = None
        self._members = members
        self._whole_at = -inf

    def read(self, changes: Collection[Changed]) -> SharedState:
        """Read what may have changed; without any reported change, everything."""
        now = self._members.clock.monotonic()
        recent = now < self._whole_at + FULL_READ_SECONDS
        known = self.shared if set(changes) == {Changed.OFFSETS} and recent else None
        self.shared = shared = read_shared_state(self._members, known)
        if known is None:
            self._whole_at = now
        return shared


def read_shared_state(members: SubscriptionSessions, known: SharedState | None) -> SharedState:
    """Read the state that the streams of a subscription share; the assignment of the `known` state is taken as it is.

    The assignment is read before the offsets: an offset that is newer than the assignment is recognised by its owner.
    If partitions are not shared evenly, because the process that changed something died before it had rebalanced them,
    this does it.
    """
    assignment = known.assignment if known is not None else members.assignment()
    resetting = assignments.being_reset(assignment, members.clock.now())
    if known is None and assignments.rebalanced(assignment) != assignment:
        assignment = members.rebalance()
    return SharedState(assignment, members.coordination.offsets(members.subscription), resetting)
