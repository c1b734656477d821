"""Publishing in Avro: from a batch of envelopes to events in JSON.

The payload of each event is read by the schema that its metadata names, and the event is stored like any other: as
JSON, with the fields of the record and the metadata. So everything after this module handles one form of events. For
readers who ask for Avro, the broker rebuilds the payload from JSON. What JSON cannot express is kept in the metadata.
"""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import orjson
from msgspec import Struct

from nakadi.common.work import check_may_block
from nakadi.model.authorization import Attribute
from nakadi.model.cloud_events import TRACE_MEMBER
from nakadi.model.event_type import (
    EnrichmentStrategy,
    EventType,
    OwnerSelector,
    OwnerSelectorType,
    PartitionStrategy,
    Schema,
    SchemaType,
)
from nakadi.model.events import Record
from nakadi.model.outcomes import Malformed
from nakadi.publishing.batch import (
    BatchLimits,
    BatchOutcome,
    BatchPiece,
    BatchRejected,
    BatchStatus,
    Event,
    ItemResult,
    PublishingStatus,
    PublishingStep,
    WorkBudget,
    eid_of,
    event_too_large_message,
)
from nakadi.publishing.enrichment import (
    BatchOrigin,
    HashOrders,
    hash_of_keys,
    partition_order,
    timestamp_text,
)
from nakadi.schemas.avro.envelopes import BATCH_PUBLISHING, BATCH_SCHEMAS, PAYLOAD_MEMBER
from nakadi.schemas.avro.fingerprint import schema_fingerprint
from nakadi.schemas.avro.reading import (
    FINGERPRINT_BYTES,
    SINGLE_OBJECT_MARK,
    AvroInput,
    BadAvro,
    Read,
    TooMuchJson,
    make_reader,
    write_decimal,
)
from nakadi.schemas.avro.types import parse_record_schema
from nakadi.schemas.avro.writing import is_unambiguous_in_json
from nakadi.schemas.document import COMPACTION_KEY
from nakadi.schemas.values import java_text, path_segments

# How many bytes of an event are read without a turn at long work: reading them takes a few milliseconds.
ROOM_WITHOUT_TURN = 64 * 1024
# The maximum size of an event's metadata in JSON.
MAX_METADATA_BYTES = 64 * 1024

OTHER_TYPE_MESSAGE = "event type does not match"
NO_COMPACTION_KEY_MESSAGE = "Compacted topic cannot accept message without key"
PAYLOAD_NOT_EMPTY_MESSAGE = "Payload must be empty to delete events."
NO_PARTITION_KEYS_MESSAGE = "Cannot calculate hash value for partitioning: partition keys not set."
NO_DELETION_MESSAGE = "It is not allowed to delete events from non compacted event type"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENTS = ("occurred_at", "received_at")


class AvroBatch(BatchPiece, frozen=True):
    """The events of a batch: `events` have only the metadata, and `payloads` have all other members."""

    payloads: Sequence[bytes] = ()


@cache
def _metadata_readers() -> Mapping[bytes, Read]:
    """For each fingerprint of a batch schema, the reader of the metadata in its envelopes."""
    found: dict[bytes, Read] = {}
    for schema in BATCH_SCHEMAS[BATCH_PUBLISHING].values():
        envelope = schema["fields"][0]["type"]["items"]
        metadata = envelope["fields"][0]["type"]
        found[schema_fingerprint(json.dumps(schema))] = make_reader(parse_record_schema(json.dumps(metadata)))
    return found


def read_avro_batch(body: bytes, limits: BatchLimits) -> AvroBatch:
    """The envelopes of a body. Raises `Malformed` or `TooLarge`."""
    try:
        return _read_envelopes(body, limits)
    except BadAvro as error:
        raise Malformed(f"Error occurred when parsing avro. {error}") from error
    except TooMuchJson:
        raise Malformed(
            f"Error occurred when parsing avro. Metadata has more than {MAX_METADATA_BYTES} bytes"
        ) from None


def _read_envelopes(body: bytes, limits: BatchLimits) -> AvroBatch:
    source = AvroInput(body, 0)
    if source.take(len(SINGLE_OBJECT_MARK)) != SINGLE_OBJECT_MARK:
        raise BadAvro("The body is no single object: it does not begin with the bytes C3 01")
    read_metadata = _metadata_readers().get(source.take(FINGERPRINT_BYTES))
    if read_metadata is None:
        raise BadAvro(f"The body has another schema than those of {BATCH_PUBLISHING}")
    events: list[Event] = []
    payloads: list[bytes] = []
    while count := source.read_long():
        end = None
        if count < 0:
            count, length = -count, source.read_long()
            end = source.position + length
        limits.check_event_count(len(events) + count)
        for _ in range(count):
            source.room = MAX_METADATA_BYTES
            metadata = read_metadata(source)
            events.append({"metadata": _metadata_as_json(metadata)})
            payloads.append(source.take(source.read_long()))
        source.check_end_of_block(end)
    source.check_at_end()
    return AvroBatch(events, b"", b"", payloads)


