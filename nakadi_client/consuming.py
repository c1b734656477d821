"""The common parts of both consumers: requests, and the treatment of events that do not fit the type, or whose handling
fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, Literal

import msgspec

from nakadi_client.answers import Answer
from nakadi_client.batches import Batch
from nakadi_client.connections import Request, json_request, path
from nakadi_client.consumer_core import Action, Commit, ConsumerCore, Extend, Find, Look, Place, StreamOptions
from nakadi_client.decoding import Cursor, PoisonEvent
from nakadi_client.errors import NoAnswer, Poison
from nakadi_client.events import encode, new_eid

LOGGER = logging.getLogger("nakadi_client")

# Longer than the interval of the broker's keep-alives: `batch_flush_timeout`, and at most 25 to 30 s.
_SECONDS_OF_SILENCE = 45.0


class Park(msgspec.Struct, frozen=True):
    """Publish poison events to another event type, in the form of the broker's dead letters.

    The event type has to exist; the broker's own `nakadi.dead.letter.queue` works if the caller may write to it.
    """

    event_type: str


OnPoison = Literal["stop", "skip"] | Park | Callable[[PoisonEvent, Batch[Any]], None]


class Requests(msgspec.Struct, frozen=True):
    """The requests of the consumer of a subscription."""

    subscription: str
    options: StreamOptions
    compressed: bool = False

    def open(self, options: StreamOptions) -> Request:
        where = path("subscriptions", self.subscription, "events")
        encoding = {"Accept-Encoding": "gzip"} if self.compressed else {}
        parameters = options.parameters()
        if options.partitions:
            return json_request("POST", where, parameters, encoding)
        return Request("GET", where, None, encoding, parameters)

    def of(self, action: Action) -> Request:
        where = path("subscriptions", self.subscription, "cursors")
        if isinstance(action, Look):
            return Request("GET", where)
        if isinstance(action, Commit):
            return json_request("POST", where, {"items": action.cursors}, {"X-Nakadi-StreamId": action.stream_id})
        stream = path("subscriptions", self.subscription, "streams", action.stream_id)
        return Request("POST", f"{stream}/extend") if isinstance(action, Extend) else Request("DELETE", stream)

    def find(self, step: Find) -> Request:
        if step.event_type is None:
            return Request("GET", path("subscriptions", self.subscription))
        return Request("GET", path("event-types", step.event_type, "partitions"))

    def stats(self) -> Request:
        return Request("GET", path("subscriptions", self.subscription, "stats"))

    def park(self, park: Park, poison: PoisonEvent, batch: Batch[Any]) -> Request:
        record = {
            "subscription_id": self.subscription,
            "event_type": batch.event_type,
            "partition": batch.partition,
            "offset": batch.offset,
            "error": {"message": poison.error},
            "event": msgspec.Raw(poison.raw),
            "metadata": {"eid": new_eid(), "occurred_at": datetime.now(timezone.utc).isoformat()},
        }
        return json_request("POST", path("event-types", park.event_type, "events"), [record])

    @property
    def silence(self) -> float:
        """Seconds without a line after which a connection counts as dead."""
        return self.options.batch_flush_timeout + _SECONDS_OF_SILENCE


def lag_of(answer: Answer) -> Mapping[Place, int]:
    """Read the events that are not committed, by event type and partition, from a subscription's stats."""
    found = _STATS.decode(answer.body)
    return {
        (item.event_type, each.partition): each.unconsumed_events or 0
        for item in found.items
        for each in item.partitions
    }


def tell_count(core: ConsumerCore, answer: Answer | NoAnswer, now: float) -> None:
    """Tell the core how many events are not committed."""
    if isinstance(answer, NoAnswer) or answer.status != 200:
        core.handle_refusal(answer, now)
    else:
        core.handle_uncommitted_count(sum(lag_of(answer).values()))


def tell_found(core: ConsumerCore, step: Find, answer: Answer | NoAnswer, now: float) -> None:
    """Tell the core the event types of the subscription, or the newest offsets of one."""
    if isinstance(answer, NoAnswer) or answer.status >= 500 or answer.status in (408, 429):
        core.handle_refusal(answer, now)
    elif step.event_type is None:
        core.handle_event_types(_SUBSCRIPTION.decode(answer.body).event_types if answer.status == 200 else ())
    elif answer.status != 200:
        core.handle_newest_offsets(step.event_type, None)
    else:
        found = _PARTITIONS.decode(answer.body)
        offsets = {each.partition: each.newest_available_offset for each in found if each.has_events}
        core.handle_newest_offsets(step.event_type, offsets)


def committed_offsets(answer: Answer | NoAnswer) -> Mapping[Place, str]:
    """Read the committed offsets from the answer with a subscription's cursors; empty if there was no answer."""
    if isinstance(answer, NoAnswer) or answer.status != 200:
        return {}
    return {cursor.place: cursor.offset for cursor in _CURSORS.decode(answer.body).items}


def tell(core: ConsumerCore, action: Action, answer: Answer | NoAnswer, now: float) -> None:
    """Report the result of an action to the core."""
    if isinstance(action, Commit):
        core.handle_commit_answer(answer, now)
    elif isinstance(action, Extend):
        core.handle_extend_answer(answer, now)
    elif isinstance(action, Look):
        core.handle_committed_offsets(committed_offsets(answer))
    else:
        core.handle_leave_answer(answer)


def poison_of(event: Any, error: Exception) -> PoisonEvent:
    """Describe an event that a handler failed at."""
    return PoisonEvent(encode(event, None)[0], f"{type(error).__name__}: {error}")


def skip(poison: PoisonEvent, batch: Batch[Any]) -> None:
    """Log a skipped event."""
    LOGGER.warning("Skipped an event up to %s of %s: %s", batch.offset, batch.event_type, poison.error)


def is_parked(answer: Answer | NoAnswer) -> bool:
    """Whether a parked event is stored; if not, another attempt may help. Raises `Refused` if none can help."""
    if isinstance(answer, NoAnswer) or answer.status in (207, 408, 429) or answer.status >= 500:
        return False
    if answer.status != 200:
        raise answer.refusal()
    return True


def stop_at(poison: PoisonEvent, batch: Batch[Any]) -> Poison:
    """Create the exception that ends a consumer at a poison event."""
    return Poison(f"An event up to {batch.offset} of {batch.event_type}:{batch.partition}: {poison.error}")


class _PartitionStats(msgspec.Struct):
    partition: str
    unconsumed_events: int | None = None


class _TypeStats(msgspec.Struct):
    event_type: str
    partitions: list[_PartitionStats]


class _Stats(msgspec.Struct):
    items: list[_TypeStats]


class _Subscription(msgspec.Struct):
    event_types: list[str]


class _Partition(msgspec.Struct):
    partition: str
    oldest_available_offset: str
    newest_available_offset: str

    @property
    def has_events(self) -> bool:
        return self.oldest_available_offset <= self.newest_available_offset


class _Cursors(msgspec.Struct):
    items: list[Cursor]


_CURSORS = msgspec.json.Decoder(_Cursors)
_SUBSCRIPTION = msgspec.json.Decoder(_Subscription)
_PARTITIONS = msgspec.json.Decoder(list[_Partition])
_STATS = msgspec.json.Decoder(_Stats)
