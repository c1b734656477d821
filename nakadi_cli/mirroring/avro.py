"""Events of event types with Avro schemas: read as JSON, and published in Avro as they were.

A payload is encoded with the schema that the event's metadata names. If JSON does not represent the payload completely,
the metadata contains its bytes. Events that were published as JSON stay JSON.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from nakadi.schemas.avro.envelopes import BATCH_PUBLISHING, BATCH_SCHEMAS, PAYLOAD_MEMBER
from nakadi.schemas.avro.fingerprint import schema_fingerprint
from nakadi.schemas.avro.reading import SINGLE_OBJECT_MARK
from nakadi.schemas.avro.types import parse_record_schema
from nakadi.schemas.avro.writing import DoesNotFit, Write, make_writer
from nakadi_cli.mirroring.definitions import Schema

AVRO = "avro_schema"
MEDIA_TYPE = "application/avro-binary"

_KEPT = ("flow_id", "partition_keys", "partition_compaction_key", "parent_eids", "event_owner")
_OPTIONAL = (*_KEPT, "received_at", "published_by", "partition", "span_ctx")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AvroForm:
    """Writes batches for an event type whose schema has these versions in the source and in the target."""

    def __init__(self, definition: Mapping[str, Any], there: Iterable[Schema], here: Iterable[Schema]) -> None:
        self._name = definition["name"]
        self._chooses_partition = definition.get("partition_strategy") == "user_defined"
        known = list(here)
        self._versions = {
            schema.version: same.version
            for schema in there
            if schema.type == AVRO
            for same in known
            if schema.is_same_as(same)
        }
        self._texts = {schema.version: schema.text for schema in known}
        self._writers: dict[str, Write] = {}

    def envelope_of(self, event: bytes) -> Mapping[str, Any] | None:
        """The event in the form of Avro; None for an event that was published as JSON."""
        fields = json.loads(event)
        metadata = fields.pop("metadata", {})
        version = self._versions.get(metadata.get("version"))
        if version is None:
            return None
        kept = metadata.get(PAYLOAD_MEMBER)
        try:
            payload = b64decode(kept) if kept is not None else self._write(version, fields)
        except DoesNotFit:
            return None
        # Here, bytes are strings with one character for each byte.
        return {"metadata": self._metadata_of(metadata, version), "payload": payload.decode("latin-1")}

    def batch_of(self, envelopes: Iterable[Mapping[str, Any]]) -> bytes:
        out = bytearray(SINGLE_OBJECT_MARK + schema_fingerprint(self._batch_schema))
        self._batch_writer({"events": list(envelopes)}, out)
        return bytes(out)

    def _metadata_of(self, metadata: Mapping[str, Any], version: str) -> Mapping[str, Any]:
        moment = datetime.fromisoformat(metadata["occurred_at"]) - _EPOCH
        trace = metadata.get("span_ctx")
        return {
            **dict.fromkeys(_OPTIONAL),
            **{name: metadata.get(name) for name in _KEPT},
            "occurred_at": round(moment.total_seconds() * 1000),
            "eid": metadata["eid"],
            "version": version,
            "event_type": self._name,
            "partition": metadata.get("partition") if self._chooses_partition else None,
            "span_ctx": trace if isinstance(trace, str) or trace is None else json.dumps(trace),
        }

    def _write(self, version: str, fields: Mapping[str, Any]) -> bytes:
        if version not in self._writers:
            self._writers[version] = make_writer(parse_record_schema(self._texts[version]))
        out = bytearray()
        self._writers[version](fields, out)
        return bytes(out)

    @cached_property
    def _batch_schema(self) -> str:
        return json.dumps(BATCH_SCHEMAS[BATCH_PUBLISHING]["1"])

    @cached_property
    def _batch_writer(self) -> Write:
        return make_writer(parse_record_schema(self._batch_schema))
