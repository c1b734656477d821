"""Members: how sessions join a subscription, let go of partitions, and leave.

Each change is read, decided by a pure function, and written if nobody was faster, else begun anew. Every one of them
can be carried out again after it was carried out: so whoever got no answer simply asks again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from nakadi.chores import attempted
from nakadi.consuming.actions import Farewell, Note
from nakadi.model.coordination import Assignment, Replay, Session, Verdict
from nakadi.model.cursor import Position
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import AssignmentChanged, Clock, Coordination
from nakadi.subscriptions import assignments

# With a hundred partitions there are a hundred sessions at most, who may all come at once.
ATTEMPTS = 200
PATIENT_ATTEMPTS = 3
LONGEST_PAUSE = 0.05

Decide = Callable[[Assignment], Assignment]


@dataclass(frozen=True, slots=True)
class Members:
    """Of one subscription. `fulfil_wish` does what a reset wishes that stands, if no session is left."""

    coordination: Coordination
    subscription: str
    clock: Clock
    fulfil_wish: Callable[[str], object]
    pause: Callable[[float], None] = time.sleep

    def assignment(self) -> Assignment:
        return self.coordination.assignment(self.subscription)

    def check(self, session: Session) -> None:
        """Raise `Conflict` if there is no room."""
        assignments.joined(self.assignment(), session, self.subscription, self.clock.now())

    def join(self, session: Session) -> Assignment:
        """Take part. Raises `Conflict` if there is no room."""

        def joined(assignment: Assignment) -> Assignment:
            if assignment.session(session.id) is not None:
                return assignment
            return assignments.joined(assignment, session, self.subscription, self.clock.now())

        self._fulfil_wish(self.assignment())
        self._changed(joined)
        return self.settle()

    def settle(self) -> Assignment:
        """Have everybody get a fair share, in as many steps as it takes."""
        while True:
            before = self.assignment()
            after = self._changed(assignments.rebalanced)
            if after.revision == before.revision:
                return after

    def remove(self, sessions: Collection[str]) -> int:
        """See to it that these take part no more; how many of them still did."""
        there: set[str] = set()

        def without(assignment: Assignment) -> Assignment:
            nonlocal there
            there = {each.id for each in assignment.sessions if each.id in sessions}
            return assignments.left(assignment, there) if there else assignment

        self._changed(without)
        self._fulfil_wish(self.settle())
        return len(there)

    def leave(self, session: str, farewell: Farewell) -> None:
        """Take part no more; what could not be committed is counted."""
        self.commit(session, farewell.positions)

        def without(assignment: Assignment) -> Assignment:
            if assignment.session(session) is None:
                return assignment
            failed = [
                replace(entry, fails=entry.fails + 1)
                for entry in assignment.entries
                if entry.place in farewell.failed and entry.owner == session
            ]
            return assignments.left(assignments.with_entries(assignment, failed), {session})

        self._changed(without)
        self._fulfil_wish(self.settle())

    def hand_over(self, session: str, places: Collection[EventTypePartition]) -> Assignment:
        """Let go of those that somebody waits for."""
        return self._changed(lambda assignment: assignments.handed_over(assignment, session, places))

    def note(self, session: str, note: Note) -> None:
        """Write something down about a partition, if it is still the session's."""

        def noted(assignment: Assignment) -> Assignment:
            entry = assignment.entry(note.place)
            if entry is None or entry.owner != session:
                return assignment
            changed = replace(entry, fails=note.fails, search_end=note.search_end)
            return assignments.with_entries(assignment, [changed])

        self._changed(noted)

    def end_replay(self, session: str, place: EventTypePartition, replay: Replay) -> None:
        """Write down that nothing is left to be sent once more, if the partition is still the session's."""

        def ended(assignment: Assignment) -> Assignment:
            entry = assignment.entry(place)
            if entry is None or entry.owner != session or entry.replay != replay:
                return assignment
            return assignments.with_entries(assignment, [replace(entry, replay=None)])

        self._changed(ended)

    def commit(self, session: str, positions: Mapping[EventTypePartition, Position]) -> Collection[EventTypePartition]:
        """Commit on behalf of a session; the partitions that are not its own any more."""
        if not positions:
            return ()
        verdicts = self.coordination.commit(self.subscription, session, positions, self.clock.now())
        return [place for place, verdict in verdicts.items() if verdict is Verdict.NOT_OWNED]

    def _fulfil_wish(self, assignment: Assignment) -> None:
        """Whatever comes of it, the session has left or may ask to join: others try again, and streams may begin when
        the time of the reset is over."""
        if assignment.reset is not None and not assignment.sessions:
            attempted("reset", self.subscription, partial(self.fulfil_wish, self.subscription))

    def _changed(self, decide: Decide) -> Assignment:
        for attempt in range(ATTEMPTS):
            old = self.assignment()
            new = decide(old)
            if new == old:
                return old
            try:
                return self.coordination.write(self.subscription, old, new, self.clock.now())
            except AssignmentChanged:
                if attempt >= PATIENT_ATTEMPTS:
                    self.pause(random.uniform(0, LONGEST_PAUSE))  # noqa: S311  # so that not all come back together
        raise Unavailable(f"The assignment of {self.subscription} changes all the time.")
