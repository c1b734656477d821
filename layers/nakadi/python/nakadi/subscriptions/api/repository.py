"""The registered subscriptions: finds them, and writes them so that keys stay unique and event types exist.

There are four kinds of documents: the subscription; its key, which makes it the only one of its kind; a line for each
of its event types, by which it is found; and a mark for each event type, rewritten whenever a subscription to the event
type begins, so that the deletion of the event type notices a subscription that begins meanwhile.

The order of the ids is the order of creation, the newest first, so a page by offset costs one read of its own
subscriptions and of those before it.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import orjson
from msgspec import to_builtins
from msgspec.structs import replace

from nakadi.common.caching import Cache
from nakadi.common.converting import Converter
from nakadi.event_types.repository import EVENT_TYPES_KIND as EVENT_TYPES
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Conflict, NotFound
from nakadi.model.subscription import Subscription
from nakadi.ports.clock import Clock
from nakadi.ports.registry import (
    ABSENT_REVISION,
    ChangedMeanwhile,
    CheckRevision,
    Document,
    DocumentChange,
    PutDocument,
    Registry,
    RemoveDocument,
)

SUBSCRIPTIONS_KIND = "subscriptions"
SUBSCRIPTION_KEYS_KIND = "subscription-keys"
SUBSCRIPTIONS_BY_EVENT_TYPE_KIND = "subscription-lines"
NEW_SUBSCRIPTION_MARKS_KIND = "subscription-marks"
DELETED_SUBSCRIPTIONS_KIND = "subscription-leftovers"
SINKS_KIND, DELIVERY_REPORTS_KIND, FRESHNESS_REPORTS_KIND = "sinks", "sink-reports", "freshness-reports"
COMPANION_KINDS = (SINKS_KIND, DELIVERY_REPORTS_KIND, FRESHNESS_REPORTS_KIND)
"""The kinds of documents about one subscription, under its id, which are removed with it."""

SUBSCRIPTIONS_PER_QUERY = 1000
MAX_CHANGES_PER_WRITE = 99

# A subscription may have too many lines, one for each event type, for one write. Then lines are written before the
# subscription. If a line without a subscription is older than this, the write of the subscription has failed.
MAX_CREATION_TIME = timedelta(minutes=1)

KEY_TAKEN_MESSAGE = "Subscription with the same key properties already exists"


class Subscriptions:
    def __init__(self, registry: Registry, cache: Cache[str, Subscription], clock: Clock) -> None:
        self._registry = registry
        self._cache = cache
        self.cached: Callable[[str], Subscription] = partial(cache.get, read_value=self.get)
        """Returns a subscription, possibly as it was a moment ago. Changes by this process are visible at once."""
        self._clock = clock

    # Reading

    def find(self, subscription_id: str) -> Subscription | None:
        document = self._registry.get(SUBSCRIPTIONS_KIND, subscription_id)
        return None if document is None else subscription_from_document(document)

    def get(self, subscription_id: str) -> Subscription:
        subscription = self.find(subscription_id)
        if subscription is None:
            raise subscription_not_found(subscription_id)
        return subscription

    def find_by_uniqueness_key(self, key: str) -> Subscription | None:
        """The subscription with this key, which `uniqueness_key` makes of application, event types and group."""
        document = self._registry.get(SUBSCRIPTION_KEYS_KIND, key)
        return None if document is None else self.find(document.body["id"])

    def newest_first(self, *, after: str = "", event_type: str | None = None) -> Iterator[Subscription]:
        """All subscriptions, or those of an event type, in the order of their ids, beginning after the id `after`."""
        if event_type is not None:
            yield from self._subscriptions_to_event_type(event_type, after)
            return
        while page := self._registry.list(SUBSCRIPTIONS_KIND, after=after, limit=SUBSCRIPTIONS_PER_QUERY):
            yield from map(subscription_from_document, page)
            after = page[-1].key

    def of_event_type(self, event_type: str) -> Sequence[Subscription]:
        return list(self._subscriptions_to_event_type(event_type, ""))

    def _subscriptions_to_event_type(self, event_type: str, after: str) -> Iterator[Subscription]:
        for subscription_id in self._ids_by_event_type(event_type, after):
            found = self.find(subscription_id)
            if found is not None:
                yield found

    def _ids_by_event_type(self, event_type: str, after: str = "") -> Iterator[str]:
        prefix = f"{event_type}/"
        while page := self._registry.list(
            SUBSCRIPTIONS_BY_EVENT_TYPE_KIND, prefix=prefix, after=prefix + after, limit=SUBSCRIPTIONS_PER_QUERY
        ):
            for line in page:
                after = line.key.removeprefix(prefix)
                yield after

    # Writing

    def add(self, subscription: Subscription, event_types: Sequence[EventType]) -> Subscription:
        """Register a subscription to event types that are unchanged since they were read.

        Raises `Conflict` if a subscription with the same key exists meanwhile, and `ChangedMeanwhile` if an event type
        has changed.
        """
        key = PutDocument(
            SUBSCRIPTION_KEYS_KIND,
            _key_of_subscription(subscription),
            {"id": subscription.id},
            expected_revision=ABSENT_REVISION,
        )
        changes: list[DocumentChange] = [
            key,
            PutDocument(
                SUBSCRIPTIONS_KIND, subscription.id, subscription_body(subscription), expected_revision=ABSENT_REVISION
            ),
        ]
        changes += (change for each in event_types for change in self._changes_to_subscribe(subscription, each))
        try:
            for part in _batches_of_changes(changes):
                self._registry.write(*part)
        except ChangedMeanwhile as error:
            if len(changes) > MAX_CHANGES_PER_WRITE:
                self._write_in_batches(
                    [
                        RemoveDocument(
                            SUBSCRIPTIONS_BY_EVENT_TYPE_KIND, _event_type_index_key(each.name, subscription.id)
                        )
                        for each in event_types
                    ]
                )
            if error.change is key:
                raise Conflict(KEY_TAKEN_MESSAGE) from error
            raise
        return replace(subscription, revision=1)

    def _changes_to_subscribe(self, subscription: Subscription, event_type: EventType) -> Sequence[DocumentChange]:
        """The changes and conditions which ensure that the event type still exists, that its deletion notices the
        subscription, and that the subscription can be found by its event type.
        """
        began = {"at": self._clock.now().isoformat()}
        return (
            CheckRevision(EVENT_TYPES, event_type.name, expected_revision=event_type.revision),
            PutDocument(NEW_SUBSCRIPTION_MARKS_KIND, event_type.id, {}),
            PutDocument(
                SUBSCRIPTIONS_BY_EVENT_TYPE_KIND, _event_type_index_key(event_type.name, subscription.id), began
            ),
        )

    def replace(self, old: Subscription, new: Subscription) -> Subscription:
        """Store `new` if `old` was not changed meanwhile; otherwise raise `ChangedMeanwhile`."""
        try:
            self._registry.write(
                PutDocument(SUBSCRIPTIONS_KIND, old.id, subscription_body(new), expected_revision=old.revision)
            )
        finally:
            self._cache.invalidate(old.id)
        return replace(new, revision=old.revision + 1)

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription, and add a note that its assignment and offsets remain to be cleared. Raises
        `ChangedMeanwhile`.
        """
        try:
            self._write_in_batches(changes_to_remove(subscription))
        finally:
            self._cache.invalidate(subscription.id)

    # Event types that are about to be deleted

    def no_new_subscription_condition(self, event_type: EventType) -> DocumentChange:
        """The change that makes a write fail if a subscription to the event type has begun since.

        Get this change before you look for subscriptions to the event type.
        """
        document = self._registry.get(NEW_SUBSCRIPTION_MARKS_KIND, event_type.id)
        return RemoveDocument(
            NEW_SUBSCRIPTION_MARKS_KIND,
            event_type.id,
            expected_revision=ABSENT_REVISION if document is None else document.revision,
        )

    def is_being_subscribed(self, event_type: str) -> bool:
        """Whether a subscription to the event type may be in the middle of its creation, so that only its line is
        stored so far.
        """
        now = self._clock.now()
        return any(
            # A line whose time is more than a minute in the future was written before a clock was set back; it counts
            # as old.
            abs(now - datetime.fromisoformat(line.body["at"])) < MAX_CREATION_TIME
            and self.find(line.key.rpartition("/")[2]) is None
            for line in self._registry.list(SUBSCRIPTIONS_BY_EVENT_TYPE_KIND, prefix=f"{event_type}/")
        )

    # The remains of deleted subscriptions

    def deleted_subscription_ids(self) -> Sequence[str]:
        return [note.key for note in self._registry.list(DELETED_SUBSCRIPTIONS_KIND)]

    def remove_deletion_note(self, subscription_id: str) -> None:
        self._registry.write(RemoveDocument(DELETED_SUBSCRIPTIONS_KIND, subscription_id))
        self._cache.invalidate(subscription_id)

    def _write_in_batches(self, changes: Sequence[DocumentChange]) -> None:
        for start in range(0, len(changes), MAX_CHANGES_PER_WRITE):
            self._registry.write(*changes[start : start + MAX_CHANGES_PER_WRITE])


