"""Parked events in DynamoDB.

The description of a parked event is an item, which includes the value if that is small. A larger value is stored in
pieces under another key, so that listing parked events does not read their contents.
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

from nakadi.engines.common.assignments import (
    parking_result,
    partition_to_park_in,
)
from nakadi.engines.dynamodb.coordination_table import (
    MAX_COMMIT_ATTEMPTS,
    CoordinationItem,
    CoordinationTable,
    commit_actions,
    commit_condition,
    offset_from_item,
    offset_sort_key,
    subscription_key,
)
from nakadi.model.authorization import Attribute
from nakadi.model.event_type import Position
from nakadi.model.events import datetime_from_microseconds, microseconds_since_epoch
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import (
    CommitResult,
    EventTypePartition,
    ParkedEvent,
    ParkedEventInfo,
)

Item = CoordinationItem


# Values up to the first size are stored with their descriptions; if a transaction would have too many items, so are
# values up to the second size.
SMALL_VALUE_BYTES, MAX_INLINE_VALUE_BYTES = 2_000, 61_000
MAX_TRANSACTION_ITEMS = 100
PARKED_VALUE_PIECE_BYTES = 350_000

# Greater than any continuation of a key.
HIGHEST_CHARACTER = "\U0010ffff"


class ParkedEventItems:
    def __init__(self, table: CoordinationTable) -> None:
        self._table = table

    def park_events(
        self, subscription: str, session: str, events: Sequence[ParkedEvent], now: datetime, commit_to: Position | None
    ) -> CommitResult:
        partition = partition_to_park_in(events)
        added = [self._table.items(**each) for each in _items_to_park(subscription, events)]
        offset = subscription_key(subscription), offset_sort_key(partition)

        def add(transaction: TransactWrite) -> None:
            if commit_to is None:
                transaction.condition_check(self._table.items, *offset, condition=Item.owner == session)
            else:
                actions = commit_actions(commit_to, microseconds_since_epoch(now))
                transaction.update(self._table.items(*offset), actions, commit_condition(session, commit_to))
            for each in added:
                transaction.save(each)

        for _ in range(MAX_COMMIT_ATTEMPTS):
            if self._table.transact(add):
                return CommitResult.COMMITTED
            found = self._table.find_item(*offset)
            judged = parking_result(None if found is None else offset_from_item(found), session, commit_to)
            if judged is not CommitResult.COMMITTED:
                return judged
        raise Unavailable("The owner of a partition changes all the time")

    def list_events(
        self,
        subscription: str,
        partition: EventTypePartition | None,
        after: tuple[EventTypePartition, Position] | None,
        limit: int,
    ) -> Sequence[ParkedEventInfo]:
        within = "" if partition is None else _event_sort_key(partition)
        behind = "" if after is None else _event_sort_key(*after) + HIGHEST_CHARACTER
        low, high = max(within, behind), within + HIGHEST_CHARACTER
        if low > high:
            return []
        # No event has an empty key, and DynamoDB rejects queries for an empty key.
        found = self._table.list_items(
            _parked_events_key(subscription), Item.sort_key.between(low or "#", high), limit=limit
        )
        return [_parked_event_from_item(each) for each in found]

    def read_value(self, subscription: str, partition: EventTypePartition, position: Position) -> bytes | None:
        found = self._table.find_item(_parked_events_key(subscription), _event_sort_key(partition, position))
        if found is None:
            return None
        if not found.pieces:
            return zlib.decompress(found.packed)
        its_own = Item.sort_key.startswith(f"{found.sort_key}#{found.token}#")
        pieces = [each.packed for each in self._table.list_items(_large_values_key(subscription), its_own)]
        # If pieces are missing, the event is being removed.
        return zlib.decompress(b"".join(pieces)) if len(pieces) == found.pieces else None

    def remove_events(self, subscription: str, partition: EventTypePartition, positions: Collection[Position]) -> None:
        """Remove descriptions before pieces: pieces without a description are not found as an event."""
        if not positions:
            return
        keys = {_event_sort_key(partition, each) for each in positions}
        self._table.remove_items(_parked_events_key(subscription), sorted(keys))
        values = self._list_sort_keys(
            _large_values_key(subscription), Item.sort_key.between(min(keys), max(keys) + HIGHEST_CHARACTER)
        )
        self._table.remove_items(
            _large_values_key(subscription), [each for each in values if _event_sort_key_of_piece(each) in keys]
        )

    def remove_all(self, subscription: str) -> None:
        for key in (_parked_events_key(subscription), _large_values_key(subscription)):
            self._table.remove_items(key, self._list_sort_keys(key))

    def _list_sort_keys(self, partition_key: str, condition: Condition | None = None) -> list[str]:
        return [each.sort_key for each in self._table.list_items(partition_key, condition)]


def _items_to_park(subscription: str, events: Sequence[ParkedEvent]) -> Sequence[Mapping[str, Any]]:
    """The items for these events, few enough for one transaction: in three million bytes, there are no fifty events
    with 61 thousand bytes each.
    """
    for max_inline_bytes in (SMALL_VALUE_BYTES, MAX_INLINE_VALUE_BYTES):
        items = [item for each in events for item in _event_items(subscription, each, max_inline_bytes)]
        if len(items) < MAX_TRANSACTION_ITEMS:
            return items
    raise AssertionError  # pragma: no cover


def _event_items(subscription: str, event: ParkedEvent, max_inline_bytes: int) -> Sequence[Mapping[str, Any]]:
    parked = event.parked
    packed = zlib.compress(event.value)
    head = {
        "partition_key": _parked_events_key(subscription),
        "sort_key": _event_sort_key(parked.partition, parked.position),
        "body": _parked_event_json(parked),
    }
    if len(packed) <= max_inline_bytes:
        return [{**head, "packed": packed}]
    # Pieces of an earlier event stay separate from these.
    token = uuid4().hex[:8]
    values, item = _large_values_key(subscription), f"{head['sort_key']}#{token}"
    pieces = [
        {"partition_key": values, "sort_key": f"{item}#{at:08d}", "packed": packed[at : at + PARKED_VALUE_PIECE_BYTES]}
        for at in range(0, len(packed), PARKED_VALUE_PIECE_BYTES)
    ]
    return [{**head, "token": token, "pieces": len(pieces)}, *pieces]


def _parked_events_key(subscription: str) -> str:
    return f"lot#{subscription}"


def _large_values_key(subscription: str) -> str:
    return f"values#{subscription}"


def _event_sort_key(partition: EventTypePartition, position: Position | None = None) -> str:
    """The sort key of an event. These keys sort like the names of event types, because no character of a name sorts
    before the separator.
    """
    within = f"{partition.event_type}#{partition.partition}#"
    return within if position is None else f"{within}{position.timeline:010d}#{position.offset:019d}"


def _event_sort_key_of_piece(sort_key: str) -> str:
    return sort_key.rsplit("#", 2)[0]


def _parked_event_json(parked: ParkedEventInfo) -> str:
    owner = None if parked.owner is None else [parked.owner.data_type, parked.owner.value]
    moments = [microseconds_since_epoch(parked.stored_at), microseconds_since_epoch(parked.parked_at)]
    return orjson.dumps([parked.key, parked.failed_streams, *moments, parked.replay, owner]).decode()


def _parked_event_from_item(item: CoordinationItem) -> ParkedEventInfo:
    event_type, partition, timeline, offset = item.sort_key.rsplit("#", 3)
    key, fails, stored_at, parked_at, replay, owner = orjson.loads(item.body)
    return ParkedEventInfo(
        partition=EventTypePartition(event_type, partition),
        position=Position(int(timeline), int(offset)),
        key=key,
        failed_streams=fails,
        stored_at=datetime_from_microseconds(stored_at),
        parked_at=datetime_from_microseconds(parked_at),
        replay=replay,
        owner=None if owner is None else Attribute(*owner),
    )
