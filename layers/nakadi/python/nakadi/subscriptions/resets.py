"""Setting offsets: streams are asked to end, and nobody may begin until the offsets are set.

The marker in the assignment is what asks them. It has an end of its own, so that a server that dies in the middle of
this keeps nobody waiting for long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from uuid import uuid4

from nakadi.model.coordination import Assignment, Entry, Reset
from nakadi.model.cursor import Position
from nakadi.model.outcomes import Conflict, TryLater
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import MOST_PLACES, AssignmentChanged, Clock, Coordination
from nakadi.subscriptions import assignments
from nakadi.subscriptions.initialisation import ATTEMPTS, BUSY
from nakadi.subscriptions.liveness import LeaseWatch, dead

Positions = Mapping[EventTypePartition, Position]

IN_PROGRESS = "Cursors reset is already in progress for provided subscription"
TIMEOUT = "Timeout resetting cursors"

# Beyond the longest time that a stream may wait for commits.
GRACE_SECONDS = 1.0

# News of sessions that end come at once; those that have died are looked for now and then.
LOOK_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Resets:
    coordination: Coordination
    leases: LeaseWatch
    clock: Clock
    max_commit_timeout: float

    def reset(self, subscription_id: str, positions: Positions) -> None:
        """Put these offsets where they are wanted. Waits for the streams of the subscription to end."""
        with self.while_nobody_streams(subscription_id) as marker:
            self._set(subscription_id, marker, positions)

    @contextmanager
    def while_nobody_streams(self, subscription_id: str) -> Iterator[str]:
        """Wait for the streams of a subscription to end, and let none begin. The marker is what keeps them away."""
        with ExitStack() as markers:
            marker = self._marked(subscription_id, markers)
            self._wait([subscription_id])
            yield marker

    def put_back(
        self, subscription_id: str, marker: str, replays: Mapping[EventTypePartition, tuple[Entry, Position]]
    ) -> None:
        """Put offsets where they are wanted, with entries that tell what is to be sent once more from there on."""
        rest = iter(sorted(replays))
        while part := list(islice(rest, MOST_PLACES)):
            entries = [replace(replays[place][0], owner=None, next=None, fails=0, search_end=None) for place in part]
            positions = {place: replays[place][1] for place in part}
            self._write_part(subscription_id, marker, entries, positions)

    def close_streams(self, subscription_ids: Sequence[str]) -> None:
        """Have the streams of several subscriptions end as if offsets were set. Where they are being set, streams end
        anyway."""
        with ExitStack() as markers:
            for each in subscription_ids:
                with suppress(Conflict):
                    self._marked(each, markers)
            self._wait(subscription_ids)

    def _marked(self, subscription_id: str, markers: ExitStack) -> str:
        """Put up a marker, to be taken down when the stack is left."""
        now = self.clock.now()
        marker = Reset(str(uuid4()), now + timedelta(seconds=self._patience() + GRACE_SECONDS), now)
        self._change(subscription_id, lambda assignment: marked(assignment, marker, now))
        markers.callback(self._change, subscription_id, lambda assignment: unmarked(assignment, marker.id))
        return marker.id

    def _wait(self, subscription_ids: Sequence[str]) -> None:
        """Return when none of them has a session any more."""
        news = threading.Event()
        end = self.clock.monotonic() + self._patience()
        with ExitStack() as watches:
            for each in subscription_ids:
                watches.callback(self.coordination.watch(each, lambda _: news.set()))
            while any(self._has_sessions(each) for each in subscription_ids):
                if self.clock.monotonic() >= end:
                    raise TryLater(TIMEOUT)
                news.wait(LOOK_AGAIN_SECONDS)
                news.clear()

    def _has_sessions(self, subscription_id: str) -> bool:
        """Whether anybody is alive in there. The dead are taken out on the way."""
        found = self.coordination.assignment(subscription_id)
        gone = dead(found.sessions, self.leases.living()) if found.sessions else frozenset()
        if gone:
            found = self._change(subscription_id, lambda assignment: assignments.left(assignment, gone))
        return bool(found.sessions)

    def _set(self, subscription_id: str, marker: str, positions: Positions) -> None:
        """As many at a time as fit a write; while the marker stands nobody can get in between."""
        rest = iter(sorted(positions.items()))
        while part := dict(islice(rest, MOST_PLACES)):
            self._write_part(subscription_id, marker, None, part)

    def _write_part(self, subscription_id: str, marker: str, entries: Sequence[Entry] | None, part: Positions) -> None:
        old = self.coordination.assignment(subscription_id)
        if old.reset is None or old.reset.id != marker or old.sessions:
            raise TryLater(TIMEOUT)
        new = cleared(old, part.keys()) if entries is None else assignments.with_entries(old, entries)
        try:
            self.coordination.write(subscription_id, old, new, self.clock.now(), part)
        except AssignmentChanged as error:
            raise TryLater(TIMEOUT) from error

    def _change(self, subscription_id: str, step: Callable[[Assignment], Assignment]) -> Assignment:
        for _ in range(ATTEMPTS):
            old = self.coordination.assignment(subscription_id)
            new = step(old)
            if new == old:
                return old
            try:
                return self.coordination.write(subscription_id, old, new, self.clock.now())
            except AssignmentChanged:
                continue
        raise TryLater(BUSY)

    def _patience(self) -> float:
        return self.max_commit_timeout + GRACE_SECONDS


def marked(assignment: Assignment, marker: Reset, now: datetime) -> Assignment:
    """With the marker up; raises `Conflict` while somebody else's stands."""
    if assignments.being_reset(assignment, now):
        raise Conflict(IN_PROGRESS)
    return replace(assignment, reset=marker)


def unmarked(assignment: Assignment, marker_id: str) -> Assignment:
    """Without this marker; somebody else's stays."""
    if assignment.reset is None or assignment.reset.id != marker_id:
        return assignment
    return replace(assignment, reset=None)


def cleared(assignment: Assignment, places: Collection[EventTypePartition]) -> Assignment:
    """With nobody reading these partitions, and nothing known of events in them that could not be processed."""
    return assignments.with_entries(
        assignment,
        [
            replace(entry, owner=None, next=None, fails=0, search_end=None, replay=None)
            for entry in assignment.entries
            if entry.place in places
        ],
    )
