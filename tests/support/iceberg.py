"""Iceberg tables as far as backups look into them, made without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from nakadi.common.avro_files import AvroFile, write_avro_file

LIST_SCHEMA = {
    "type": "record",
    "name": "manifest_file",
    "fields": [{"name": "manifest_path", "type": "string"}, {"name": "manifest_length", "type": "long"}],
}

FILE_SCHEMA = {
    "type": "record",
    "name": "r2",
    "fields": [
        {"name": "content", "type": "int"},
        {"name": "file_path", "type": "string"},
        {"name": "file_size_in_bytes", "type": "long"},
    ],
}

MANIFEST_SCHEMA = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [{"name": "status", "type": "int"}, {"name": "data_file", "type": FILE_SCHEMA}],
}


def table_files(bucket: str, folder: str, rows: Sequence[str], snapshot: int = 1) -> tuple[str, Mapping[str, bytes]]:
    """The URL of the description of a table, and its files by key. Each row has a file of its own."""
    contents = {f"{folder}/data/{each}.parquet": each.encode() for each in rows}
    entries = [
        {"status": 1, "data_file": {"content": 0, "file_path": bucket + key, "file_size_in_bytes": len(content)}}
        for key, content in contents.items()
    ]
    manifest, listed = f"{folder}/metadata/{snapshot}-m0.avro", f"{folder}/metadata/snap-{snapshot}.avro"
    contents[manifest] = _avro(MANIFEST_SCHEMA, entries)
    contents[listed] = _avro(
        LIST_SCHEMA, [{"manifest_path": bucket + manifest, "manifest_length": len(contents[manifest])}]
    )
    description = {
        "format-version": 2,
        "location": bucket + folder,
        "properties": {"write.format.default": "parquet"},
        "current-snapshot-id": snapshot,
        "snapshots": [
            {"snapshot-id": 0, "timestamp-ms": 0, "manifest-list": "gone", "summary": {"nakadi.progress": "7"}},
            {
                "snapshot-id": snapshot,
                "parent-snapshot-id": 0,
                "timestamp-ms": 1,
                "manifest-list": bucket + listed,
                "summary": {"operation": "replace"},
            },
        ],
    }
    location = f"{folder}/metadata/{snapshot}.metadata.json"
    contents[location] = json.dumps(description).encode()
    return bucket + location, contents


def _avro(schema: Mapping[str, object], records: Sequence[object]) -> bytes:
    return write_avro_file(AvroFile({"avro.schema": json.dumps(schema).encode()}, bytes(16), records))
