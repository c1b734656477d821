"""Which partition an event goes to, by the strategy of its event type."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from nakadi.model.event_type import Category, EventType, PartitionStrategy
from nakadi.publishing.batch import Effort
from nakadi.publishing.outcome import Rejected, Step
from nakadi.schemas.values import Exhausted, NoSuchField, segments, text_of, value_at

Event = Mapping[str, Any]

Draw = Callable[[], float]
"""A number from 0 to below 1, each as likely as the other."""

Place = tuple[int, str | None]
"""A partition, and the key fields' values by which it was chosen if it was chosen by key."""

TOO_MUCH = "The keys of this batch are too long to be hashed at once: publish fewer or smaller events at a time"


class Unplaceable(Exception):
    """Raised when an event does not hold what its partition is chosen by."""


Placing = Callable[[Event], Place]


def placed(event_type: EventType, events: Sequence[Event], draw: Draw, effort: Effort) -> list[Place]:
    """A place for each event; raises `Rejected` at the first that has none, or at which the work becomes too much."""
    place = placing(event_type, draw, effort)
    if event_type.partition_strategy is PartitionStrategy.RANDOM:
        # Going through the events of a long batch parses them, so it is not done for nothing.
        return [place({}) for _ in range(len(events))]
    places: list[Place] = []
    for index, event in enumerate(events):
        try:
            places.append(place(event))
        except (Unplaceable, Exhausted) as error:
            detail = str(error) if isinstance(error, Unplaceable) else TOO_MUCH
            chosen = [partition for partition, _ in places]
            raise Rejected(Step.PARTITIONING, index, detail, reached=Step.VALIDATING, partitions=chosen) from error
    return places


def placing(event_type: EventType, draw: Draw, effort: Effort) -> Placing:
    """How the events of this type find their partition."""
    match event_type.partition_strategy:
        case PartitionStrategy.RANDOM:
            return _at_random(event_type.timeline.partitions, draw)
        case PartitionStrategy.USER_DEFINED:
            return _as_told(event_type.partitions)
        case PartitionStrategy.HASH:
            return _by_key(event_type, effort)


def _at_random(partitions: int, draw: Draw) -> Placing:
    if partitions == 1:
        return lambda _: (0, None)
    return lambda _: (int(draw() * partitions), None)


def _as_told(partitions: tuple[str, ...]) -> Placing:
    numbers = {name: int(name) for name in partitions}

    def place(event: Event) -> Place:
        metadata = event.get("metadata")
        told = metadata.get("partition") if isinstance(metadata, dict) else None
        if not isinstance(told, str):
            raise Unplaceable("Failed to resolve partition. Failed to get partition from event metadata")
        if told not in numbers:
            raise Unplaceable(f"Failed to resolve partition. Invalid partition specified when publishing event: {told}")
        return numbers[told], None

    return place


def _by_key(event_type: EventType, effort: Effort) -> Placing:
    if not event_type.partition_key_fields:
        raise Rejected(Step.PARTITIONING, reached=Step.VALIDATING)
    fields = [field for field in event_type.partition_key_fields if field is not None]
    if len(fields) < len(event_type.partition_key_fields):
        return _by_no_name
    root = ("data",) if event_type.category is Category.DATA else ()
    paths = [(*root, *segments(field)) for field in fields]
    numbers = _in_order_of_texts(event_type.timeline.partitions)

    def place(event: Event) -> Place:
        try:
            values = [value_at(event, path) for path in paths]
        except NoSuchField as error:
            raise Unplaceable(str(error)) from error
        keys = [value if type(value) is str else text_of(value) for value in values]
        # A key may be as long as an event. The hash takes a step for each character, and to write one takes some more.
        effort.spend(sum(len(key) if key is value else 5 * len(key) for key, value in zip(keys, values, strict=True)))
        total = signed(sum(map(string_hash, keys)))
        return numbers[abs(total) % len(numbers)], ",".join(keys)

    return place


def _by_no_name(_: Event) -> Place:
    """The place by a list of fields with a null in it."""
    raise Unplaceable(str(NoSuchField("null")))


@lru_cache(maxsize=100)
def _in_order_of_texts(partitions: int) -> tuple[int, ...]:
    """The list that a hash points into: 0, 1, 10, 11, 2."""
    return tuple(sorted(range(partitions), key=str))


# The hash of a text -------------------------------------------------------------------------------------------------

# Partitions chosen by hash must stay where they are when producers and consumers move over, so it is the one of Java.


_MASK = 0xFFFFFFFF
_BLOCK = 64


def string_hash(text: str) -> int:
    """`31 * hash + unit` over the UTF-16 code units, in 32 bits without sign."""
    units = _utf16(text)
    total = 0
    # Cutting down to 32 bits costs as much as the sum, and letting it grow costs more with every unit.
    for start in range(0, len(units), _BLOCK):
        for unit in units[start : start + _BLOCK]:
            total = 31 * total + unit
        total &= _MASK
    return total


def signed(total: int) -> int:
    """What a sum is in 32 bits with a sign."""
    return ((total + 0x80000000) & _MASK) - 0x80000000


def _utf16(text: str) -> Sequence[int]:
    if text.isascii():
        return text.encode()
    packed = text.encode("utf-16-le")
    return struct.unpack(f"<{len(packed) // 2}H", packed)
