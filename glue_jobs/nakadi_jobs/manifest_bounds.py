"""Finds the values that Iceberg's metadata contains. Iceberg's own tables do not read files without a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nakadi.common.avro_files import read_avro_file


def read_bounds(content: bytes) -> frozenset[bytes]:
    """Return the bounds of columns, and the partition values as texts, from a manifest or a list of manifests. Raises
    `BadAvro`.
    """
    return frozenset(found for record in read_avro_file(content).records for found in _byte_strings_in(record))


def _byte_strings_in(found: Any) -> Iterator[bytes]:
    if isinstance(found, bytes):
        yield found
    elif isinstance(found, list):
        for each in found:
            yield from _byte_strings_in(each)
    elif isinstance(found, dict):
        for name, value in found.items():
            if name == "partition" and isinstance(value, dict):
                yield from (each if isinstance(each, bytes) else str(each).encode() for each in value.values())
            yield from _byte_strings_in(value)
