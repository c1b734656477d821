"""The partition of an event, and the broker's additions to it: its sender, its time, and its key for compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from msgspec import UNSET, Struct

from nakadi.model.cloud_events import TRACE_MEMBER
from nakadi.model.event_type import Category, EventType, PartitionStrategy, Version
from nakadi.model.outcomes import Malformed
from nakadi.publishing.batch import (
    Batch,
    BatchRejected,
    Path,
    PublishingStep,
    WorkBudget,
    row_of_event,
)
from nakadi.schemas.document import COMPACTION_KEY
from nakadi.schemas.values import NoValueAtPath, StepsExhausted, java_text, path_segments

DrawRandomNumber = Callable[[], float]
"""Draws a number from 0 up to, but not including, 1; all numbers are equally likely."""

HashOrders = Mapping[int, Sequence[int]]
"""For a number of partitions, the order in which hashes select partitions, in place of the order of their names as
texts. Without an entry for a number, the order is not changed."""

KEYS_TOO_LONG_MESSAGE = (
    "The keys of this batch are too long to be hashed at once: publish fewer or smaller events at a time"
)

_STEPS_TO_WRITE_CHARACTER = 5
# Steps for hashed characters are spent in portions of this size.
_STEPS_SPENT_AT_ONCE = 1_000

NO_PARTITION_MESSAGE = "Failed to resolve partition. Failed to get partition from event metadata"
INVALID_PARTITION_MESSAGE = "Failed to resolve partition. Invalid partition specified when publishing event: {}"


def choose_partitions(
    event_type: EventType,
    batch: Batch,
    draw_random_number: DrawRandomNumber,
    budget: WorkBudget,
    hash_orders: HashOrders,
) -> tuple[list[int], list[str] | None]:
    """The partition of each event and, if keys determine the partitions, its key.

    Raises `BatchRejected` at the first event that has no partition, or at which the work becomes too much.
    """
    count, of = len(batch), event_type.timeline.partitions
    match event_type.partition_strategy:
        case PartitionStrategy.RANDOM:
            # Each pass over the events of a long batch parses them, so only necessary passes are made.
            return [int(draw_random_number() * of) for _ in range(count)] if of > 1 else [0] * count, None
        case PartitionStrategy.USER_DEFINED:
            return _wanted_partitions(event_type, batch), None
        case PartitionStrategy.HASH:
            return _partitions_by_hash(event_type, batch, budget, hash_orders)


def _partitioning_rejection(detail: str, partitions: Sequence[int]) -> BatchRejected:
    """The rejection of the first event without a chosen partition."""
    step, prior_step = PublishingStep.PARTITIONING, PublishingStep.VALIDATING
    return BatchRejected(step, len(partitions), detail, prior_step=prior_step, partitions=partitions)


def _wanted_partitions(event_type: EventType, batch: Batch) -> list[int]:
    """The partitions that events request in their metadata."""
    numbers = {name: int(name) for name in event_type.partitions}
    partitions: list[int] = []
    for (wanted,) in batch.rows_at((("metadata", "partition"),)):
        if not isinstance(wanted, str):
            raise _partitioning_rejection(NO_PARTITION_MESSAGE, partitions)
        if wanted not in numbers:
            raise _partitioning_rejection(INVALID_PARTITION_MESSAGE.format(wanted), partitions)
        partitions.append(numbers[wanted])
    return partitions


def _partitions_by_hash(
    event_type: EventType, batch: Batch, budget: WorkBudget, hash_orders: HashOrders
) -> tuple[list[int], list[str]]:
    if not event_type.partition_key_fields:
        raise BatchRejected(PublishingStep.PARTITIONING, prior_step=PublishingStep.VALIDATING)
    fields = [field for field in event_type.partition_key_fields if field is not None]
    partitions: list[int] = []
    keys: list[str] = []
    if len(fields) < len(event_type.partition_key_fields):
        if len(batch):
            raise _partitioning_rejection(str(NoValueAtPath("null")), ())  # no event has a field with this path
        return partitions, keys
    paths = key_paths(event_type.category, *fields)
    numbers = partition_order(event_type.timeline.partitions, hash_orders)
    work = 0
    for row in batch.rows_at(paths):
        try:
            texts, key = row, ",".join(row)
            work += len(key)
        except TypeError:  # not all keys are texts
            if UNSET in row:
                path = paths[row.index(UNSET)]
                raise _partitioning_rejection(
                    _missing_member_message(batch, len(partitions), path), partitions
                ) from None
            texts = tuple(map(java_text, row))
            key = ",".join(texts)
            work += _STEPS_TO_WRITE_CHARACTER * len(key)
        # A key may be as long as an event, and its hash takes a step for each character.
        if work > _STEPS_SPENT_AT_ONCE:
            _spend_steps_on_keys(budget, work, partitions)
            work = 0
        partitions.append(numbers[abs(hash_of_keys(texts)) % len(numbers)])
        keys.append(key)
    _spend_steps_on_keys(budget, work, partitions[:-1])
    return partitions, keys


def _spend_steps_on_keys(budget: WorkBudget, steps: int, partitions: Sequence[int]) -> None:
    try:
        budget.spend_steps(steps)
    except StepsExhausted as error:
        raise _partitioning_rejection(KEYS_TOO_LONG_MESSAGE, partitions) from error


def _missing_member_message(batch: Batch, index: int, path: Path) -> str:
    """The message that an event lacks the first missing member of a path."""
    prefixes = [path[:length] for length in range(1, len(path) + 1)]
    return str(NoValueAtPath(path[row_of_event(batch, index, prefixes).index(UNSET)]))


@lru_cache(maxsize=1000)
def key_paths(category: Category, *fields: str) -> Sequence[tuple[str, ...]]:
    """The paths to the values of key fields; clients of data events name them without the envelope."""
    root = ("data",) if category is Category.DATA else ()
    return [(*root, *path_segments(field)) for field in fields]


def partition_order(partitions: int, hash_orders: HashOrders) -> Sequence[int]:
    """The list of partitions into which a hash points, in this broker's order."""
    numbers = partitions_in_text_order(partitions)
    order = hash_orders.get(partitions)
    return [numbers[index] for index in order] if order else numbers


