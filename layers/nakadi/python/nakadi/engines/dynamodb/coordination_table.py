"""Items of a table that hold the shared state of subscriptions, and calls that are repeated until their outcome is
known."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import DoesNotExist
from pynamodb.expressions.condition import Condition
from pynamodb.expressions.update import Action
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from nakadi.engines.common.assignment_json import assignment_from_json, assignment_json
from nakadi.engines.dynamodb.client import CallRetryPolicy, transaction_attempt
from nakadi.engines.dynamodb.table_address import TableAddress, connect, model_meta
from nakadi.engines.dynamodb.tables import COORDINATION_TABLE
from nakadi.model.event_type import Position
from nakadi.model.events import datetime_from_microseconds, microseconds_since_epoch
from nakadi.model.outcomes import Invalid, Unavailable
from nakadi.model.subscription import Assignment, CommittedOffset, EventTypePartition, OffsetRange

ASSIGNMENT_SORT_KEY = "assignment"
OFFSET_SORT_KEY_PREFIX = "offset#"
LEASES_KEY = "leases"
CHANGES_KEY = "news"

# After a refused commit, the item is read; if it now allows the commit, the commit is repeated, up to this many times.
MAX_COMMIT_ATTEMPTS = 5

# One write unit pays for an item of about this size, keys and names included, so longer texts are compressed.
MAX_BYTES_STORED_UNCOMPRESSED = 900

# DynamoDB accepts items of up to 400 KB, including all names and keys.
MAX_ITEM_BYTES = 390_000

# How long reports of changes and leases stay: by then, watchers have read the reports, and a lease has expired even by
# a clock that was set back by hours. DynamoDB removes these items some time later.
CHANGE_RETENTION_SECONDS = 3600
LEASE_RETENTION_SECONDS = 24 * 3600


class CoordinationItem(Model):
    """One partition key holds a subscription's assignment and offsets. Other partition keys hold its parked events and
    their large values, by position; all leases, by holder; and all reports of changes, by time.
    """

    Meta = model_meta(COORDINATION_TABLE)  # every engine has a model with the full name of its table

    partition_key = UnicodeAttribute(hash_key=True, attr_name="place")
    sort_key = UnicodeAttribute(range_key=True, attr_name="item")

    # Attributes of an assignment: its JSON is in `body` or, compressed, in `packed`.
    revision = NumberAttribute(null=True)
    body = UnicodeAttribute(null=True)
    packed = BinaryAttribute(null=True, legacy_encoding=False)

    # Attributes of an offset. `previously_changed_at` is the time of the last change but one; `token` identifies the
    # last commit.
    timeline = NumberAttribute(null=True)
    position = NumberAttribute(null=True)
    owner = UnicodeAttribute(null=True)
    changed_at = NumberAttribute(null=True, attr_name="since")
    previously_changed_at = NumberAttribute(null=True, attr_name="before")
    token = UnicodeAttribute(null=True)
    # The events done ahead of the position, as JSON; most offsets have none.
    done_ahead = BinaryAttribute(null=True, legacy_encoding=False, attr_name="ahead")

    # Attributes of a parked event: its description is in `body`, and its value in `packed`, or in this number of
    # `pieces` with its token.
    pieces = NumberAttribute(null=True)

    # Attributes of a lease: its end, and when its holder requested it, by the holder's steady clock.
    leased_until = NumberAttribute(null=True, attr_name="until")
    requested_at = NumberAttribute(null=True, attr_name="asked")

    # Attributes of a report of a change: the subscription, the changed part, and the reporting process.
    subscription = UnicodeAttribute(null=True, attr_name="about")
    change = UnicodeAttribute(null=True, attr_name="changed")
    reporter = UnicodeAttribute(null=True, attr_name="teller")

    # When DynamoDB may remove the item, in seconds since 1970.
    expires = NumberAttribute(null=True)


def subscription_key(subscription: str) -> str:
    return f"subscription#{subscription}"


def offset_sort_key(partition: EventTypePartition) -> str:
    return f"{OFFSET_SORT_KEY_PREFIX}{partition.event_type}#{partition.partition}"


def partition_in_sort_key(sort_key: str) -> EventTypePartition:
    event_type, _, partition = sort_key.removeprefix(OFFSET_SORT_KEY_PREFIX).rpartition("#")
    return EventTypePartition(event_type, partition)


def assignment_attributes(assignment: Assignment) -> Mapping[str, Any]:
    """The attributes that hold an assignment. Raises `Invalid` for one that no item can hold."""
    text = assignment_json(assignment)
    if len(text) <= MAX_BYTES_STORED_UNCOMPRESSED:
        return {"revision": assignment.revision, "body": text}
    packed = zlib.compress(text.encode())
    if len(packed) > MAX_ITEM_BYTES:
        raise Invalid(f"Too many streams share too many partitions: {len(packed)} bytes of {MAX_ITEM_BYTES} possible")
    return {"revision": assignment.revision, "packed": packed}


def assignment_from_item(item: CoordinationItem) -> Assignment:
    text = item.body if item.packed is None else zlib.decompress(item.packed)
    return assignment_from_json(text, int(item.revision))


_ranges = msgspec.json.Decoder(tuple[OffsetRange, ...])


def offset_from_item(item: CoordinationItem) -> CommittedOffset:
    return CommittedOffset(
        Position(int(item.timeline), int(item.position)),
        item.owner,
        datetime_from_microseconds(int(item.changed_at)),
        () if item.done_ahead is None else _ranges.decode(zlib.decompress(item.done_ahead)),
    )


def done_ahead_action(ranges: Sequence[OffsetRange]) -> Action:
    return CoordinationItem.done_ahead.set(zlib.compress(msgspec.json.encode(ranges)))


def lease_attributes(until: datetime, requested_at: int) -> Mapping[str, Any]:
    return {
        "leased_until": microseconds_since_epoch(until),
        "requested_at": requested_at,
        "expires": int(until.timestamp()) + LEASE_RETENTION_SECONDS,
    }


def commit_condition(session: str, position: Position) -> Condition:
    """The condition on which a session may commit."""
    item = CoordinationItem
    same, earlier = item.timeline == position.timeline, item.timeline < position.timeline
    condition: Condition = (item.owner == session) & (earlier | (same & (item.position < position.offset)))
    return condition


def commit_actions(position: Position, committed_at: int) -> list[Action]:
    item = CoordinationItem
    return [
        item.previously_changed_at.set(item.changed_at),
        item.timeline.set(position.timeline),
        item.position.set(position.offset),
        item.changed_at.set(committed_at),
    ]


def assignment_change_actions(
    owner: str | None, position: Position | None, now: datetime, *, is_consumed_again: bool
) -> list[Action]:
    """The update of an offset by a change of the assignment: a new owner, or none, and perhaps a new position."""
    item, since = CoordinationItem, microseconds_since_epoch(now)
    moved = [item.changed_at.set(since)]
    if position is not None:
        moved += [item.timeline.set(position.timeline), item.position.set(position.offset)]
    if is_consumed_again:
        moved.append(item.done_ahead.remove())
    return [item.owner.remove() if owner is None else item.owner.set(owner), *moved]


class CoordinationTable:
    """The table of the coordination. Reads see every write that returned before they began."""

    def __init__(self, address: TableAddress, attempts: CallRetryPolicy) -> None:
        self.items = address.bind_model(CoordinationItem, COORDINATION_TABLE)
        self.attempts = attempts
        self._closed = False
        self._connection = connect(self.items)
        self._client = self._connection.client

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable("The coordination is closed.")

    def find_item(self, partition_key: str, sort_key: str) -> CoordinationItem | None:
        self.check_open()

        def attempt(_: bool) -> CoordinationItem | None:
            try:
                return self.items.get(partition_key, sort_key, consistent_read=True)
            except DoesNotExist:
                return None

        return self.attempts.call_with_retries(attempt)

    def list_items(
        self, partition_key: str, condition: Condition | None = None, *, limit: int | None = None
    ) -> Iterator[CoordinationItem]:
        """List items one by one, and retry each page that fails."""
        self.check_open()
        results = self.items.query(partition_key, range_key_condition=condition, consistent_read=True, limit=limit)
        while (item := self.attempts.call_with_retries(lambda _: next(results, None))) is not None:
            yield item

    def remove_items(self, partition_key: str, sort_keys: Iterable[str]) -> None:
        """Remove items, whether they exist or not."""
        self.check_open()
        rest = iter(sort_keys)
        while some := list(islice(rest, 100)):

            def attempt(_: bool, some: list[str] = some) -> None:
                with self.items.batch_write() as batch:
                    for sort_key in some:
                        batch.delete(self.items(partition_key, sort_key))

            self.attempts.call_with_retries(attempt)

    def transact(self, add_changes: Callable[[TransactWrite], None]) -> bool:
        """Make all changes that are added, or none because a condition does not hold."""
        self.check_open()
        return self.attempts.call_with_retries(transaction_attempt(add_changes, self._connection))

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def refuse_calls(self) -> None:
        self._closed = True
