"""Which partition an event goes to, and what the broker adds to it: its sender, its time, its key for compaction."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct

from nakadi.model.event_type import Category, EnrichmentStrategy, EventType, PartitionStrategy, Version
from nakadi.model.outcomes import Malformed
from nakadi.publishing.batch import Batch, BatchPiece, BatchRejected, MemberChange, PublishingStep, WorkBudget
from nakadi.schemas.values import NoValueAtPath, StepsExhausted, java_text, path_segments, value_at_path

# Partitions -----------------------------------------------------------------------------------------------------------


Event = Mapping[str, Any]

DrawRandomNumber = Callable[[], float]
"""Draws a number from 0 to below 1, each as likely as the other."""

KEYS_TOO_LONG_MESSAGE = (
    "The keys of this batch are too long to be hashed at once: publish fewer or smaller events at a time"
)

_PartitionChoice = tuple[int, str | None]
"""A partition, and the key that it was chosen by if there is one."""


class NoPartition(Exception):
    """Raised when an event does not hold what its partition is chosen by."""


def choose_partitions(
    event_type: EventType, events: Sequence[Event], draw_random_number: DrawRandomNumber, budget: WorkBudget
) -> tuple[list[int], list[str | None]]:
    """The partition of each event, and the key that it was chosen by if it was chosen by one.

    Raises `BatchRejected` at the first event that has no partition, or at which the work becomes too much.
    """
    partitions: list[int] = []
    keys: list[str | None] = []
    match event_type.partition_strategy:
        case PartitionStrategy.RANDOM:
            # Going through the events of a long batch parses them, so it is not done for nothing.
            number, of = len(events), event_type.timeline.partitions
            return [int(draw_random_number() * of) for _ in range(number)] if of > 1 else [0] * number, [None] * number
        case PartitionStrategy.USER_DEFINED:
            choose = _partition_chooser_by_metadata(event_type.partitions)
        case PartitionStrategy.HASH:
            choose = _partition_chooser_by_hash(event_type, budget)
    for event in events:
        try:
            partition, key = choose(event)
        except (NoPartition, StepsExhausted) as error:
            detail = str(error) if isinstance(error, NoPartition) else KEYS_TOO_LONG_MESSAGE
            index = len(partitions)
            raise BatchRejected(
                PublishingStep.PARTITIONING, index, detail, prior_step=PublishingStep.VALIDATING, partitions=partitions
            ) from error
        partitions.append(partition)
        keys.append(key)
    return partitions, keys


def _partition_chooser_by_metadata(partitions: tuple[str, ...]) -> Callable[[Event], _PartitionChoice]:
    numbers = {name: int(name) for name in partitions}

    def choose(event: Event) -> _PartitionChoice:
        metadata = event.get("metadata")
        wanted = metadata.get("partition") if isinstance(metadata, dict) else None
        if not isinstance(wanted, str):
            raise NoPartition("Failed to resolve partition. Failed to get partition from event metadata")
        if wanted not in numbers:
            raise NoPartition(
                f"Failed to resolve partition. Invalid partition specified when publishing event: {wanted}"
            )
        return numbers[wanted], None

    return choose


def _partition_chooser_by_hash(event_type: EventType, budget: WorkBudget) -> Callable[[Event], _PartitionChoice]:
    if not event_type.partition_key_fields:
        raise BatchRejected(PublishingStep.PARTITIONING, prior_step=PublishingStep.VALIDATING)
    fields = [field for field in event_type.partition_key_fields if field is not None]
    if len(fields) < len(event_type.partition_key_fields):
        return _refuse_null_key_field
    paths = key_paths(event_type.category, *fields)
    numbers = partitions_in_text_order(event_type.timeline.partitions)

    def choose(event: Event) -> _PartitionChoice:
        keys: list[str] = []
        work = 0
        for path in paths:
            try:
                value = value_at_path(event, path)
            except NoValueAtPath as error:
                raise NoPartition(str(error)) from error
            key = value if type(value) is str else java_text(value)
            keys.append(key)
            # A key may be as long as an event. The hash takes a step for each character, and to write one takes more.
            work += len(key) if key is value else 5 * len(key)
        budget.spend_steps(work)
        return numbers[abs(hash_of_keys(keys)) % len(numbers)], ",".join(keys)

    return choose


@lru_cache(maxsize=1000)
def key_paths(category: Category, *fields: str) -> Sequence[tuple[str, ...]]:
    """The names that lead to the values of key fields, which the clients of data events see without its envelope."""
    root = ("data",) if category is Category.DATA else ()
    return [(*root, *path_segments(field)) for field in fields]


def _refuse_null_key_field(_: Event) -> _PartitionChoice:
    """By a list of key fields with a null in it, which is a field that no event has."""
    raise NoPartition(str(NoValueAtPath("null")))


@lru_cache(maxsize=100)
def partitions_in_text_order(partitions: int) -> tuple[int, ...]:
    """The list that a hash points into: 0, 1, 10, 11, 2."""
    return tuple(sorted(range(partitions), key=str))


# The hash of a text ---------------------------------------------------------------------------------------------------

# Partitions chosen by hash must stay where they are when producers and consumers move over, so it is the one of Java.

_MASK_32_BITS = 0xFFFFFFFF
_HASH_BLOCK_LENGTH = 64


def java_string_hash(text: str) -> int:
    """`31 * hash + unit` over the UTF-16 code units, in 32 bits without sign."""
    units = _utf16_units(text)
    total = 0
    # Cutting down to 32 bits costs as much as the sum, and letting it grow costs more with every unit.
    for start in range(0, len(units), _HASH_BLOCK_LENGTH):
        for unit in units[start : start + _HASH_BLOCK_LENGTH]:
            total = 31 * total + unit
        total &= _MASK_32_BITS
    return total


def hash_of_keys(keys: Iterable[str]) -> int:
    return as_signed_32_bit(sum(map(java_string_hash, keys)))


def as_signed_32_bit(total: int) -> int:
    """What a sum is in 32 bits with a sign."""
    return ((total + 0x80000000) & _MASK_32_BITS) - 0x80000000


def _utf16_units(text: str) -> Sequence[int]:
    if text.isascii():
        return text.encode()
    packed = text.encode("utf-16-le")
    return struct.unpack(f"<{len(packed) // 2}H", packed)


# Metadata -------------------------------------------------------------------------------------------------------------


COMPACTION_KEY = "partition_compaction_key"

BROKER_METADATA_FIELDS = frozenset({"published_by", "received_at", "event_type", "version", "flow_id", "partition"})
"""The metadata that the broker adds. Most producers leave them to it."""


class BatchOrigin(Struct, frozen=True, kw_only=True):
    """What is the same for all events of a request."""

    published_by: str
    flow_id: str
    received_at: datetime
    schema_version: Version


def enriched_texts(event_type: EventType, batch: Batch, origin: BatchOrigin, partitions: Sequence[int]) -> list[bytes]:
    """The texts of the events as they are stored: as they came, but for their metadata."""
    if EnrichmentStrategy.METADATA not in event_type.enrichment_strategies:
        return batch.texts()
    stamp = metadata_stamp(event_type, origin)
    stamps = {each: {**stamp, "partition": str(each)} for each in set(partitions)}
    beginnings = {each: _beginning_of_object(added) for each, added in stamps.items()}
    texts: list[bytes] = []
    for piece in batch.in_pieces():
        changes = _metadata_changes(piece, stamps, beginnings, partitions, len(texts))
        texts += piece.texts_adding_to_member("metadata", changes)
    return texts


def metadata_stamp(event_type: EventType, origin: BatchOrigin) -> dict[str, str]:
    """What is added to the metadata of all events alike."""
    return {
        "published_by": origin.published_by,
        "received_at": timestamp_text(origin.received_at),
        "event_type": event_type.name,
        "version": str(origin.schema_version),
        "flow_id": origin.flow_id,
    }


def _metadata_changes(
    piece: BatchPiece,
    stamps: Mapping[int, Mapping[str, str]],
    beginnings: Mapping[int, bytes],
    partitions: Sequence[int],
    first: int,
) -> Iterator[MemberChange]:
    """How the metadata of each event differ as they are stored: as `at_once` stores them, the stamp stands first.

    They are made one at a time: each is written into a buffer of kilobytes, and many that stay leave as many holes.
    """
    for index, event in enumerate(piece.events, first):
        metadata = event.get("metadata")
        if type(metadata) is not dict:
            detail = "enrichment error"
            raise BatchRejected(
                PublishingStep.ENRICHING, index, detail, prior_step=PublishingStep.PARTITIONING, partitions=partitions
            )
        partition, sent = partitions[index], orjson.dumps(metadata)
        if metadata and BROKER_METADATA_FIELDS.isdisjoint(metadata):
            yield sent, beginnings[partition], None
            continue
        added = dict(stamps[partition])
        # What the client has said itself stays where it is.
        if metadata.get("event_type") == added["event_type"]:
            del added["event_type"]
        if metadata.get("flow_id"):
            del added["flow_id"]
        if metadata and added.keys().isdisjoint(metadata):
            yield sent, _beginning_of_object(added), None
        else:
            stamped = {**added, **{name: value for name, value in metadata.items() if name not in added}}
            yield sent, b"{", orjson.dumps(stamped)[1:]


def _beginning_of_object(members: Mapping[str, str]) -> bytes:
    """The text of an object that has these members first, up to the next one."""
    return orjson.dumps(members)[:-1] + b","


def timestamp_text(moment: datetime) -> str:
    """UTC with exactly three digits of a second's fraction."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def compaction_keys(events: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """The key of each event by which compaction keeps the newest; raises `Malformed` at the first that has none."""
    keys: list[str | None] = []
    for event in events:
        metadata = _required_member(event, "metadata")
        if not isinstance(metadata, dict):
            raise _malformed_event("metadata", "is not a JSONObject.")
        key = _required_member(metadata, COMPACTION_KEY)
        if not isinstance(key, str):
            raise _malformed_event(COMPACTION_KEY, "not a string.")
        keys.append(key)
    return keys


def _required_member(value: Mapping[str, Any], name: str) -> Any:
    if name not in value:
        raise _malformed_event(name, "not found.")
    return value[name]


def _malformed_event(name: str, problem: str) -> Malformed:
    return Malformed(f'Error occurred when parsing event(s). JSONObject["{name}"] {problem}')
