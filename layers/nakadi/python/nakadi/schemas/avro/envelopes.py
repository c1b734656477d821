"""The Avro schemas in which clients send batches and get them, and which the API shows.

The payload of each event stands in an envelope beside its metadata. In version 1 the metadata has an `event_owner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMESPACE = "org.zalando.nakadi.generated.avro"
PAYLOAD_MEMBER = "avro_payload"
"""Where the metadata of an event in JSON keeps the payload that JSON does not say all of, in Base64."""

BATCH_PUBLISHING, BATCH_CONSUMPTION = "batch.publishing", "batch.consumption"

AvroJson = Mapping[str, Any]


def _record(name: str, fields: list[AvroJson], **attributes: Any) -> AvroJson:
    return {"type": "record", "name": name, **attributes, "fields": fields}


def _field(name: str, of: Any) -> AvroJson:
    return {"name": name, "type": of}


def _optional(name: str, of: Any) -> AvroJson:
    return {"name": name, "type": ["null", of], "default": None}


_MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
_UUID = {"type": "string", "logicalType": "uuid"}
_METADATA_DOC = "Event metadata defines data about the payload and additional information for Nakadi operations"


def _metadata(name: str, *added: AvroJson) -> AvroJson:
    fields = [
        _field("occurred_at", _MOMENT),
        _field("eid", _UUID),
        _optional("flow_id", "string"),
        _optional("received_at", _MOMENT),
        _field("version", "string"),
        _optional("published_by", "string"),
        _field("event_type", "string"),
        _optional("partition", "string"),
        _optional("partition_keys", {"type": "array", "items": "string"}),
        _optional("partition_compaction_key", "string"),
        _optional("parent_eids", {"type": "array", "items": _UUID}),
        _optional("span_ctx", "string"),
    ]
    return _record(name, [*fields, *added], doc=_METADATA_DOC)


def _envelope(name: str, metadata: AvroJson) -> AvroJson:
    return _record(name, [_field("metadata", metadata), _field("payload", "bytes")])


def _publishing_batch(name: str, envelope: AvroJson) -> AvroJson:
    return _record(name, [_field("events", {"type": "array", "items": envelope})], namespace=NAMESPACE)


def _consumption_batch(name: str, envelope: AvroJson) -> AvroJson:
    cursor = _record(
        "SubscriptionCursor",
        [_field(each, "string") for each in ("partition", "offset", "event_type", "cursor_token")],
    )
    events = _field("events", {"type": "array", "items": envelope})
    return _record(name, [_field("cursor", cursor), _optional("info", "string"), events], namespace=NAMESPACE)


_ENVELOPES = {
    "0": _envelope("EnvelopeV0", _metadata("MetadataV0")),
    "1": _envelope("Envelope", _metadata("Metadata", _optional("event_owner", "string"))),
}

BATCH_SCHEMAS: Mapping[str, Mapping[str, AvroJson]] = {
    BATCH_PUBLISHING: {
        "0": _publishing_batch("PublishingBatchV0", _ENVELOPES["0"]),
        "1": _publishing_batch("PublishingBatch", _ENVELOPES["1"]),
    },
    BATCH_CONSUMPTION: {
        "0": _consumption_batch("ConsumptionBatchV0", _ENVELOPES["0"]),
        "1": _consumption_batch("ConsumptionBatch", _ENVELOPES["1"]),
    },
}
