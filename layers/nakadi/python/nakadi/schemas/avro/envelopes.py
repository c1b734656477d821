"""The Avro schemas of the batches that clients send and receive, which the API shows.

The payload of each event is in an envelope together with its metadata. In version 1, the metadata has an `event_owner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMESPACE = "org.zalando.nakadi.generated.avro"
PAYLOAD_MEMBER = "avro_payload"
"""The member of the metadata that has the whole payload in Base64 if JSON cannot express all of it."""

BATCH_PUBLISHING, BATCH_CONSUMPTION = "batch.publishing", "batch.consumption"

AvroJson = Mapping[str, Any]


def _record_schema(name: str, fields: list[AvroJson], **attributes: Any) -> AvroJson:
    return {"type": "record", "name": name, **attributes, "fields": fields}


def _field_schema(name: str, of: Any) -> AvroJson:
    return {"name": name, "type": of}


def _optional_field_schema(name: str, of: Any) -> AvroJson:
    return {"name": name, "type": ["null", of], "default": None}


_MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
_UUID = {"type": "string", "logicalType": "uuid"}
_METADATA_DOC = "Event metadata defines data about the payload and additional information for Nakadi operations"


def _metadata_schema(name: str, *added: AvroJson) -> AvroJson:
    fields = [
        _field_schema("occurred_at", _MOMENT),
        _field_schema("eid", _UUID),
        _optional_field_schema("flow_id", "string"),
        _optional_field_schema("received_at", _MOMENT),
        _field_schema("version", "string"),
        _optional_field_schema("published_by", "string"),
        _field_schema("event_type", "string"),
        _optional_field_schema("partition", "string"),
        _optional_field_schema("partition_keys", {"type": "array", "items": "string"}),
        _optional_field_schema("partition_compaction_key", "string"),
        _optional_field_schema("parent_eids", {"type": "array", "items": _UUID}),
        _optional_field_schema("span_ctx", "string"),
    ]
    return _record_schema(name, [*fields, *added], doc=_METADATA_DOC)


def _envelope_schema(name: str, metadata: AvroJson) -> AvroJson:
    return _record_schema(name, [_field_schema("metadata", metadata), _field_schema("payload", "bytes")])


def _publishing_batch_schema(name: str, envelope: AvroJson) -> AvroJson:
    return _record_schema(name, [_field_schema("events", {"type": "array", "items": envelope})], namespace=NAMESPACE)


def _consumption_batch_schema(name: str, envelope: AvroJson) -> AvroJson:
    cursor = _record_schema(
        "SubscriptionCursor",
        [_field_schema(each, "string") for each in ("partition", "offset", "event_type", "cursor_token")],
    )
    events = _field_schema("events", {"type": "array", "items": envelope})
    return _record_schema(
        name, [_field_schema("cursor", cursor), _optional_field_schema("info", "string"), events], namespace=NAMESPACE
    )


_ENVELOPES = {
    "0": _envelope_schema("EnvelopeV0", _metadata_schema("MetadataV0")),
    "1": _envelope_schema("Envelope", _metadata_schema("Metadata", _optional_field_schema("event_owner", "string"))),
}

BATCH_SCHEMAS: Mapping[str, Mapping[str, AvroJson]] = {
    BATCH_PUBLISHING: {
        "0": _publishing_batch_schema("PublishingBatchV0", _ENVELOPES["0"]),
        "1": _publishing_batch_schema("PublishingBatch", _ENVELOPES["1"]),
    },
    BATCH_CONSUMPTION: {
        "0": _consumption_batch_schema("ConsumptionBatchV0", _ENVELOPES["0"]),
        "1": _consumption_batch_schema("ConsumptionBatch", _ENVELOPES["1"]),
    },
}
