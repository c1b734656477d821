"""Parked events of subscriptions in a SQLite file: those that consumers could not process."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence

from nakadi.model.authorization import Attribute
from nakadi.model.coordination import Parked, ParkedEvent
from nakadi.model.events import microseconds, moment_of
from nakadi.model.subscription import EventTypePartition
from nakadi.model.timeline import Position

Behind = tuple[EventTypePartition, Position]

PUT = """
    INSERT OR REPLACE INTO parked (subscription, event_type, partition, timeline, position, key, fails, stored_at,
        parked_at, replay, owner_type, owner_value, value)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

HEADS = """
    SELECT event_type, partition, timeline, position, key, fails, stored_at, parked_at, replay, owner_type, owner_value
    FROM parked WHERE subscription = ? AND (event_type, partition, timeline, position) > (?, ?, ?, ?)
"""
OF_PLACE = " AND event_type = ? AND partition = ?"
IN_ORDER = " ORDER BY event_type, partition, timeline, position LIMIT ?"

VALUE = """
    SELECT value FROM parked
    WHERE subscription = ? AND event_type = ? AND partition = ? AND timeline = ? AND position = ?
"""
REMOVE = """
    DELETE FROM parked
    WHERE subscription = ? AND event_type = ? AND partition = ? AND timeline = ? AND position = ?
"""

NOWHERE = ("", "", 0, 0)


def put(connection: sqlite3.Connection, subscription: str, events: Iterable[ParkedEvent]) -> None:
    connection.executemany(
        PUT, [(*_partition_key(subscription, each), *_row_of(each.parked), each.value) for each in events]
    )


def listed(
    connection: sqlite3.Connection,
    subscription: str,
    place: EventTypePartition | None,
    after: Behind | None,
    limit: int,
) -> Sequence[Parked]:
    begin = NOWHERE if after is None else (after[0].event_type, after[0].partition, after[1].timeline, after[1].offset)
    within = () if place is None else (place.event_type, place.partition)
    statement = HEADS + (OF_PLACE if within else "") + IN_ORDER
    return [_parked_event_of(row) for row in connection.execute(statement, (subscription, *begin, *within, limit))]


def value(
    connection: sqlite3.Connection, subscription: str, place: EventTypePartition, position: Position
) -> bytes | None:
    row = connection.execute(VALUE, _event_key(subscription, place, position)).fetchone()
    return None if row is None else row[0]


def remove(
    connection: sqlite3.Connection, subscription: str, place: EventTypePartition, positions: Collection[Position]
) -> None:
    connection.executemany(REMOVE, [_event_key(subscription, place, each) for each in positions])


def clear(connection: sqlite3.Connection, subscription: str) -> None:
    connection.execute("DELETE FROM parked WHERE subscription = ?", (subscription,))


def _partition_key(subscription: str, event: ParkedEvent) -> tuple[object, ...]:
    return _event_key(subscription, event.parked.place, event.parked.position)


def _event_key(subscription: str, place: EventTypePartition, position: Position) -> tuple[object, ...]:
    return subscription, place.event_type, place.partition, position.timeline, position.offset


def _row_of(parked: Parked) -> tuple[object, ...]:
    owner = (None, None) if parked.owner is None else (parked.owner.data_type, parked.owner.value)
    moments = (microseconds(parked.stored_at), microseconds(parked.parked_at))
    return parked.key, parked.fails, *moments, parked.replay, *owner


def _parked_event_of(row: tuple[str, str, int, int, str, int, int, int, str | None, str | None, str | None]) -> Parked:
    event_type, partition, timeline, position, key, fails, stored_at, parked_at, replay, owner_type, owner_value = row
    return Parked(
        place=EventTypePartition(event_type, partition),
        position=Position(timeline, position),
        key=key,
        fails=fails,
        stored_at=moment_of(stored_at),
        parked_at=moment_of(parked_at),
        replay=replay,
        owner=None if owner_type is None or owner_value is None else Attribute(owner_type, owner_value),
    )
