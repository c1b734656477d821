"""The quick way of a batch: events that are valid and need nothing unusual are prepared at once, as they came.

Most batches are like this. Their text is neither parsed to objects nor written again. What this way declines may be
valid all the same, and is left to the thorough one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec
import orjson
from msgspec import UNSET

from nakadi.model.event_type import EnrichmentStrategy, EventType, PartitionStrategy
from nakadi.model.events import Record, RecordLines
from nakadi.publishing.batch import (
    ARRAY_DECODER,
    DEFAULT_LIMITS,
    MAX_BATCH_PIECE_BYTES,
    MAX_BATCH_PIECE_MEMORY_BYTES,
    MAX_EVENT_MEMORY_BYTES,
    MAX_PARSED_EVENT_BYTES,
    STEPS_WITHOUT_TURN,
    BatchLimits,
)
from nakadi.publishing.enrichment import (
    BatchOrigin,
    DrawRandomNumber,
    as_signed_32_bit,
    hash_of_keys,
    java_string_hash,
    key_paths,
    metadata_stamp,
    partitions_in_text_order,
)
from nakadi.schemas.batch_decoder import METADATA_MEMBER_PREFIX, DecodedBatch, UsualMetadata
from nakadi.schemas.strict_json import estimate_parsed_memory

# Bodies ---------------------------------------------------------------------------------------------------------------


# A body up to this long is parsed at once whatever it holds: at worst that takes 6 MB.
SHORT_BODY_BYTES = 128 * 1024
# What there is of each event beside its text and its parsed form: a view of the text at first, then a record.
_EVENT_OVERHEAD_BYTES = 500


def is_parsed_at_once(body: bytes) -> bool:
    """Whether the events of a body need not be parsed a piece at a time."""
    return len(body) <= SHORT_BODY_BYTES or (
        len(body) <= MAX_BATCH_PIECE_BYTES and estimate_parsed_memory(body) <= MAX_BATCH_PIECE_MEMORY_BYTES
    )


def estimate_batch_memory(body: bytes, limits: BatchLimits = DEFAULT_LIMITS) -> int:
    """About how much memory is needed to read a body and to store its events, beside the body itself, at most."""
    if len(body) <= SHORT_BODY_BYTES:
        return 10 * len(body)  # what is usual; counting would take longer than the little that it may be short of
    events = min(body.count(b"{"), limits.max_events)
    parsed = min(4 * len(body) + estimate_parsed_memory(body), 4 * MAX_PARSED_EVENT_BYTES + MAX_EVENT_MEMORY_BYTES)
    return 3 * len(body) + _EVENT_OVERHEAD_BYTES * events + parsed


# Records --------------------------------------------------------------------------------------------------------------


_ENCODER = msgspec.json.Encoder()
_type_of, _flow_id_of = attrgetter("event_type"), attrgetter("flow_id")


def partitions_and_records_or_none(
    event_type: EventType, batch: DecodedBatch, origin: BatchOrigin, draw_random_number: DrawRandomNumber
) -> tuple[Sequence[int], Mapping[int, Sequence[Record]]] | None:
    """The partition of each event, and the records of each partition.

    None if what is added to their metadata differs in more than the partition, or if their keys are none or unusual.

    What is added to all events of a partition is put in by one replacement in the text of all of them.
    """
    stamp: Mapping[str, str] | None = None
    if EnrichmentStrategy.METADATA in event_type.enrichment_strategies:
        stamp = _metadata_to_add(event_type, origin, batch.metadata)
        if stamp is None:
            return None
    chosen = _partitions_and_keys_or_none(event_type, batch, draw_random_number)
    if chosen is None:
        return None
    partitions, keys = chosen
    keys_of: defaultdict[int, list[str]] = defaultdict(list)
    for each, key in zip(partitions, keys or (), strict=False):
        keys_of[each].append(key)
    found: dict[int, Sequence[Record]] = {}
    for partition, sent, number in _lines_of_partitions(batch, partitions):
        lines = sent
        if stamp is not None:
            added = orjson.dumps({**stamp, "partition": str(partition)})[1:-1] + b","
            lines = sent.replace(METADATA_MEMBER_PREFIX, METADATA_MEMBER_PREFIX + added)
            if len(lines) != len(sent) + number * len(added):
                return None
        found[partition] = (
            RecordLines(lines, number) if keys is None else list(map(Record, lines.split(b"\n"), keys_of[partition]))
        )
    return partitions, found


def _lines_of_partitions(batch: DecodedBatch, partitions: Sequence[int]) -> Iterable[tuple[int, bytes, int]]:
    if len(batch.events) == 1:
        return ((partitions[0], batch.text[1:-1], 1),)
    events: list[msgspec.Raw] = ARRAY_DECODER.decode(batch.text)
    groups: dict[int, list[msgspec.Raw]] = {}
    if partitions.count(partitions[0]) == len(partitions):
        groups[partitions[0]] = events
    else:
        for partition, event in zip(partitions, events, strict=True):
            groups.setdefault(partition, []).append(event)
    return [(partition, _ENCODER.encode_lines(group)[:-1], len(group)) for partition, group in groups.items()]


def _metadata_to_add(
    event_type: EventType, origin: BatchOrigin, metadata: Sequence[UsualMetadata]
) -> Mapping[str, str] | None:
    """What is added to the metadata of all events: what all of them have sent stays. None if only some have sent it."""
    stamp = metadata_stamp(event_type, origin)
    types, flow_ids = set(map(_type_of, metadata)), set(map(_flow_id_of, metadata))
    if types == {event_type.name}:
        del stamp["event_type"]
    elif types != {UNSET}:
        return None
    if UNSET not in flow_ids and "" not in flow_ids:
        del stamp["flow_id"]
    elif flow_ids != {UNSET}:
        return None
    return stamp


def _partitions_and_keys_or_none(
    event_type: EventType, batch: DecodedBatch, draw_random_number: DrawRandomNumber
) -> tuple[Sequence[int], Sequence[str] | None] | None:
    """As `choose_partitions` has them; None for events whose keys are none, or unusual."""
    count, of = len(batch.events), event_type.timeline.partitions
    if event_type.partition_strategy is PartitionStrategy.RANDOM:
        return [int(draw_random_number() * of) for _ in range(count)] if of > 1 else [0] * count, None
    fields = event_type.partition_key_fields
    if event_type.partition_strategy is not PartitionStrategy.HASH or not fields or None in fields:
        return None
    columns: list[list[str]] = []
    for path in key_paths(event_type.category, *fields):
        texts = batch.texts_at(path) if path else None
        if texts is None:
            return None
        columns.append(texts)
    if sum([len(text) for texts in columns for text in texts]) > STEPS_WITHOUT_TURN:
        return None
    numbers = partitions_in_text_order(of)
    if len(columns) == 1:
        hashes, keys = map(java_string_hash, columns[0]), columns[0]
        return [numbers[abs(as_signed_32_bit(each)) % of] for each in hashes], keys
    rows = list(zip(*columns, strict=True))
    return [numbers[abs(hash_of_keys(row)) % of] for row in rows], list(map(",".join, rows))