def _metadata_as_json(metadata: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in metadata.items() if value is not None}
    for name in _MOMENTS:
        if name in found:
            try:
                moment = _EPOCH + timedelta(milliseconds=found[name])
            except OverflowError:
                raise BadAvro(f"`{name}` is in no year from 1 to 9999") from None
            found[name] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z").replace(".000Z", "Z")
    return found


class PayloadForm(Struct, frozen=True):
    """How payloads of a schema are read. `fingerprint` is that of the schema; payloads may begin with it."""

    read: Read
    fingerprint: bytes
    is_unambiguous_in_json: bool


class PayloadForms:
    """The forms in use. If there are too many, the least recently used ones are dropped."""

    def __init__(self, max_forms: int = 500) -> None:
        self._max_forms = max_forms
        self._lock = threading.Lock()
        self._forms: OrderedDict[tuple[str, str], PayloadForm] = OrderedDict()

    def get_or_make(self, event_type: EventType, schema: Schema) -> PayloadForm:
        key = (event_type.id, str(schema.version))
        with self._lock:
            if key in self._forms:
                self._forms.move_to_end(key)
                return self._forms[key]
        check_may_block()
        record = parse_record_schema(schema.text)
        # Two threads may create the same form at the same time; one of the two is kept.
        made = PayloadForm(make_reader(record), schema_fingerprint(schema.text), is_unambiguous_in_json(record))
        with self._lock:
            self._forms[key] = made
            if len(self._forms) > self._max_forms:
                self._forms.popitem(last=False)
        return made


FindForm = Callable[[str], PayloadForm | str]
"""Finds the form of payloads for a version of the schema, or says why there is none."""


def find_avro_schema(versions: Sequence[Schema], event_type: str, version: str) -> Schema | str:
    """The Avro schema of this version, or the reason why there is none."""
    found = next((each for each in versions if str(each.version) == version), None)
    if found is None:
        return f'EventType "{event_type}" has no schema with version "{version[:100]}"'
    if found.type is not SchemaType.AVRO:
        return f'The version "{version}" of EventType "{event_type}" is a json_schema: publish its events as JSON'
    return found


def check_event_types(event_type: EventType, batch: AvroBatch, find_form: FindForm) -> Sequence[PayloadForm]:
    """The form of each payload. Raises `BatchRejected` at the first event of another type, or of an unknown version."""
    forms = []
    for index, event in enumerate(batch.events):
        metadata = event["metadata"]
        if metadata["event_type"] != event_type.name:
            raise BatchRejected(PublishingStep.PUBLISHING, index, OTHER_TYPE_MESSAGE)
        form = find_form(metadata["version"])
        if isinstance(form, str):
            raise BatchRejected(PublishingStep.PUBLISHING, index, form)
        forms.append(form)
    return forms


class EventWriter(Struct, frozen=True, kw_only=True):
    """Writes the events of a batch as JSON. `selector` finds the event owner of each event; `take_memory` is called
    with the length of the events' text."""

    event_type: EventType
    origin: BatchOrigin
    limits: BatchLimits
    budget: WorkBudget
    take_memory: Callable[[int], None]
    selector: OwnerSelector | None = None

    def write(
        self, batch: AvroBatch, forms: Sequence[PayloadForm], partitions: Sequence[int]
    ) -> tuple[Sequence[bytes], Sequence[Attribute | None]]:
        """The texts of the events, and their owners. Raises `BatchRejected` at the first event that cannot be
        written.
        """
        texts: list[bytes] = []
        owners: list[Attribute | None] = []
        for index, (event, payload, form) in enumerate(zip(batch.events, batch.payloads, forms, strict=True)):
            metadata = self._complete_metadata(event["metadata"], partitions[index])
            bare = payload
            if payload.startswith(SINGLE_OBJECT_MARK + form.fingerprint):
                bare = payload[len(SINGLE_OBJECT_MARK) + FINGERPRINT_BYTES :]
            if bare is not payload or not form.is_unambiguous_in_json:
                metadata[PAYLOAD_MEMBER] = b64encode(payload).decode()
            whole = {**self._read(index, bare, form, partitions), "metadata": metadata}
            text = orjson.dumps(whole, default=write_decimal)
            if len(text) > self.limits.max_event_bytes:
                detail = event_too_large_message(len(text), self.limits.max_event_bytes)
                raise BatchRejected(PublishingStep.PUBLISHING, index, detail, partitions=partitions)
            self.take_memory(2 * len(text))
            self.budget.spend_steps(len(text))
            texts.append(text)
            owners.append(None if self.selector is None else owner_of(orjson.loads(text), self.selector))
        return texts, owners

    def _complete_metadata(self, metadata: Mapping[str, Any], partition: int) -> dict[str, Any]:
        """The metadata with the broker's additions. The broker always sets the partition."""
        found = {**metadata, "partition": str(partition)}
        if EnrichmentStrategy.METADATA in self.event_type.enrichment_strategies:
            found["published_by"] = self.origin.published_by
            found["received_at"] = timestamp_text(self.origin.received_at)
            found["flow_id"] = found.get("flow_id") or self.origin.flow_id
            if self.origin.trace_context:
                found.setdefault(TRACE_MEMBER, self.origin.trace_context)
        return found

    def _read(self, index: int, payload: bytes, form: PayloadForm, partitions: Sequence[int]) -> dict[str, Any]:
        most = self.limits.max_event_bytes

        def wait_for_turn_and_add_room(source: AvroInput) -> None:
            self.budget.wait_for_turn()
            source.room += max(0, most - ROOM_WITHOUT_TURN)

        source = AvroInput(payload, min(most, ROOM_WITHOUT_TURN), wait_for_turn_and_add_room)
        try:
            fields: dict[str, Any] = form.read(source)
            source.check_at_end()
        except BadAvro as error:
            detail = f"The payload cannot be read. {error}"
            raise BatchRejected(PublishingStep.PUBLISHING, index, detail, partitions=partitions) from error
        except TooMuchJson:
            detail = f"Event too large: it has more than {most} bytes as JSON"
            raise BatchRejected(PublishingStep.PUBLISHING, index, detail, partitions=partitions) from None
        return fields


