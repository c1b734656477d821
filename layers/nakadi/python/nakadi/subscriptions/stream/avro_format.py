"""Batches of a subscription's stream in Avro, one after the other, each in the schema `batch.consumption`.

Events are stored in JSON, so the payload of each is written by the schema that its metadata names. An event that was
published as JSON has its JSON text as payload: readers see from the type of the schema that an event names which form
its payload has.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

from nakadi.event_types.repository import EventTypes
from nakadi.model.event_type import EventType, SchemaType
from nakadi.model.outcomes import Invalid, TryLater
from nakadi.model.subscription import Subscription
from nakadi.schemas.avro.envelopes import BATCH_CONSUMPTION, BATCH_SCHEMAS, PAYLOAD_MEMBER
from nakadi.schemas.avro.fingerprint import schema_fingerprint
from nakadi.schemas.avro.reading import SINGLE_OBJECT_MARK
from nakadi.schemas.avro.types import ArrayType, parse_record_schema
from nakadi.schemas.avro.writing import DoesNotFit, Write, make_writer, write_long
from nakadi.streaming.chunks import EventRun, runs_in_steps
from nakadi.subscriptions.stream.actions import SendBatch, SessionLine
from nakadi.subscriptions.stream.driver import MAX_STEP_BYTES, LineInSteps, NewCursorToken, random_cursor_token

AVRO_MEDIA_TYPE = "application/avro-binary"
CONSUMPTION_VERSION = "1"

PROJECTION_MESSAGE = (
    "A subscription with a projection is read as JSON: payloads in Avro have all fields of their schemas"
)
UNKNOWN_VERSION_MESSAGE = "The event type {} got a schema while this stream was open: open another one"

_TEXTS = (
    "flow_id",
    "published_by",
    "partition",
    "partition_compaction_key",
    "event_owner",
)
_TEXT_LISTS = ("partition_keys", "parent_eids")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AvroVersion(Struct):
    """The text of an Avro schema, and the writer of its payloads, which is made at its first use."""

    text: str
    writer: Write | None = None

    def write(self, fields: Mapping[str, Any]) -> bytes:
        if self.writer is None:
            self.writer = make_writer(parse_record_schema(self.text))
        out = bytearray()
        self.writer(fields, out)
        return bytes(out)


Versions = Mapping[str, Mapping[str, AvroVersion | None]]
"""The Avro schema by event type and version; None for a JSON schema."""


def make_avro_format(
    event_types: EventTypes, subscribed: Iterable[EventType], subscription: Subscription
) -> AvroSubscriptionFormat:
    """The format of a stream in Avro. Asks the registry. Raises `Invalid` for a subscription with a projection."""
    if subscription.projection:
        raise Invalid(PROJECTION_MESSAGE)
    return AvroSubscriptionFormat({each.name: _versions_of(event_types, each) for each in subscribed})


def _versions_of(event_types: EventTypes, event_type: EventType) -> Mapping[str, AvroVersion | None]:
    return {
        str(each.version): AvroVersion(each.text) if each.type is SchemaType.AVRO else None
        for each in event_types.schemas(event_type)
    }


class _BatchForm(NamedTuple):
    """The bytes with which each batch begins, and the writers of its parts."""

    beginning: bytes
    write_cursor: Write
    write_info: Write
    write_envelope: Write


@cache
def _batch_form() -> _BatchForm:
    text = json.dumps(BATCH_SCHEMAS[BATCH_CONSUMPTION][CONSUMPTION_VERSION])
    cursor, info, events = (field.type for field in parse_record_schema(text).known_fields)
    assert isinstance(events, ArrayType)
    beginning = SINGLE_OBJECT_MARK + schema_fingerprint(text)
    return _BatchForm(beginning, make_writer(cursor), make_writer(info), make_writer(events.items))


class AvroSubscriptionFormat:
    content_type = AVRO_MEDIA_TYPE

    def __init__(self, versions: Versions, new_token: NewCursorToken = random_cursor_token) -> None:
        self._versions = versions
        self._new_token = new_token

    def stream_opening(self, stream_id: str) -> bytes:  # noqa: ARG002  # clients find it in the headers
        return b""

    def encode_line(self, line: SessionLine) -> LineInSteps:
        """Encode a batch. Raises `TryLater` for an event whose schema was added after the stream was opened."""
        form, partition = _batch_form(), line.partition
        out = bytearray(form.beginning)
        cursor = {
            "partition": partition.partition,
            "offset": str(line.position),
            "event_type": partition.event_type,
            "cursor_token": str(self._new_token()),
        }
        form.write_cursor(cursor, out)
        form.write_info(line.info or None, out)
        if isinstance(line, SendBatch):
            write_long(sum(run.count for run in line.runs), out)
            for number, run in enumerate(runs_in_steps(line.runs, MAX_STEP_BYTES)):
                if number:
                    yield
                for index in range(run.count):
                    form.write_envelope(self._envelope(partition.event_type, run, index), out)
        write_long(0, out)
        return bytes(out)

    def _envelope(self, event_type: str, run: EventRun, index: int) -> Mapping[str, Any]:
        value = run.chunk.values[run.first + index]
        event = orjson.loads(value)
        sent = event.pop("metadata", None)
        metadata = sent if isinstance(sent, dict) else {}
        payload = self._payload(event_type, value, event, metadata)
        return {
            "metadata": _metadata_of(event_type, metadata, run, index),
            # The values come from JSON, where bytes are texts with one character per byte.
            "payload": payload.decode("latin-1"),
        }

    def _payload(self, event_type: str, value: bytes, fields: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
        version, versions = metadata.get("version"), self._versions.get(event_type)
        if versions is None or not isinstance(version, str):
            return value
        if version not in versions:
            raise TryLater(UNKNOWN_VERSION_MESSAGE.format(event_type))
        schema = versions[version]
        if schema is None:
            return value
        if isinstance(kept := metadata.get(PAYLOAD_MEMBER), str):
            return b64decode(kept)
        try:
            return schema.write(fields)
        except DoesNotFit:
            return value  # the event names an Avro schema, but was published as JSON


def _metadata_of(event_type: str, metadata: Mapping[str, Any], run: EventRun, index: int) -> Mapping[str, Any]:
    """The metadata of an envelope. An event without metadata gets the time and the place at which it was stored."""
    stored_at = run.stored_at(index)
    occurred_at = _milliseconds(metadata.get("occurred_at"))
    trace = metadata.get("span_ctx")
    found: dict[str, Any] = {
        "occurred_at": _milliseconds(stored_at.isoformat()) if occurred_at is None else occurred_at,
        "eid": metadata.get("eid") if isinstance(metadata.get("eid"), str) else str(run.position_at(index)),
        "received_at": _milliseconds(metadata.get("received_at")),
        "version": metadata.get("version") if isinstance(metadata.get("version"), str) else "",
        "event_type": event_type,
        "span_ctx": trace if isinstance(trace, str) or trace is None else orjson.dumps(trace).decode(),
    }
    found.update((name, _if_text(metadata.get(name))) for name in _TEXTS)
    found.update((name, _if_texts(metadata.get(name))) for name in _TEXT_LISTS)
    return found


def _milliseconds(text: Any) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
        return round((moment - _EPOCH).total_seconds() * 1000)
    except (TypeError, ValueError):
        return None


def _if_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _if_texts(value: Any) -> list[str] | None:
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None