def changes_to_remove(subscription: Subscription) -> tuple[DocumentChange, ...]:
    """The changes that remove a subscription and note its remaining state, the most important ones first."""
    return (
        RemoveDocument(SUBSCRIPTIONS_KIND, subscription.id, expected_revision=subscription.revision),
        RemoveDocument(SUBSCRIPTION_KEYS_KIND, _key_of_subscription(subscription)),
        PutDocument(DELETED_SUBSCRIPTIONS_KIND, subscription.id, {}),
        *(RemoveDocument(kind, subscription.id) for kind in COMPANION_KINDS),
        *(
            RemoveDocument(SUBSCRIPTIONS_BY_EVENT_TYPE_KIND, _event_type_index_key(each, subscription.id))
            for each in subscription.event_types
        ),
    )


def _batches_of_changes(changes: Sequence[DocumentChange]) -> Iterator[Sequence[DocumentChange]]:
    """The changes, divided into writes. The last changes come in the first write, so the subscription itself is stored
    last. The three changes for an event type stay in one write.
    """
    while len(changes) > MAX_CHANGES_PER_WRITE:
        yield changes[-MAX_CHANGES_PER_WRITE:]
        changes = changes[:-MAX_CHANGES_PER_WRITE]
    yield changes


def subscription_not_found(subscription_id: str) -> NotFound:
    return NotFound(f'Subscription with id "{subscription_id}" does not exist')


