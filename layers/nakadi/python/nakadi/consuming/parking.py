"""Parking: an event that consumers fail at goes to the subscription's lot, and later ones of its key follow it there.

An event that has to follow is put away before anything behind it is sent, for a commit of what is behind it moves the
cursor past it. So whatever the cursor has passed was consumed or is in the lot, and of one key nothing is sent as long
as something of it is parked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nakadi.consuming.actions import Drop, Park
from nakadi.consuming.reading import Reading
from nakadi.model.coordination import Parked, ParkedEvent, Replay, Verdict
from nakadi.model.cursor import Position
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import MOST_PARKED, MOST_PARKED_BYTES, Clock
from nakadi.streaming.chunks import Run
from nakadi.subscriptions.lot import Lot, key_of


def parks(reading: Reading, following: Iterable[Run]) -> Iterator[Park]:
    """The calls that put events away, each as large as one step may be.

    The cursor moves with them unless something before them is still to be committed.
    """
    for events in _steps(following):
        end = events[-1].end
        reading.waits_for(events)
        yield Park(
            place=reading.place,
            events=tuple(events),
            upto=end if reading.reached() >= end else None,
            replay=None if reading.replay is None else reading.replay.id,
            number=reading.opening,
        )


@dataclass(frozen=True, slots=True)
class Attendant:
    """Looks after the lot on behalf of a session. Without `follows` no event has to follow another one there."""

    lot: Lot
    clock: Clock
    follows: bool

    def keys(self, place: EventTypePartition, replay: Replay | None) -> frozenset[str]:
        """The keys that wait in the lot."""
        if not self.follows:
            return frozenset()
        return frozenset(each.key for each in self.lot.events(place) if replay is None or not replay.has(each))

    def again(self, place: EventTypePartition, replay: Replay, behind: Position) -> tuple[Parked, ...]:
        """What is to be sent once more, and was not consumed yet."""
        return tuple(each for each in self.lot.events(place, after=(place, behind)) if replay.has(each))

    def value(self, parked: Parked) -> bytes | None:
        return self.lot.coordination.parked_value(self.lot.subscription, parked.place, parked.position)

    def park(self, session: str, call: Park) -> Verdict:
        return self._park(session, call.place, call.events, 0, call.upto, call.replay)

    def park_failed(self, session: str, drop: Drop) -> Verdict:
        """Park an event that consumers failed at, and move the cursor behind it, in one step."""
        return self._park(session, drop.place, [drop.event], drop.fails, drop.event.end, drop.replay)

    def _park(
        self,
        session: str,
        place: EventTypePartition,
        events: Sequence[Run],
        fails: int,
        upto: Position | None,
        replay: str | None,
    ) -> Verdict:
        now = self.clock.now()
        parked = [
            ParkedEvent(
                Parked(
                    place=place,
                    position=each.end,
                    key=key_of(each.chunk.records[each.first].key, each.end),
                    fails=fails,
                    stored_at=each.stored_at(0),
                    parked_at=now,
                    replay=replay,
                    owner=each.chunk.records[each.first].owner,
                ),
                each.values[0],
            )
            for each in events
        ]
        return self.lot.coordination.park(self.lot.subscription, session, parked, now, upto)


def _steps(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """The events one by one, as many at a time as may be parked in one step."""
    step: list[Run] = []
    size = 0
    for run in runs:
        for index in range(run.first, run.last):
            event = Run(run.chunk, index, index + 1)
            if step and (len(step) == MOST_PARKED or size + event.size > MOST_PARKED_BYTES):
                yield step
                step, size = [], 0
            step.append(event)
            size += event.size
    if step:
        yield step
