"""The fingerprint by which messages name their Avro schema: CRC-64-AVRO of the Parsing Canonical Form."""

from __future__ import annotations

from functools import cache

from nakadi.schemas.avro.types import canonical_form

_EMPTY = 0xC15D213AA4D7A795


@cache
def _fingerprint_table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY & -(value & 1))  # noqa: PLW2901  # one bit after the other
        found.append(value)
    return tuple(found)


def schema_fingerprint(text: str) -> bytes:
    """The fingerprint of a valid schema, in the order of its bytes in messages."""
    table, found = _fingerprint_table(), _EMPTY
    for byte in canonical_form(text).encode():
        found = (found >> 8) ^ table[(found ^ byte) & 0xFF]
    return found.to_bytes(8, "little")