def _key_of_subscription(subscription: Subscription) -> str:
    return uniqueness_key(subscription.owning_application, subscription.event_types, subscription.consumer_group)


def _event_type_index_key(event_type: str, subscription_id: str) -> str:
    return f"{event_type}/{subscription_id}"


_subscriptions = Converter(Subscription)


def subscription_body(subscription: Subscription) -> Mapping[str, Any]:
    body = to_builtins(subscription)
    # The key and the revision of a document are not in its body.
    del body["id"], body["revision"]
    return dict(body)


def subscription_from_document(document: Document) -> Subscription:
    return _subscriptions.from_builtins({**document.body, "id": document.key, "revision": document.revision})


_RANDOM_BITS = 74  # these and 48 bits of milliseconds are all free bits of a UUID
_LAST_MILLISECOND = (1 << 48) - 1
_RANDOM_STEP_BITS = 64


class SubscriptionIds:
    """Creates the ids of subscriptions.

    Each is a UUID that cannot be guessed, and is less than all earlier ones: in the order of ids, the newest
    subscription comes first. For ids of different processes, this order is exact to the millisecond. Within a process,
    it is always exact: for ids of one millisecond, for all threads, and while a clock that was set back is behind.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = (_LAST_MILLISECOND + 1) << _RANDOM_BITS

    def new_id(self, created_at: datetime) -> str:
        milliseconds = _LAST_MILLISECOND - int(created_at.timestamp() * 1000)
        wanted = (milliseconds << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
        with self._lock:
            if wanted >= self._last:
                wanted = self._last - 1 - secrets.randbits(_RANDOM_STEP_BITS)
            self._last = wanted
        return str(_as_uuid(wanted))


def _as_uuid(number: int) -> UUID:
    """A UUID of version 8, in which all bits but its version and variant are free."""
    high, middle, low = number >> 74, (number >> 62) & 0xFFF, number & ((1 << 62) - 1)
    return UUID(int=(high << 80) | (8 << 76) | (middle << 64) | (2 << 62) | low)


def uniqueness_key(owning_application: str, event_types: Iterable[str], consumer_group: str) -> str:
    """The key that no two subscriptions may share."""
    identity = orjson.dumps([owning_application, sorted(set(event_types)), consumer_group])
    return hashlib.sha256(identity).hexdigest()
