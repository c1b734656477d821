"""Avro schemas and values for tests."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import fastavro

from nakadi.schemas.avro.envelopes import BATCH_SCHEMAS

AvroJson = dict[str, Any]


def a_record(*fields: AvroJson, name: str = "Order", **changes: Any) -> AvroJson:
    return {"type": "record", "name": name, "namespace": "shop", **changes, "fields": list(fields)}


def a_field(name: str, of: Any = "string", **changes: Any) -> AvroJson:
    return {"name": name, "type": of, **changes}


def a_decimal(precision: int, scale: int = 0) -> AvroJson:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


ORDER = a_record(a_field("id"), a_field("lines", {"type": "array", "items": "int"}))


def schema_draft(schema: Any = ORDER) -> dict[str, str]:
    """A schema as a request contains it."""
    return {"type": "avro_schema", "schema": schema if isinstance(schema, str) else json.dumps(schema)}


EID = "ce8c9ebc-3f19-4b9d-a453-08ad2eda6028"
AN_ORDER = {"id": 'bär"\n', "lines": [1, -2]}


def encode(schema: Any, value: Any) -> bytes:
    """The binary form of a value, written by fastavro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(schema)), value)
    return out.getvalue()


PAYLOAD = encode(ORDER, AN_ORDER)
"""The order in the binary form that a publisher sends."""


def decode(schema: Any, payload: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(payload), fastavro.parse_schema(copy.deepcopy(schema)), None)


def fingerprint(schema: Any) -> bytes:
    form = fastavro.schema.to_parsing_canonical_form(copy.deepcopy(schema))
    return bytes.fromhex(fastavro.schema.fingerprint(form, "CRC-64-AVRO"))


def single_object(schema: Any, value: Any) -> bytes:
    """A value behind the fingerprint of its schema."""
    return b"\xc3\x01" + fingerprint(schema) + encode(schema, value)


def an_envelope(event_type: str, payload: bytes, **metadata: Any) -> AvroJson:
    known = {"occurred_at": 1_700_000_000_000, "eid": EID, "version": "1.0.0", "event_type": event_type}
    return {"metadata": known | metadata, "payload": payload}


def a_batch(*envelopes: AvroJson, version: str = "1") -> bytes:
    """The body of a request that publishes these envelopes."""
    return single_object(BATCH_SCHEMAS["batch.publishing"][version], {"events": list(envelopes)})


def read_batches(stream: bytes) -> list[AvroJson]:
    """The batches that a stream in Avro has sent."""
    schema = BATCH_SCHEMAS["batch.consumption"]["1"]
    head, source = b"\xc3\x01" + fingerprint(schema), io.BytesIO(stream)
    parsed = fastavro.parse_schema(copy.deepcopy(schema))
    found = []
    while beginning := source.read(len(head)):
        assert beginning == head
        found.append(fastavro.schemaless_reader(source, parsed, None))
    return found
