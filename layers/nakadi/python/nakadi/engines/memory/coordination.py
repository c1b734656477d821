"""Coordination in memory: dictionaries under a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.engines.common.assignments import (
    Positions,
    moved,
    moves,
    parking_place,
    parking_verdict,
    successor,
    verdict,
)
from nakadi.engines.common.listeners import SubscriptionListeners
from nakadi.model.coordination import (
    NOTHING_YET,
    Assignment,
    Changed,
    Offset,
    Parked,
    ParkedEvent,
    Verdict,
)
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EventTypePartition
from nakadi.model.timeline import Position
from nakadi.ports.coordination import AssignmentChanged


class _Kept(Struct):
    assignment: Assignment = NOTHING_YET
    offsets: dict[EventTypePartition, Offset] = field(default_factory=dict)
    lot: dict[tuple[EventTypePartition, Position], ParkedEvent] = field(default_factory=dict)


class MemoryCoordination:
    """Nothing of it survives the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._leases: dict[str, datetime] = {}
        self._listeners = SubscriptionListeners()
        self._closed = False

    def assignment(self, subscription: str) -> Assignment:
        with self._while_open():
            return self._kept_of(subscription).assignment

    def write(
        self, subscription: str, old: Assignment, new: Assignment, now: datetime, positions: Positions | None = None
    ) -> Assignment:
        positions = positions or {}
        touched = moves(old, new, positions)
        with self._while_open():
            kept = self._kept_of(subscription)
            if kept.assignment.revision != old.revision:
                raise AssignmentChanged(subscription)
            kept.assignment = successor(old, new)
            for place, owner in touched.items():
                kept.offsets[place] = moved(kept.offsets.get(place), owner, positions.get(place), now)
            self._kept[subscription] = kept
            stored = kept.assignment
        self._listeners.tell(subscription, Changed.ASSIGNMENT)
        return stored

    def offsets(self, subscription: str) -> Mapping[EventTypePartition, Offset]:
        with self._while_open():
            return dict(self._kept_of(subscription).offsets)

    def commit(
        self, subscription: str, session: str, positions: Positions, now: datetime
    ) -> Mapping[EventTypePartition, Verdict]:
        with self._while_open():
            offsets = self._kept_of(subscription).offsets
            verdicts = {place: verdict(offsets.get(place), session, at) for place, at in positions.items()}
            for place, found in verdicts.items():
                if found is Verdict.COMMITTED:
                    offsets[place] = replace(offsets[place], position=positions[place], since=now)
        if Verdict.COMMITTED in verdicts.values():
            self._listeners.tell(subscription, Changed.OFFSETS)
        return verdicts

    def park(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        upto: Position | None = None,
    ) -> Verdict:
        place = parking_place(events)
        with self._while_open():
            kept = self._kept_of(subscription)
            found = parking_verdict(kept.offsets.get(place), session, upto)
            if found is Verdict.COMMITTED:
                kept.lot.update({(place, each.parked.position): each for each in events})
                if upto is not None:
                    kept.offsets[place] = replace(kept.offsets[place], position=upto, since=now)
        if found is Verdict.COMMITTED:
            self._listeners.tell(subscription, Changed.OFFSETS)
        return found

    def parked(
        self,
        subscription: str,
        *,
        place: EventTypePartition | None = None,
        after: tuple[EventTypePartition, Position] | None = None,
        limit: int = 1000,
    ) -> Sequence[Parked]:
        with self._while_open():
            lot = self._kept_of(subscription).lot
            wanted = sorted(
                each for each in lot if (place is None or each[0] == place) and (after is None or each > after)
            )
            return [lot[each].parked for each in wanted[:limit]]

    def parked_value(self, subscription: str, place: EventTypePartition, position: Position) -> bytes | None:
        with self._while_open():
            found = self._kept_of(subscription).lot.get((place, position))
        return None if found is None else found.value

    def unpark(self, subscription: str, place: EventTypePartition, positions: Collection[Position]) -> None:
        with self._while_open():
            lot = self._kept_of(subscription).lot
            for position in positions:
                lot.pop((place, position), None)

    def forget(self, subscription: str) -> None:
        with self._while_open():
            self._kept.pop(subscription, None)
        self._listeners.tell(subscription, Changed.ASSIGNMENT)

    def renew(self, holder: str, until: datetime) -> None:
        with self._while_open():
            self._leases[holder] = until

    def release(self, holder: str) -> None:
        with self._while_open():
            self._leases.pop(holder, None)

    def leases(self) -> Mapping[str, datetime]:
        with self._while_open():
            return dict(self._leases)

    def watch(self, subscription: str, changed: Callable[[Changed], None]) -> Callable[[], None]:
        with self._while_open():
            return self._listeners.add(subscription, changed)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _kept_of(self, subscription: str) -> _Kept:
        return self._kept.get(subscription) or _Kept()

    @contextmanager
    def _while_open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise Unavailable("The coordination is closed.")
            yield