def owner_of(event: Mapping[str, Any], selector: OwnerSelector) -> Attribute | None:
    """The owner that a selector finds in an event, if there is one."""
    match selector.type:
        case OwnerSelectorType.STATIC:
            value: Any = selector.value
        case OwnerSelectorType.METADATA:
            value = event["metadata"].get("event_owner")
        case OwnerSelectorType.PATH:
            value = event
            for name in path_segments(selector.value or ""):
                value = value.get(name) if isinstance(value, dict) else None
    return None if value is None else Attribute(selector.name, java_text(value))


def partitions_by_keys(event_type: EventType, batch: AvroBatch, hash_orders: HashOrders) -> list[int]:
    """The partitions of events by the keys in their metadata. Raises `BatchRejected` at the first event without
    keys.
    """
    numbers = partition_order(event_type.timeline.partitions, hash_orders)
    found: list[int] = []
    for event in batch.events:
        keys = event["metadata"].get("partition_keys")
        if not keys:
            raise BatchRejected(PublishingStep.PUBLISHING, len(found), NO_PARTITION_KEYS_MESSAGE, partitions=found)
        found.append(numbers[abs(hash_of_keys(keys)) % len(numbers)])
    return found


def record_keys(event_type: EventType, batch: AvroBatch, partitions: Sequence[int]) -> Sequence[str] | None:
    """The keys of records: the keys for compaction, or the keys by which partitions were chosen."""
    metadata = [event["metadata"] for event in batch.events]
    if event_type.cleanup_policy.compacts:
        for index, each in enumerate(metadata):
            if COMPACTION_KEY not in each:
                raise BatchRejected(PublishingStep.PUBLISHING, index, NO_COMPACTION_KEY_MESSAGE, partitions=partitions)
        return [each[COMPACTION_KEY] for each in metadata]
    if event_type.partition_strategy is PartitionStrategy.HASH:
        return [",".join(each["partition_keys"]) for each in metadata]
    return None


def check_payloads_empty(batch: AvroBatch) -> None:
    index = next((index for index, payload in enumerate(batch.payloads) if payload), None)
    if index is not None:
        raise BatchRejected(PublishingStep.PUBLISHING, index, PAYLOAD_NOT_EMPTY_MESSAGE)


def make_records(
    values: Sequence[bytes | None],
    partitions: Sequence[int],
    keys: Sequence[str] | None,
    owners: Sequence[Attribute | None],
    directed_to: str | None,
) -> Mapping[int, Sequence[Record]]:
    """The records of each partition."""
    found: dict[int, list[Record]] = {}
    for index, (value, partition) in enumerate(zip(values, partitions, strict=True)):
        key = None if keys is None else keys[index]
        found.setdefault(partition, []).append(Record(value, key, owners[index], directed_to))
    return found


def outcome_of_avro_rejection(batch: AvroBatch, rejection: BatchRejected) -> BatchOutcome:
    """The outcome of a batch that is not stored: one event has failed, and all others were abandoned."""
    items = []
    for index, event in enumerate(batch.events):
        at_fault = index == rejection.index
        chosen = index < len(rejection.partitions)
        items.append(
            ItemResult(
                eid=eid_of(event),
                partition=str(rejection.partitions[index]) if chosen else event["metadata"].get("partition"),
                publishing_status=PublishingStatus.FAILED if at_fault else PublishingStatus.ABORTED,
                step=PublishingStep.PUBLISHING,
                detail=rejection.detail if at_fault else "",
            )
        )
    return BatchOutcome(BatchStatus.NOT_ALL_STORED, tuple(items))