@lru_cache(maxsize=100)
def partitions_in_text_order(partitions: int) -> tuple[int, ...]:
    """The list of partitions into which a hash points: 0, 1, 10, 11, 2."""
    return tuple(sorted(range(partitions), key=str))


# This broker uses Java's hash, so that keys stay in their partitions when producers and consumers migrate from the
# original Nakadi.

_MASK_32_BITS = 0xFFFFFFFF
# The time in which `int` reads a number grows with the square of its length, so long texts are divided into blocks.
_HASH_BLOCK_LENGTH = 64

# The hash of a text is its bytes read as the digits of a number with the base 31. A byte is 31 times one digit plus
# another digit, so the text becomes two numbers that `int` can read: that takes a fifth of the time of a loop over the
# bytes.
_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_HIGH_DIGITS, _LOW_DIGITS = (bytes(_DIGITS[divmod(byte, 31)[part]] for byte in range(256)) for part in (0, 1))


def java_string_hash(text: str) -> int:
    """`31 * hash + unit` over the UTF-16 code units, in 32 bits without sign."""
    if text.isascii():
        return _hash_of_bytes(text.encode())
    units = text.encode("utf-16-le")
    return (256 * _hash_of_bytes(units[1::2]) + _hash_of_bytes(units[::2])) & _MASK_32_BITS


def _hash_of_bytes(data: bytes) -> int:
    if len(data) <= _HASH_BLOCK_LENGTH:
        return _hash_of_block(data or b"\0")
    total = 0
    for start in range(0, len(data), _HASH_BLOCK_LENGTH):
        block = data[start : start + _HASH_BLOCK_LENGTH]
        total = (total * 31 ** len(block) + _hash_of_block(block)) & _MASK_32_BITS
    return total


def _hash_of_block(data: bytes) -> int:
    return (31 * int(data.translate(_HIGH_DIGITS), 31) + int(data.translate(_LOW_DIGITS), 31)) & _MASK_32_BITS


def hash_of_keys(keys: Iterable[str]) -> int:
    return as_signed_32_bit(sum(map(java_string_hash, keys)))


def as_signed_32_bit(total: int) -> int:
    """A sum as a signed 32-bit integer."""
    return ((total + 0x80000000) & _MASK_32_BITS) - 0x80000000


class BatchOrigin(Struct, frozen=True, kw_only=True):
    """Values that all events of a request share."""

    published_by: str
    flow_id: str
    received_at: datetime
    schema_version: Version
    trace_context: Mapping[str, str] = {}


MetadataStamp = dict[str, str | Mapping[str, str]]


def metadata_stamp(event_type: EventType, origin: BatchOrigin) -> MetadataStamp:
    """The metadata that all events of a batch share."""
    stamp: MetadataStamp = {
        "published_by": origin.published_by,
        "received_at": timestamp_text(origin.received_at),
        "event_type": event_type.name,
        "version": str(origin.schema_version),
        "flow_id": origin.flow_id,
    }
    return stamp | {TRACE_MEMBER: origin.trace_context} if origin.trace_context else stamp


WRITTEN_BY_BROKER = ("event_type", "flow_id", "published_by", "received_at", "version")
"""The members that the broker adds to the metadata. If an event is published again, the broker replaces these."""


def timestamp_text(moment: datetime) -> str:
    """UTC with exactly three digits of a second's fraction."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def compaction_keys(batch: Batch) -> list[str]:
    """The compaction key of each event; raises `Malformed` at the first event that has none."""
    keys: list[str] = []
    for metadata, key in batch.rows_at((("metadata",), ("metadata", COMPACTION_KEY))):
        if type(key) is not str:
            raise _no_compaction_key_error(metadata, key)
        keys.append(key)
    return keys


def _no_compaction_key_error(metadata: Any, key: Any) -> Malformed:
    if metadata is UNSET:
        return _malformed_event("metadata", "not found.")
    if type(metadata) is not dict:
        return _malformed_event("metadata", "is not a JSONObject.")
    return _malformed_event(COMPACTION_KEY, "not found." if key is UNSET else "not a string.")


def _malformed_event(name: str, problem: str) -> Malformed:
    return Malformed(f'Error occurred when parsing event(s). JSONObject["{name}"] {problem}')
