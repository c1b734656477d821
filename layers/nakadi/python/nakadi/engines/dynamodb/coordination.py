"""Coordination in DynamoDB, for as many processes as you like.

An offset bears its owner, and owners change in the transaction that changes the assignment: so a commit is one update
under a condition that a former owner does not meet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from uuid import uuid4

from pynamodb.exceptions import PutError, UpdateError
from pynamodb.transactions import TransactWrite

from nakadi.engines.common.assignments import Positions, moves, successor, verdict
from nakadi.engines.common.listeners import SubscriptionListeners, once
from nakadi.engines.dynamodb import coordination_table
from nakadi.engines.dynamodb.changes import SubscriptionChanges, in_one_moment
from nakadi.engines.dynamodb.client import Address, Attempts, condition_failed
from nakadi.engines.dynamodb.coordination_table import (
    ASSIGNMENT,
    LEASES,
    OFFSET,
    CoordinationItem,
    CoordinationTable,
    assignment_of,
    contents_of,
    may_move,
    moved_to,
    moving,
    offset_item,
    offset_of,
    place_in,
    place_of,
)
from nakadi.engines.dynamodb.parked_events import ParkedEvents
from nakadi.model.coordination import NOTHING_YET, Assignment, Changed, Offset, Parked, ParkedEvent, Verdict
from nakadi.model.events import microseconds, moment_of
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EventTypePartition
from nakadi.model.timeline import Position
from nakadi.ports.coordination import AssignmentChanged

Item = CoordinationItem

# Partitions of one commit that are written at the same time.
THREADS = 8

# A commit that was refused is judged by what is there then; if that would have let it through, it is made again.
TIMES_JUDGED = 5

# Reports of changes are worth a second attempt, and no more: the committer waits for it.
NEWS_PAUSES = (0.1,)


class DynamoDbCoordination:
    def __init__(self, address: Address, attempts: Attempts | None = None) -> None:
        self._table = CoordinationTable(address, attempts or Attempts())
        self._listeners = SubscriptionListeners()
        self._changes = SubscriptionChanges(self._table.items, Attempts(pauses=NEWS_PAUSES), self._listeners.tell)
        self._lot = ParkedEvents(self._table)

    # The assignment

    def assignment(self, subscription: str) -> Assignment:
        found = self._table.find(place_of(subscription), ASSIGNMENT)
        return NOTHING_YET if found is None else assignment_of(found)

    def write(
        self, subscription: str, old: Assignment, new: Assignment, now: datetime, positions: Positions | None = None
    ) -> Assignment:
        self._table.check_open()
        at = positions or {}
        touched = moves(old, new, at)
        stored = successor(old, new)
        items, own = self._table.items, place_of(subscription)
        unchanged = Item.revision == old.revision if old.revision else Item.place.does_not_exist()
        assignment = items(own, ASSIGNMENT, **contents_of(stored))

        def add(transaction: TransactWrite) -> None:
            transaction.save(assignment, unchanged)
            for place, owner in touched.items():
                transaction.update(items(own, offset_item(place)), moving(owner, at.get(place), now))

        with self._report_if_in_doubt(subscription, Changed.ASSIGNMENT):
            if not self._table.transact(add):
                raise AssignmentChanged(subscription)
        self._changed(subscription, Changed.ASSIGNMENT)
        return stored

    def forget(self, subscription: str) -> None:
        """Remove the assignment first: what is left without it is harmless."""
        place = place_of(subscription)
        self._table.remove(place, [ASSIGNMENT])
        self._table.remove(place, [each.item for each in self._table.list_items(place)])
        self._lot.clear(subscription)
        self._changed(subscription, Changed.ASSIGNMENT)

    # Offsets

    def offsets(self, subscription: str) -> Mapping[EventTypePartition, Offset]:
        found = self._table.list_items(place_of(subscription), Item.item.startswith(OFFSET))
        return {place_in(each.item): offset_of(each) for each in found}

    def commit(
        self, subscription: str, session: str, positions: Positions, now: datetime
    ) -> Mapping[EventTypePartition, Verdict]:
        """Each partition is an update of its own: a transaction would cost twice as much, and be all or nothing."""
        self._table.check_open()

        def commit_one(item: tuple[EventTypePartition, Position]) -> tuple[Verdict, bool] | Unavailable:
            try:
                return self._commit(subscription, session, *item, now)
            except Unavailable as error:
                return error

        one_by_one = map if len(positions) < 2 else self._threads.map
        outcomes = list(one_by_one(commit_one, positions.items()))
        made = [each for each in outcomes if not isinstance(each, Unavailable)]
        failed = [each for each in outcomes if isinstance(each, Unavailable)]
        # A failed write may have been made: then the repeated one finds it outdated, which is not reported.
        if failed or any(found is Verdict.COMMITTED for found, _ in made):
            self._changed(subscription, Changed.OFFSETS, quietly=not failed and not any(news for _, news in made))
        if failed:
            raise failed[0]
        return {place: found for place, (found, _) in zip(positions, made, strict=True)}

    def _commit(
        self, subscription: str, session: str, place: EventTypePartition, position: Position, now: datetime
    ) -> tuple[Verdict, bool]:
        """What became of it, and whether it is news that this partition moves."""
        item = self._table.items(place_of(subscription), offset_item(place))
        since, token = microseconds(now), uuid4().hex[:12]

        def attempt(in_doubt: bool) -> Verdict | None:
            try:
                item.update([*moved_to(position, since), Item.token.set(token)], may_move(session, position))
            except UpdateError as error:
                if not condition_failed(error):
                    raise
                item.before = None
                return self._why_refused(item, session, position, token if in_doubt else None)
            return Verdict.COMMITTED

        for _ in range(TIMES_JUDGED):
            found = self._table.attempts.at(attempt)
            if found is not None:
                return found, item.before is None or not in_one_moment(int(item.before), since)
        raise Unavailable("The owner of a partition changes all the time")

    def _why_refused(
        self, item: CoordinationItem, session: str, position: Position, token: str | None
    ) -> Verdict | None:
        """Why it was refused; None if now it would not be.

        With a token, an attempt before may have had its effect: then its token is there. If a position is there that
        another process committed after it, cannot be known.
        """
        found = self._table.find(item.place, item.item)
        offset = None if found is None else offset_of(found)
        if token and found and found.token == token:
            return Verdict.COMMITTED
        if token and offset and offset.owner != session and offset.position > position:
            raise Unavailable("It is not known whether a position was committed")
        judged = verdict(offset, session, position)
        return None if judged is Verdict.COMMITTED else judged

    # The lot

    def park(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        upto: Position | None = None,
    ) -> Verdict:
        self._table.check_open()
        with self._report_if_in_doubt(subscription, Changed.OFFSETS):
            found = self._lot.park(subscription, session, events, now, upto)
        if found is Verdict.COMMITTED:
            self._changed(subscription, Changed.OFFSETS)
        return found

    def parked(
        self,
        subscription: str,
        *,
        place: EventTypePartition | None = None,
        after: tuple[EventTypePartition, Position] | None = None,
        limit: int = 1000,
    ) -> Sequence[Parked]:
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
        return {each.item: moment_of(int(each.until)) for each in self._table.list_items(LEASES)}

    # News

    def watch(self, subscription: str, changed: Callable[[Changed], None]) -> Callable[[], None]:
        self._changes.attend()
        end = self._listeners.add(subscription, changed)

        def end_both() -> None:
            end()
            self._changes.leave()

        return once(end_both)

    def _changed(self, subscription: str, changed: Changed, *, quietly: bool = False) -> None:
        self._listeners.tell(subscription, changed)
        if not quietly:
            self._changes.note(subscription, changed)

    @contextmanager
    def _report_if_in_doubt(self, subscription: str, changed: Changed) -> Iterator[None]:
        """Report a failed change too: it may have been made, and then a repeated call reports nothing."""
        try:
            yield
        except Unavailable:
            self._changed(subscription, changed)
            raise

    def close(self) -> None:
        self._table.refuse()
        self._changes.close()
        if "_threads" in vars(self):
            self._threads.shutdown()
        self._table.close()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, "coordination-commits")
