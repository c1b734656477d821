"""Reads the Avro files of Iceberg's metadata. Iceberg's own tables do not read files without a snapshot.

This reader supports only what Iceberg writes. It supports no references to earlier named types, and only blocks that
are deflated, compressed with zstandard, or uncompressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
import zstandard

MAGIC = b"Obj\x01"
SYNC_MARKER_BYTES = 16


class BadAvro(Exception):
    """Raised for content that is not Avro, or is Avro of an unknown kind; the message says why."""


def read_bounds(content: bytes) -> frozenset[bytes]:
    """Return the bounds of columns, and the partition values as texts, from a manifest or a list of manifests."""
    try:
        return frozenset(found for record in _records(content) for found in _byte_strings_in(record))
    except (IndexError, KeyError, ValueError, TypeError, struct.error, zlib.error, zstandard.ZstdError) as error:
        raise BadAvro(f"{type(error).__name__}: {error}") from error


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


def _records(content: bytes) -> Iterator[Any]:
    reader = _Reader(content)
    if reader.take(len(MAGIC)) != MAGIC:
        raise BadAvro("it does not begin like an Avro file")
    header = reader.blocks(lambda: (reader.text(), reader.bytes()))
    known = dict(header)
    unpack = _CODECS.get(known.get("avro.codec", b"null").decode())
    if unpack is None:
        raise BadAvro(f"blocks are packed with {known['avro.codec'].decode()}")
    schema, mark = orjson.loads(known["avro.schema"]), reader.take(SYNC_MARKER_BYTES)
    while not reader.is_at_end:
        count, packed = reader.number(), reader.bytes()
        block = _Reader(unpack(packed))
        for _ in range(count):
            yield block.value(schema)
        if reader.take(SYNC_MARKER_BYTES) != mark:
            raise BadAvro("a block does not end where it should")


class _Reader:
    """Reads values from bytes, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._content)

    def take(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if count < 0 or self._at > len(self._content):
            raise BadAvro("it ends too early")
        return self._content[start : self._at]

    def number(self) -> int:
        """Read an integer: seven bits in each byte, with even numbers for positive values and odd numbers for negative
        ones.
        """
        found = shift = 0
        while True:
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # the bit that marks that more bytes follow
                return (found >> 1) ^ -(found & 1)

    def bytes(self) -> bytes:
        return self.take(self.number())

    def text(self) -> str:
        return self.bytes().decode()

    def blocks(self, element: Callable[[], Any]) -> list[Any]:
        found = []
        while count := self.number():
            if count < 0:
                self.number()  # the number of bytes in the block
            found += [element() for _ in range(abs(count))]
        return found

    def value(self, schema: Any) -> Any:
        if isinstance(schema, list):
            schema = schema[self.number()]
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "record":
                return {field["name"]: self.value(field["type"]) for field in schema["fields"]}
            case "array":
                return self.blocks(lambda: self.value(schema["items"]))
            case "map":
                return self.blocks(lambda: (self.text(), self.value(schema["values"])))
            case "fixed":
                return self.take(schema["size"])
            case dict() | list():
                return self.value(kind)
        return _PLAIN[kind](self)


_PLAIN: Mapping[str, Callable[[_Reader], Any]] = {
    "null": lambda _: None,
    "boolean": lambda reader: reader.take(1) == b"\x01",
    "int": _Reader.number,
    "long": _Reader.number,
    "float": lambda reader: struct.unpack("<f", reader.take(4))[0],
    "double": lambda reader: struct.unpack("<d", reader.take(8))[0],
    "bytes": _Reader.bytes,
    "string": _Reader.text,
}


def _inflate(block: bytes) -> bytes:
    return zlib.decompress(block, -zlib.MAX_WBITS)


def _decompress(block: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(block)


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {"null": bytes, "deflate": _inflate, "zstandard": _decompress}
