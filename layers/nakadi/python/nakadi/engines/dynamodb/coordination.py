"""Coordination in DynamoDB, for as many processes as you like.

An offset bears its owner, and owners change in the transaction that changes the assignment: so a commit is one update
under a condition that a former owner does not meet.

The description of a parked event is an item, with the value in it if that is small. Of a larger one there are pieces in
another place, so that listing parked events does not cost what is in them.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from typing import Any
from uuid import uuid4

import orjson
from pynamodb.exceptions import PutError, UpdateError
from pynamodb.expressions.condition import Condition
from pynamodb.transactions import TransactWrite

from nakadi.engines.common.assignments import (
    Positions,
    commit_result,
    owners_after_change,
    parking_result,
    partition_to_park_in,
    with_next_revision,
)
from nakadi.engines.common.listeners import CallThreads, SubscriptionListeners, callable_once
from nakadi.engines.dynamodb import coordination_table
from nakadi.engines.dynamodb.client import RetriedCalls, TableAddress, condition_failed
from nakadi.engines.dynamodb.coordination_table import (
    ASSIGNMENT,
    LEASES,
    OFFSET,
    CoordinationItem,
    CoordinationTable,
    TableChangePoller,
    assignment_of,
    contents_of,
    in_one_moment,
    may_move,
    moved_to,
    moving,
    offset_item,
    offset_of,
    place_in,
    place_of,
)
from nakadi.model.authorization import Attribute
from nakadi.model.event_type import Position
from nakadi.model.events import datetime_from_microseconds, microseconds_since_epoch
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import (
    EMPTY_ASSIGNMENT,
    Assignment,
    CommitResult,
    CommittedOffset,
    EventTypePartition,
    ParkedEvent,
    ParkedEventInfo,
    SubscriptionChange,
    SubscriptionReport,
)
from nakadi.ports.coordination import AssignmentChanged, CommitCallback, CommitResults

Item = CoordinationItem

# Partitions of one commit that are written at the same time.
THREADS = 8

# A commit that was refused is judged by what is there then; if that would have let it through, it is made again.
TIMES_JUDGED = 5

# Reports of changes are worth a second attempt, and no more: the committer waits for it.
NEWS_PAUSES = (0.1,)


class DynamoDbCoordination:
    """Every change is a conditional write, which DynamoDB judges and makes in one step. So nothing is locked here, and
    no thread or process waits for another: of two that decided on the same state one is refused, and looks again.

    A write whose answer is lost may have been made, and is made once more. Each is such that this does no harm: a
    transaction has a token that DynamoDB knows, a commit one by which it recognises itself, a lease the moment of its
    request, and what is put or removed twice is as if it was once.
    """

    def __init__(self, address: TableAddress, attempts: RetriedCalls | None = None) -> None:
        self._table = CoordinationTable(address, attempts or RetriedCalls())
        self._listeners = SubscriptionListeners()
        self._changes = TableChangePoller(
            self._table.items, RetriedCalls(pauses=NEWS_PAUSES), self._listeners.notify_listeners
        )
        self._lot = ParkedEventItems(self._table)

    # The assignment

    def assignment(self, subscription: str) -> Assignment:
        found = self._table.find(place_of(subscription), ASSIGNMENT)
        return EMPTY_ASSIGNMENT if found is None else assignment_of(found)

    def write(
        self, subscription: str, old: Assignment, new: Assignment, now: datetime, positions: Positions | None = None
    ) -> Assignment:
        self._table.check_open()
        at = positions or {}
        touched = owners_after_change(old, new, at)
        stored = with_next_revision(old, new)
        items, own = self._table.items, place_of(subscription)
        # DynamoDB compares in the write itself: of two processes that decided on the same revision, one is refused.
        unchanged = Item.revision == old.revision if old.revision else Item.place.does_not_exist()
        assignment = items(own, ASSIGNMENT, **contents_of(stored))

        def add(transaction: TransactWrite) -> None:
            transaction.save(assignment, unchanged)
            for place, owner in touched.items():
                transaction.update(items(own, offset_item(place)), moving(owner, at.get(place), now))

        with self._report_if_in_doubt(subscription, SubscriptionChange.ASSIGNMENT):
            if not self._table.transact(add):
                raise AssignmentChanged(subscription)
        self._changed(subscription, SubscriptionChange.ASSIGNMENT)
        return stored

    def forget(self, subscription: str) -> None:
        """Remove the assignment first: what is left without it is harmless.

        A commit that comes in between moves an offset that is about to go. One that comes later finds none, for an
        update that asks for an owner makes no item.
        """
        place = place_of(subscription)
        self._table.remove(place, [ASSIGNMENT])
        self._table.remove(place, [each.item for each in self._table.list_items(place)])
        self._lot.clear(subscription)
        self._changed(subscription, SubscriptionChange.ASSIGNMENT)

    # Offsets

    def offsets(self, subscription: str) -> Mapping[EventTypePartition, CommittedOffset]:
        # Each as it was at its moment: while pages are read, others may change. Readers have taken the assignment
        # before, and recognise by its owner an offset that is newer.
        found = self._table.list_items(place_of(subscription), Item.item.startswith(OFFSET))
        return {place_in(each.item): offset_of(each) for each in found}

    def commit(self, subscription: str, session: str, positions: Positions, now: datetime) -> CommitResults:
        """Each partition is an update of its own: a transaction would cost twice as much, and be all or nothing."""
        self._table.check_open()

        def commit_one(item: tuple[EventTypePartition, Position]) -> tuple[CommitResult, bool] | Unavailable:
            try:
                return self._commit(subscription, session, *item, now)
            except Unavailable as error:
                return error

        # In any order: partitions have nothing to do with each other, and each is one step for itself.
        one_by_one = map if len(positions) < 2 else self._threads.map
        outcomes = list(one_by_one(commit_one, positions.items()))
        made = [each for each in outcomes if not isinstance(each, Unavailable)]
        failed = [each for each in outcomes if isinstance(each, Unavailable)]
        # A failed write may have been made: then the repeated one finds it outdated, which is not reported.
        if failed or any(found is CommitResult.COMMITTED for found, _ in made):
            self._changed(
                subscription, SubscriptionChange.OFFSETS, quietly=not failed and not any(news for _, news in made)
            )
        if failed:
            raise failed[0]
        return {place: found for place, (found, _) in zip(positions, made, strict=True)}

    def begin_commit(
        self, subscription: str, session: str, positions: Positions, now: datetime, done: CommitCallback
    ) -> None:
        self._commit_threads.call(partial(self.commit, subscription, session, positions, now), done)

    def _commit(
        self, subscription: str, session: str, place: EventTypePartition, position: Position, now: datetime
    ) -> tuple[CommitResult, bool]:
        """What became of it, and whether it is news that this partition moves."""
        item = self._table.items(place_of(subscription), offset_item(place))
        since, token = microseconds_since_epoch(now), uuid4().hex[:12]

        def attempt(in_doubt: bool) -> CommitResult | None:
            try:
                item.update([*moved_to(position, since), Item.token.set(token)], may_move(session, position))
            except UpdateError as error:
                if not condition_failed(error):
                    raise
                item.before = None
                return self._why_refused(item, session, position, token if in_doubt else None)
            return CommitResult.COMMITTED

        # What refused it may be gone when it is looked at, as when the partition is handed over and back: then it is
        # made again, for an answer has to be one that was true at some moment since it was asked for.
        for _ in range(TIMES_JUDGED):
            found = self._table.attempts.at(attempt)
            if found is not None:
                return found, item.before is None or not in_one_moment(int(item.before), since)
        raise Unavailable("The owner of a partition changes all the time")

    def _why_refused(
        self, item: CoordinationItem, session: str, position: Position, token: str | None
    ) -> CommitResult | None:
        """Why it was refused; None if now it would not be.

        With a token, an attempt before may have had its effect: then its token is there. If a position is there that
        another process committed after it, cannot be known.
        """
        found = self._table.find(item.place, item.item)
        offset = None if found is None else offset_of(found)
        if token and found and found.token == token:
            return CommitResult.COMMITTED
        if token and offset and offset.owner != session and offset.position > position:
            raise Unavailable("It is not known whether a position was committed")
        judged = commit_result(offset, session, position)
        return None if judged is CommitResult.COMMITTED else judged

    # The lot

    def park(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        upto: Position | None = None,
    ) -> CommitResult:
        self._table.check_open()
        with self._report_if_in_doubt(subscription, SubscriptionChange.OFFSETS):
            found = self._lot.park(subscription, session, events, now, upto)
        if found is CommitResult.COMMITTED:
            self._changed(subscription, SubscriptionChange.OFFSETS)
        return found

    def parked(
        self,
        subscription: str,
        *,
        place: EventTypePartition | None = None,
        after: tuple[EventTypePartition, Position] | None = None,
        limit: int = 1000,
    ) -> Sequence[ParkedEventInfo]:
        return self._lot.listed(subscription, place, after, limit)

    def parked_value(self, subscription: str, place: EventTypePartition, position: Position) -> bytes | None:
        return self._lot.value(subscription, place, position)

    def unpark(self, subscription: str, place: EventTypePartition, positions: Collection[Position]) -> None:
        self._lot.remove(subscription, place, positions)

    # Leases

    def renew(self, holder: str, until: datetime) -> None:
        """A request that arrives late, after another that was made later, changes nothing."""
        self._table.check_open()
        asked = time.monotonic_ns()
        item = self._table.items(LEASES, holder, **coordination_table.lease(until, asked))

        def attempt(_: bool) -> None:
            try:
                item.save(Item.place.does_not_exist() | (Item.asked <= asked))
            except PutError as error:
                if not condition_failed(error):
                    raise

        self._table.attempts.at(attempt)

    def release(self, holder: str) -> None:
        self._table.remove(LEASES, [holder])

    def leases(self) -> Mapping[str, datetime]:
        return {each.item: datetime_from_microseconds(int(each.until)) for each in self._table.list_items(LEASES)}

    # News

    def watch(self, subscription: str, changed: Callable[[SubscriptionReport], None]) -> Callable[[], None]:
        # In this order: when the caller comes to read, what others change behind that read is looked for.
        self._changes.attend()
        end = self._listeners.add(subscription, changed)

        def end_both() -> None:
            end()
            self._changes.leave()

        return callable_once(end_both)

    def _changed(self, subscription: str, changed: SubscriptionChange, *, quietly: bool = False) -> None:
        self._listeners.notify_listeners(subscription, changed)
        if not quietly:
            self._changes.note(subscription, changed)

    @contextmanager
    def _report_if_in_doubt(self, subscription: str, changed: SubscriptionChange) -> Iterator[None]:
        """Report a failed change too: it may have been made, and then a repeated call reports nothing."""
        try:
            yield
        except Unavailable:
            self._changed(subscription, changed)
            raise

    def close(self) -> None:
        # Refused first: what comes from now on raises, in whatever thread. Commits that have begun are waited for, and
        # the clients that they use are closed last.
        self._table.refuse()
        self._changes.close()
        if "_commit_threads" in vars(self):
            self._commit_threads.close()
        if "_threads" in vars(self):
            self._threads.shutdown()
        self._table.close()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, "coordination-commits")

    @cached_property
    def _commit_threads(self) -> CallThreads:
        return CallThreads("coordination-commit")


# Parked events --------------------------------------------------------------------------------------------------------


# A value of this size stays with its description; if a transaction would have too many items, more of them do.
SMALL, NOT_LARGE = 2_000, 61_000
MOST_ITEMS = 100
PIECE = 350_000

# Beyond everything that a key may go on with.
LAST = "\U0010ffff"


class ParkedEventItems:
    def __init__(self, table: CoordinationTable) -> None:
        self._table = table

    def park(
        self, subscription: str, session: str, events: Sequence[ParkedEvent], now: datetime, upto: Position | None
    ) -> CommitResult:
        place = partition_to_park_in(events)
        added = [self._table.items(**each) for each in _items(subscription, events)]
        offset = place_of(subscription), offset_item(place)

        def add(transaction: TransactWrite) -> None:
            if upto is None:
                transaction.condition_check(self._table.items, *offset, condition=Item.owner == session)
            else:
                actions = moved_to(upto, microseconds_since_epoch(now))
                transaction.update(self._table.items(*offset), actions, may_move(session, upto))
            for each in added:
                transaction.save(each)

        for _ in range(TIMES_JUDGED):
            if self._table.transact(add):
                return CommitResult.COMMITTED
            found = self._table.find(*offset)
            judged = parking_result(None if found is None else offset_of(found), session, upto)
            if judged is not CommitResult.COMMITTED:
                return judged
        raise Unavailable("The owner of a partition changes all the time")

    def listed(
        self,
        subscription: str,
        place: EventTypePartition | None,
        after: tuple[EventTypePartition, Position] | None,
        limit: int,
    ) -> Sequence[ParkedEventInfo]:
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


def _body(parked: ParkedEventInfo) -> str:
    owner = None if parked.owner is None else [parked.owner.data_type, parked.owner.value]
    moments = [microseconds_since_epoch(parked.stored_at), microseconds_since_epoch(parked.parked_at)]
    return orjson.dumps([parked.key, parked.fails, *moments, parked.replay, owner]).decode()


def _parked_event_of(item: CoordinationItem) -> ParkedEventInfo:
    event_type, partition, timeline, offset = item.item.rsplit("#", 3)
    key, fails, stored_at, parked_at, replay, owner = orjson.loads(item.body)
    return ParkedEventInfo(
        place=EventTypePartition(event_type, partition),
        position=Position(int(timeline), int(offset)),
        key=key,
        fails=fails,
        stored_at=datetime_from_microseconds(stored_at),
        parked_at=datetime_from_microseconds(parked_at),
        replay=replay,
        owner=None if owner is None else Attribute(*owner),
    )
