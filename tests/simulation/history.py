"""The history of a world, and the promises that each step has to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from nakadi.model.event_type import Position
from nakadi.model.subscription import Assignment, CommittedOffset, EventTypePartition, Reset

Place = EventTypePartition


class PromiseBroken(AssertionError):
    """Raised when a promise is broken; the message names the promise and what broke it."""


def check_promise(name: str, holds: bool, how: str) -> None:
    if not holds:
        raise PromiseBroken(f"{name}: {how}")


@dataclass(frozen=True, slots=True)
class Event:
    offset: int
    ours: bool
    key: str | None = None


MOST_SKEW = timedelta(seconds=2)


@dataclass(slots=True, kw_only=True)
class History:
    """The truth, which no process in the world can see: the stored events, and which session received which.

    `able` says whether a session's process could send events for the session now.
    """

    able: Callable[[str], bool]
    # The time of day, and the true time.
    now: Callable[[], datetime]
    steady: Callable[[], float]
    # For each marker of a reset, the true time at which it was stored.
    marked: dict[str, float] = field(default_factory=dict)
    events: dict[Place, list[Event]] = field(default_factory=dict)
    oldest: dict[Place, int] = field(default_factory=dict)
    offsets: dict[Place, CommittedOffset] = field(default_factory=dict)
    assignment: Assignment = field(default_factory=Assignment)
    delivered: dict[Place, set[int]] = field(default_factory=dict)
    # Events that consumers chose not to get: because they committed beyond the sent events, set offsets forward, failed
    # often enough at the events, or came after the events had expired.
    excused: dict[Place, set[int]] = field(default_factory=dict)
    # The parked events of each partition, those of all keys together.
    parked: dict[Place, set[int]] = field(default_factory=dict)
    sent: dict[tuple[str, Place], int] = field(default_factory=dict)
    begun: dict[tuple[str, Place], int] = field(default_factory=dict)
    # The committed offset that each session has last learnt for a partition.
    heard: dict[tuple[str, Place], int] = field(default_factory=dict)
    deleted: bool = False

    def grow(self, places: Iterable[Place]) -> None:
        """Record that these partitions exist; some may be new."""
        for place in places:
            self.events.setdefault(place, [])
            self.oldest.setdefault(place, 0)
            self.delivered.setdefault(place, set())
            self.excused.setdefault(place, set())
            self.parked.setdefault(place, set())

    # Events that sessions send

    def note_heard_offsets(self, session: str, offsets: Mapping[Place, CommittedOffset]) -> None:
        """Note the committed offsets that a session has learnt."""
        for place, offset in offsets.items():
            if offset.owner == session:
                self.heard[session, place] = offset.position.offset

    def check_sent_events(self, session: str, place: Place, offsets: list[int]) -> None:
        owner = self.offsets[place].owner
        check_promise("I1", owner == session, f"{session} sends {place.partition}:{offsets}, which belongs to {owner}")
        key = (session, place)
        check_promise(
            "I4", offsets[0] > self.begun[key], f"{session} sends {offsets[0]}, committed was {self.begun[key]}"
        )
        heard = self.heard.get(key, -1)
        check_promise(
            "once committed", offsets[0] > heard, f"{session} sends {offsets[0]}, and knows of a commit of {heard}"
        )
        last = self.sent.get(key, self.begun[key])
        check_promise("order", offsets == sorted(set(offsets)) and offsets[0] > last, f"{offsets} come behind {last}")
        reached = max(last, self.offsets[place].position.offset)
        left_out = [
            each
            for each in range(reached + 1, offsets[-1])
            if each not in offsets and self._is_due(place, each) and each not in self.excused[place]
        ]
        check_promise(
            "order", not left_out, f"{session} is not sent {left_out} before {offsets[-1]} of {place.partition}"
        )
        self._check_parked_keys(session, place, offsets)
        foreign = [each for each in offsets if not self.events[place][each].ours]
        check_promise("filter", not foreign, f"{session} is sent {foreign}, which are not for it")
        self.sent[key] = offsets[-1]
        self.delivered[place].update(offsets)

    def _check_parked_keys(self, session: str, place: Place, offsets: list[int]) -> None:
        """Check that no event is sent while an earlier event of its key is parked."""
        events = self.events[place]
        waiting = {events[each].key: each for each in sorted(self.parked[place], reverse=True)}
        for each in offsets:
            before = waiting.get(events[each].key, each) if events[each].key is not None else each
            check_promise("parking", before >= each, f"{session} is sent {each}, and {before} of its key is parked")

    def _is_due(self, place: Place, offset: int) -> bool:
        return self.events[place][offset].ours and offset >= self.oldest[place]

    # Writes to the store

    def check_written_assignment(
        self, actor: str, new: Assignment, offsets: Mapping[Place, CommittedOffset], *, handing_over: bool
    ) -> None:
        """Check an assignment that a process has stored, perhaps as a hand-over by the session `actor`."""
        old = self.assignment
        check_promise("deletion", not self.deleted, "something is written of a subscription that is gone")
        self._check_owners(actor, old, new, handing_over=handing_over)
        self._check_new_sessions(old, new)
        for place, offset in offsets.items():
            before = self.offsets.get(place)
            if before is None:
                self._check_beginning(place, offset.position, initialised=old.initialised)
            elif before.position != offset.position:
                check_promise(
                    "I3", not old.sessions and old.reset is not None, f"{place} is set while there are sessions"
                )
                self.excuse_from_delivery(place, before.position, offset.position)
            if offset.owner is not None and (before is None or before.owner != offset.owner):
                self.begun[offset.owner, place] = offset.position.offset
                self.sent.pop((offset.owner, place), None)
        self.assignment, self.offsets = new, dict(offsets)
        if new.reset is not None:
            self.marked.setdefault(new.reset.id, self.steady())

    def _check_beginning(self, place: Place, position: Position, *, initialised: bool) -> None:
        """Check that a partition begins where the subscription begins, or at its first event if it is newer."""
        check_promise(
            "I8", not initialised or position.offset == -1, f"{place} is new, and begins at {position.offset}"
        )
        self.excuse_from_delivery(place, Position(position.timeline, -1), position)

    def _check_owners(self, actor: str, old: Assignment, new: Assignment, *, handing_over: bool) -> None:
        places = [entry.partition for entry in new.entries]
        check_promise("I1", len(places) == len(set(places)), "a partition has two entries")
        for each in {each.id for each in old.sessions} - {each.id for each in new.sessions}:
            check_promise("I7", each == actor or not self.able(each), f"{each} is removed while it could send")
        staying = {each.id: each for each in new.sessions}
        for entry in new.entries:
            before = old.entry(entry.partition)
            check_promise(
                "I1", entry.owner is None or entry.owner in staying, f"{entry} belongs to nobody who takes part"
            )
            asked = staying[entry.owner].requested_partitions if entry.owner else ()
            check_promise(
                "I6", not asked or entry.partition in asked, f"{entry} belongs to somebody who did not ask for it"
            )
            if before is None or before.owner is None or before.owner == entry.owner or before.owner not in staying:
                continue
            check_promise(
                "I2", handing_over and actor == before.owner, f"{entry.partition} is taken from {before.owner}"
            )
            sent = self.sent.get((before.owner, entry.partition), -1)
            committed = self.offsets[entry.partition].position.offset
            check_promise("I5", sent <= committed, f"{before.owner} lets go at {sent}, committed is {committed}")

    def _check_new_sessions(self, old: Assignment, new: Assignment) -> None:
        added = [each for each in new.sessions if old.session(each.id) is None]
        if not added:
            return
        check_promise("I3", not self._is_being_reset(old.reset), "a session begins while offsets are being set")
        claims = [place for each in new.sessions for place in each.requested_partitions]
        check_promise("I6", len(claims) == len(set(claims)), "a partition is claimed twice")
        sharing = [each for each in new.sessions if not each.requested_partitions]
        if any(not each.requested_partitions for each in added):
            room = len(new.entries) - len(claims)
            check_promise("I6", len(sharing) <= room, f"{len(sharing)} sessions share {room} partitions")

    def _is_being_reset(self, reset: Reset | None) -> bool:
        """Whether offsets are being set. A reset whose time is in the future began before the clock was set back, so
        it no longer counts.
        """
        if reset is None or reset.began_at is None or reset.began_at > self.now():
            return False
        lasts = (reset.expires_at - reset.began_at - MOST_SKEW).total_seconds()
        return self.now() + MOST_SKEW < reset.expires_at and self.steady() < self.marked[reset.id] + lasts

    def record_commit(self, place: Place, offset: CommittedOffset) -> None:
        """Check and note a commit that has moved an offset."""
        before = self.offsets[place]
        check_promise(
            "I3", offset.position > before.position, f"{place} goes from {before.position} to {offset.position}"
        )
        lost = [
            each
            for each in range(before.position.offset + 1, min(offset.position.offset + 1, len(self.events[place])))
            if self._is_due(place, each) and each not in self.delivered[place] and each not in self.excused[place]
        ]
        check_promise("at least once", not lost, f"{lost} of {place.partition} are committed and were never delivered")
        self.offsets[place] = offset

    def record_parked(self, place: Place, offsets: Iterable[int]) -> None:
        """Note that these events were parked: consumers have failed at them, or at earlier events of their keys."""
        self.parked[place].update(offsets)
        self.excused[place].update(offsets)

    def excuse_from_delivery(self, place: Place, first: Position, last: Position) -> None:
        """Note that the events after the first position, up to the second, need not be delivered any more."""
        self.excused[place].update(range(first.offset + 1, last.offset + 1))

    def count_left(self) -> dict[Place, int]:
        """For each partition that has any, the number of events that still exist and are not committed."""
        ends = {place: max(self._committed_offset(place) + 1, self.oldest[place]) for place in self.events}
        return {place: len(events) - ends[place] for place, events in self.events.items() if len(events) > ends[place]}

    def _committed_offset(self, place: Place) -> int:
        return self.offsets[place].position.offset if place in self.offsets else -1
