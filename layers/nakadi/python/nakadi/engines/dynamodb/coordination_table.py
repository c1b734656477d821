"""What subscriptions share, as items of a table: calls that are repeated until their outcome is known, and changes.

Each change leaves an item that is named by the time, and watchers ask for the items after the last one that they know:
one small question, however many subscriptions there are, and none without watchers.

A subscription in which something changed a moment ago need not be reported again: each watcher looks once more, a
little later. So many commits are as cheap as few.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from math import inf
from typing import Any
from uuid import uuid4

from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import DoesNotExist
from pynamodb.expressions.condition import Condition
from pynamodb.expressions.update import Action
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from nakadi.engines.common.assignments import assignment_from_text, assignment_text
from nakadi.engines.common.listeners import ChangePoller
from nakadi.engines.dynamodb.client import (
    COORDINATION,
    FAILURES,
    RetriedCalls,
    TableAddress,
    connected,
    meta_of,
    transaction_of,
)
from nakadi.model.event_type import Position
from nakadi.model.events import datetime_from_microseconds, microseconds_since_epoch
from nakadi.model.outcomes import Invalid, Unavailable
from nakadi.model.subscription import Assignment, CommittedOffset, EventTypePartition, SubscriptionChange

# Items ----------------------------------------------------------------------------------------------------------------


ASSIGNMENT = "assignment"
OFFSET = "offset#"
LEASES = "leases"
NEWS = "news"

# One write unit pays for so much, keys and names included: a text that is longer costs less packed.
LONGEST_TEXT = 900

# DynamoDB takes 400 KB for an item with all names and keys.
MOST_BYTES = 390_000

# News have been heard by then, and a lease that ran out says nothing any more, also by a clock that was set back by an
# hour or two. DynamoDB removes them when it gets round to it.
KEPT_SECONDS = 3600
LEASE_KEPT_SECONDS = 24 * 3600


class CoordinationItem(Model):
    """Beside each other in the place of a subscription its assignment and its offsets; in places of their own its
    parked events and their large values, by position; the leases, by holder; and the news, by time.
    """

    Meta = meta_of(COORDINATION)  # every engine has a model with the full name of its own table

    place = UnicodeAttribute(hash_key=True)
    item = UnicodeAttribute(range_key=True)

    # An assignment is JSON, in `body` or `packed`.
    revision = NumberAttribute(null=True)
    body = UnicodeAttribute(null=True)
    packed = BinaryAttribute(null=True, legacy_encoding=False)

    # An offset. `since` is when it last changed, `before` when it did the time before; by its token a commit is known.
    timeline = NumberAttribute(null=True)
    position = NumberAttribute(null=True)
    owner = UnicodeAttribute(null=True)
    since = NumberAttribute(null=True)
    before = NumberAttribute(null=True)
    token = UnicodeAttribute(null=True)

    # A parked event: its description in `body`, its value in `packed`, or in so many `pieces` with its token.
    pieces = NumberAttribute(null=True)

    # A lease, and when in the life of its holder it was asked for.
    until = NumberAttribute(null=True)
    asked = NumberAttribute(null=True)

    # A piece of news: what changed of which subscription, and who tells.
    about = UnicodeAttribute(null=True)
    changed = UnicodeAttribute(null=True)
    teller = UnicodeAttribute(null=True)

    # Seconds since 1970, for DynamoDB.
    expires = NumberAttribute(null=True)


def place_of(subscription: str) -> str:
    return f"subscription#{subscription}"


def offset_item(place: EventTypePartition) -> str:
    return f"{OFFSET}{place.event_type}#{place.partition}"


def place_in(item: str) -> EventTypePartition:
    event_type, _, partition = item.removeprefix(OFFSET).rpartition("#")
    return EventTypePartition(event_type, partition)


def contents_of(assignment: Assignment) -> Mapping[str, Any]:
    """The attributes that hold an assignment. Raises `Invalid` for one that no item can hold."""
    text = assignment_text(assignment)
    if len(text) <= LONGEST_TEXT:
        return {"revision": assignment.revision, "body": text}
    packed = zlib.compress(text.encode())
    if len(packed) > MOST_BYTES:
        raise Invalid(f"Too many streams share too many partitions: {len(packed)} bytes of {MOST_BYTES} possible")
    return {"revision": assignment.revision, "packed": packed}


def assignment_of(item: CoordinationItem) -> Assignment:
    text = item.body if item.packed is None else zlib.decompress(item.packed)
    return assignment_from_text(text, int(item.revision))


def offset_of(item: CoordinationItem) -> CommittedOffset:
    return CommittedOffset(
        Position(int(item.timeline), int(item.position)), item.owner, datetime_from_microseconds(int(item.since))
    )


def lease(until: datetime, asked: int) -> Mapping[str, Any]:
    return {
        "until": microseconds_since_epoch(until),
        "asked": asked,
        "expires": int(until.timestamp()) + LEASE_KEPT_SECONDS,
    }


def may_move(session: str, position: Position) -> Condition:
    """What must be so for a session to commit."""
    item = CoordinationItem
    same, earlier = item.timeline == position.timeline, item.timeline < position.timeline
    condition: Condition = (item.owner == session) & (earlier | (same & (item.position < position.offset)))
    return condition


def moved_to(position: Position, since: int) -> list[Action]:
    """What a commit does to an offset."""
    item = CoordinationItem
    return [
        item.before.set(item.since),
        item.timeline.set(position.timeline),
        item.position.set(position.offset),
        item.since.set(since),
    ]


def moving(owner: str | None, position: Position | None, now: datetime) -> list[Action]:
    """What a write does to an offset: a new owner, or none, and perhaps a new position."""
    item, since = CoordinationItem, microseconds_since_epoch(now)
    moved = [item.since.set(since)]
    if position is not None:
        moved += [item.timeline.set(position.timeline), item.position.set(position.offset)]
    return [item.owner.remove() if owner is None else item.owner.set(owner), *moved]


# Table ----------------------------------------------------------------------------------------------------------------


class CoordinationTable:
    """Reads see every write that returned before they began."""

    def __init__(self, address: TableAddress, attempts: RetriedCalls) -> None:
        self.items = address.bound(CoordinationItem, COORDINATION)
        self.attempts = attempts
        self._closed = False
        self._connection = connected(self.items)
        self._client = self._connection.client

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable("The coordination is closed.")

    def find(self, place: str, item: str) -> CoordinationItem | None:
        self.check_open()

        def attempt(_: bool) -> CoordinationItem | None:
            try:
                return self.items.get(place, item, consistent_read=True)
            except DoesNotExist:
                return None

        return self.attempts.at(attempt)

    def list_items(
        self, place: str, condition: Condition | None = None, *, limit: int | None = None
    ) -> Iterator[CoordinationItem]:
        """One by one, trying again for a page that did not come."""
        self.check_open()
        results = self.items.query(place, range_key_condition=condition, consistent_read=True, limit=limit)
        while (item := self.attempts.at(lambda _: next(results, None))) is not None:
            yield item

    def remove(self, place: str, items: Iterable[str]) -> None:
        """Remove items, also those that are not there."""
        self.check_open()
        rest = iter(items)
        while some := list(islice(rest, 100)):

            def attempt(_: bool, some: list[str] = some) -> None:
                with self.items.batch_write() as batch:
                    for item in some:
                        batch.delete(self.items(place, item))

            self.attempts.at(attempt)

    def transact(self, add: Callable[[TransactWrite], None]) -> bool:
        """Make all changes that are added, or none because a condition does not hold."""
        self.check_open()
        return self.attempts.at(transaction_of(add, self._connection))

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def refuse(self) -> None:
        """From now on nothing is asked any more."""
        self._closed = True


# Noticing what other processes change ---------------------------------------------------------------------------------


PAUSE = 0.4
"""Seconds between two looks."""

MOMENT = 0.4
"""Changes within the same period of this length are reported once."""

ECHO = MOMENT + 0.1
"""So long after hearing of a change, whatever else happened in the same moment has been written, too."""

LATE = 2.0
"""News may be seen so much later than others that bear a later time: clocks differ, and writes take theirs."""

DIGITS = 16

_log = logging.getLogger(__name__)

Tell = Callable[[str, SubscriptionChange], None]


def in_one_moment(first: int, second: int) -> bool:
    """Whether two changes, in microseconds, are reported once."""
    length = int(MOMENT * 1_000_000)
    return first // length == second // length


class TableChanges:
    """What others change, as far as it is known; asked by one thread at a time."""

    def __init__(self, items: type[CoordinationItem], name: str, now: Callable[[], float] = time.time) -> None:
        self._items = items
        self._name = name
        self._now = now
        self._after = ""
        self._seen: frozenset[str] = frozenset()
        self._echoes: deque[tuple[float, str]] = deque()

    def begin(self) -> None:
        """Earlier changes are of no interest."""
        self._after, self._seen = _key(self._now() - LATE), frozenset()

    def look(self, at: float) -> Sequence[tuple[str, SubscriptionChange]]:
        """What others changed since the last look. `at` is on a steady clock."""
        found = list(self._items.query(NEWS, range_key_condition=CoordinationItem.item > self._after))
        new = [each for each in found if each.item not in self._seen]
        self._echoes.extend((at + ECHO, each.about) for each in new)
        if found:
            self._go_on(found[-1].item)
            self._seen = frozenset(each.item for each in found if each.item > self._after)
        return [(each.about, SubscriptionChange(each.changed)) for each in new if each.teller != self._name]

    def _go_on(self, newest: str) -> None:
        """The next look begins a little before the newest, for some arrive late; no clock of another process that is
        ahead makes us deaf to the rest.
        """
        seconds = min(int(newest[:DIGITS]) / 1_000_000, self._now())
        self._after = max(self._after, _key(seconds - LATE))

    def echoes(self, at: float) -> Sequence[str]:
        """Where something may have changed in the same moment as what was reported."""
        again: dict[str, None] = {}
        while self._echoes and self._echoes[0][0] <= at:
            again[self._echoes.popleft()[1]] = None
        return list(again)

    @property
    def next_echo(self) -> float:
        return self._echoes[0][0] if self._echoes else inf


class TableChangePoller(ChangePoller):
    """Polls the table while this process has watchers, and not at all otherwise."""

    def __init__(self, items: type[CoordinationItem], attempts: RetriedCalls, tell: Tell) -> None:
        super().__init__("The coordination", thread_name="coordination-news")
        self._items = items
        self._attempts = attempts
        self._tell = tell
        self._name = uuid4().hex[:8]
        self._feed = TableChanges(items, self._name)
        self._deaf = False

    def note(self, subscription: str, changed: SubscriptionChange) -> None:
        """Leave the news. Without them, others find out when they look again of their own accord."""
        now = time.time()
        item = self._items(
            NEWS,
            f"{_key(now)}#{uuid4().hex[:8]}",
            about=subscription,
            changed=changed.value,
            teller=self._name,
            expires=int(now) + KEPT_SECONDS,
        )
        try:
            self._attempts.at(lambda _: item.save())
        except Unavailable:
            _log.warning("Reporting a change of subscription %s to other processes failed", subscription, exc_info=True)

    def _begin(self) -> None:
        # Makes no call. A thread that rests begins anew by itself: the feed is asked by one thread at a time.
        if self._thread is None:
            self._feed.begin()

    def _poll(self) -> None:
        next_look = time.monotonic() + PAUSE
        while not self._closed.wait(max(0.0, min(next_look, self._feed.next_echo) - time.monotonic())):
            if not self._wanted.is_set():
                self._wanted.wait()
                self._feed.begin()
            if time.monotonic() >= next_look and not self._closed.is_set():
                self._look()
                next_look = time.monotonic() + PAUSE
            for subscription in self._feed.echoes(time.monotonic()):
                self._tell(subscription, SubscriptionChange.OFFSETS)

    def _look(self) -> None:
        try:
            found = self._feed.look(time.monotonic())
        except FAILURES:
            # The next look is soon, and asks for what was missed. It is said once.
            if not self._deaf:
                _log.warning("Looking for changes of other processes failed, tried again in %s s", PAUSE, exc_info=True)
            self._deaf = True
            return
        except Exception:  # noqa: BLE001  # waiting streams would wait for ever
            _log.exception("Looking for changes of other processes failed, tried again in %s s", PAUSE)
            return
        self._deaf = False
        for subscription, changed in found:
            self._tell(subscription, changed)


def _key(seconds: float) -> str:
    return f"{int(seconds * 1_000_000):0{DIGITS}d}"
