"""Moves a subscription, which continues in the target with the first event that is not committed in the source.

Offsets differ between two brokers, so events are recognized by their eid. In each partition of the target, the
subscription begins with the first event that is not committed in the source. Committed events after that one are
delivered again. With the partition strategies `hash` and `user_defined`, and with one partition, there are no such
events, because both brokers have the same events in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nakadi_cli.api import Api, path
from nakadi_cli.failures import Conflict, Failed
from nakadi_cli.mirroring.events import BEGIN, identity, is_reached, read_batches
from nakadi_cli.mirroring.state import State

_KEPT = ("owning_application", "event_types", "consumer_group", "authorization", "annotations", "labels")


@dataclass(frozen=True)
class Move:
    """A moved subscription: its id in the target, the number of events that wait there, and the number of those that
    are delivered again.
    """

    subscription_id: str
    waiting: int
    doubled: int


def move_subscription(source: Api, target: Api, subscription_id: str, state: State) -> Move:
    """Create a subscription in the target with the position that it has in the source, which copied events must have
    reached. Raises `Conflict` if the subscription is still consumed."""
    where = path("subscriptions", subscription_id)
    subscription = source.get(where)
    _require_still(source, where)
    committed = _read_committed_offsets(source, where, subscription)
    cursors, waiting, doubled = [], 0, 0
    for name in subscription["event_types"]:
        if name not in state.event_types:
            raise Failed(f"{name} is not copied: --event-types leaves it out.")
        copied = state.progress_of(name).offsets
        if name not in committed:
            continue  # the subscription begins with the events after the opening of its first stream
        offsets = {partition: committed[name].get(partition, BEGIN) for partition in copied}
        _require_copied(name, offsets, copied)
        found = _first_of(target, name, _find_uncommitted_events(source, name, offsets))
        cursors += [{"event_type": name, "partition": each, "offset": at} for each, at in found.cursors.items()]
        waiting, doubled = waiting + found.waiting, doubled + found.doubled
    # Check that no consumer has committed meanwhile.
    _require_still(source, where)
    body = {key: subscription[key] for key in _KEPT if subscription.get(key) is not None}
    moved = target.post("/subscriptions", {**body, "read_from": "end"})["id"]
    if cursors:
        target.patch(path("subscriptions", moved) + "/cursors", {"items": cursors})
    return Move(moved, waiting, doubled)


def _read_committed_offsets(source: Api, where: str, subscription: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The committed offset of each partition, by event type. A partition that was never consumed has none, and begins
    as the subscription says; an event type is missing if it begins at its end.
    """
    items = (source.get(f"{where}/cursors") or {"items": []})["items"]
    if not items and subscription["read_from"] == "cursors":
        items = subscription["initial_cursors"]
    committed: dict[str, dict[str, str]] = {}
    for each in items:
        committed.setdefault(each["event_type"], {})[each["partition"]] = each["offset"]
    if not items and subscription["read_from"] == "begin":
        committed = {name: {} for name in subscription["event_types"]}
    return committed


def _require_still(source: Api, where: str) -> None:
    items = source.get(f"{where}/stats")["items"]
    if any(each.get("stream_id") for item in items for each in item["partitions"]):
        raise Conflict("The subscription is consumed in the source: stop its consumers first.")


def _require_copied(name: str, committed: Mapping[str, str], copied: Mapping[str, str]) -> None:
    for partition, offset in committed.items():
        if not is_reached(offset, copied.get(partition, BEGIN)):
            raise Conflict(f"{name} is not copied up to the cursor of partition {partition}: try again.")


def _find_uncommitted_events(source: Api, name: str, committed: Mapping[str, str]) -> frozenset[bytes]:
    """The identities of the source's events after the committed offsets. Some of them may not be copied yet."""
    return frozenset(
        identity(bytes(event))[0] for batch in read_batches(source, name, committed) for event in batch.events
    )


@dataclass
class _Found:
    cursors: dict[str, str]
    waiting: int = 0
    doubled: int = 0


def _first_of(target: Api, name: str, left: frozenset[bytes]) -> _Found:
    """For each partition of the target, the offset just before its first uncommitted event; and the numbers of events
    that wait after these offsets and of those that are delivered again.
    """
    known = target.get(path("event-types", name, "partitions"))
    found = _Found({each["partition"]: BEGIN for each in known})
    begun: set[str] = set()
    met: set[bytes] = set()
    for batch in read_batches(target, name, dict(found.cursors)):
        partition = batch.partition
        keys = [identity(bytes(event))[0] for event in batch.events]
        if partition not in begun:
            first = next((number for number, key in enumerate(keys) if key in left), None)
            if first is None:
                found.cursors[partition] = batch.offset
                continue
            begun.add(partition)
            # A batch contains only the offset of its last event.
            found.cursors[partition] = _offset_after(target, name, partition, found.cursors[partition], first)
            keys = keys[first:]
        new = {key for key in keys if key in left} - met
        met |= new
        found.waiting += len(new)
        found.doubled += len(keys) - len(new)
    return found


def _offset_after(target: Api, name: str, partition: str, before: str, count: int) -> str:
    """The offset of the `count`-th event after the offset `before`; `before` itself if `count` is 0."""
    if count == 0:
        return before
    for number, batch in enumerate(read_batches(target, name, {partition: before}, 1), 1):
        if number == count:
            return batch.offset
    raise Failed(f"The events of {name} have changed meanwhile: try again.")
