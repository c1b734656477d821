"""Parked events of subscriptions in DynamoDB: those that consumers could not process.

The description of an event is an item, with the value in it if that is small. Of a larger one there are pieces in
another place, so that looking through a lot does not cost what is in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

import orjson
from pynamodb.expressions.condition import Condition
from pynamodb.transactions import TransactWrite

from nakadi.engines.common.assignments import parking_place, parking_verdict
from nakadi.engines.dynamodb.coordination_table import (
    CoordinationItem,
    CoordinationTable,
    may_move,
    moved_to,
    offset_item,
    offset_of,
    place_of,
)
from nakadi.model.authorization import Attribute
from nakadi.model.coordination import Parked, ParkedEvent, Verdict
from nakadi.model.events import microseconds, moment_of
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EventTypePartition
from nakadi.model.timeline import Position

Item = CoordinationItem

# A value of this size stays with its description; if a transaction would have too many items, more of them do.
SMALL, NOT_LARGE = 2_000, 61_000
MOST_ITEMS = 100
PIECE = 350_000

# What was refused is judged by what is there then; if that would have let it through, it is tried again.
TIMES_JUDGED = 5

# Beyond everything that a key may go on with.
LAST = "\U0010ffff"


class ParkedEvents:
    def __init__(self, table: CoordinationTable) -> None:
        self._table = table

    def park(
        self, subscription: str, session: str, events: Sequence[ParkedEvent], now: datetime, upto: Position | None
    ) -> Verdict:
        place = parking_place(events)
        added = [self._table.items(**each) for each in _items(subscription, events)]
        offset = place_of(subscription), offset_item(place)

        def add(transaction: TransactWrite) -> None:
            if upto is None:
                transaction.condition_check(self._table.items, *offset, condition=Item.owner == session)
            else:
                actions = moved_to(upto, microseconds(now))
                transaction.update(self._table.items(*offset), actions, may_move(session, upto))
            for each in added:
                transaction.save(each)

        for _ in range(TIMES_JUDGED):
            if self._table.transact(add):
                return Verdict.COMMITTED
            found = self._table.find(*offset)
            judged = parking_verdict(None if found is None else offset_of(found), session, upto)
            if judged is not Verdict.COMMITTED:
                return judged
        raise Unavailable("The owner of a partition changes all the time")

    def listed(
        self,
        subscription: str,
        place: EventTypePartition | None,
        after: tuple[EventTypePartition, Position] | None,
        limit: int,
    ) -> Sequence[Parked]:
        within = "" if place is None else _key(place)
        behind = "" if after is None else _key(*after) + LAST
        low, high = max(within, behind), within + LAST
        if low > high:
            return []
        # No key is empty, and none may be asked for.
        found = self._table.list_items(_lot_of(subscription), Item.item.between(low or "#", high), limit=limit)
        return [_parked_event_of(each) for each in found]

    def value(self, subscription: str, place: EventTypePartition, position: Position) -> bytes | None:
        found = self._table.find(_lot_of(subscription), _key(place, position))
        if found is None:
            return None
        if not found.pieces:
            return zlib.decompress(found.packed)
        its_own = Item.item.startswith(f"{found.item}#{found.token}#")
        pieces = [each.packed for each in self._table.list_items(_values_of(subscription), its_own)]
        # Those that are missing are being taken out.
        return zlib.decompress(b"".join(pieces)) if len(pieces) == found.pieces else None

    def remove(self, subscription: str, place: EventTypePartition, positions: Collection[Position]) -> None:
        """Remove descriptions first: a piece alone is nothing."""
        if not positions:
            return
        keys = {_key(place, each) for each in positions}
        self._table.remove(_lot_of(subscription), sorted(keys))
        values = self._keys(_values_of(subscription), Item.item.between(min(keys), max(keys) + LAST))
        self._table.remove(_values_of(subscription), [each for each in values if _key_of_piece(each) in keys])

    def clear(self, subscription: str) -> None:
        for place in (_lot_of(subscription), _values_of(subscription)):
            self._table.remove(place, self._keys(place))

    def _keys(self, place: str, condition: Condition | None = None) -> list[str]:
        return [each.item for each in self._table.list_items(place, condition)]


def _items(subscription: str, events: Sequence[ParkedEvent]) -> Sequence[Mapping[str, Any]]:
    """So few that they fit a transaction: of three million bytes, no fifty events have 61 thousand each."""
    for inside in (SMALL, NOT_LARGE):
        items = [item for each in events for item in _items_of(subscription, each, inside)]
        if len(items) < MOST_ITEMS:
            return items
    raise AssertionError  # pragma: no cover


def _items_of(subscription: str, event: ParkedEvent, inside: int) -> Sequence[Mapping[str, Any]]:
    parked = event.parked
    packed = zlib.compress(event.value)
    head = {"place": _lot_of(subscription), "item": _key(parked.place, parked.position), "body": _body(parked)}
    if len(packed) <= inside:
        return [{**head, "packed": packed}]
    # Pieces of an event that was there before stay apart from these.
    token = uuid4().hex[:8]
    values, item = _values_of(subscription), f"{head['item']}#{token}"
    pieces = [
        {"place": values, "item": f"{item}#{at:08d}", "packed": packed[at : at + PIECE]}
        for at in range(0, len(packed), PIECE)
    ]
    return [{**head, "token": token, "pieces": len(pieces)}, *pieces]


def _lot_of(subscription: str) -> str:
    return f"lot#{subscription}"


def _values_of(subscription: str) -> str:
    return f"values#{subscription}"


def _key(place: EventTypePartition, position: Position | None = None) -> str:
    """Keys are in the order of what they name: nothing in a name comes before the sign between two."""
    within = f"{place.event_type}#{place.partition}#"
    return within if position is None else f"{within}{position.timeline:010d}#{position.offset:019d}"


def _key_of_piece(item: str) -> str:
    return item.rsplit("#", 2)[0]


def _body(parked: Parked) -> str:
    owner = None if parked.owner is None else [parked.owner.data_type, parked.owner.value]
    moments = [microseconds(parked.stored_at), microseconds(parked.parked_at)]
    return orjson.dumps([parked.key, parked.fails, *moments, parked.replay, owner]).decode()


def _parked_event_of(item: CoordinationItem) -> Parked:
    event_type, partition, timeline, offset = item.item.rsplit("#", 3)
    key, fails, stored_at, parked_at, replay, owner = orjson.loads(item.body)
    return Parked(
        place=EventTypePartition(event_type, partition),
        position=Position(int(timeline), int(offset)),
        key=key,
        fails=fails,
        stored_at=moment_of(stored_at),
        parked_at=moment_of(parked_at),
        replay=replay,
        owner=None if owner is None else Attribute(*owner),
    )
