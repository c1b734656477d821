"""Reads and writes the Avro files of Iceberg's metadata.

This module supports only what Iceberg writes: no references to earlier named types, unions of null and one other type,
and only blocks that are deflated, compressed with zstandard, or uncompressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import zstandard
from msgspec import Struct

MAGIC = b"Obj\x01"
SYNC_MARKER_BYTES = 16


class BadAvro(Exception):
    """Raised for content that is not an Avro file, or is one that this module does not support; the message says
    why.
    """


class AvroFile(Struct, frozen=True):
    """The records of a file, and its header: texts about the records, such as their schema in `avro.schema`."""

    header: Mapping[str, bytes]
    sync_marker: bytes
    records: Sequence[Any]


def read_avro_file(content: bytes) -> AvroFile:
    """Raises `BadAvro`."""
    try:
        return _read(content)
    except (IndexError, KeyError, ValueError, TypeError, struct.error, zlib.error, zstandard.ZstdError) as error:
        raise BadAvro(f"{type(error).__name__}: {error}") from error


def write_avro_file(file: AvroFile) -> bytes:
    """Write the records as one deflated block. The same file always has the same bytes."""
    writer = _Writer()
    for record in file.records:
        writer.value(orjson.loads(file.header["avro.schema"]), record)
    block = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = block.compress(writer.content) + block.flush()
    header = {**file.header, "avro.codec": b"deflate"}
    whole = _Writer(MAGIC)
    whole.blocks([*header.items()], lambda entry: whole.entry("bytes", entry))
    whole.content += file.sync_marker
    if file.records:
        whole.number(len(file.records))
        whole.bytes(packed)
        whole.content += file.sync_marker
    return bytes(whole.content)


def _read(content: bytes) -> AvroFile:
    reader = _Reader(content)
    if reader.take(len(MAGIC)) != MAGIC:
        raise BadAvro("it does not begin like an Avro file")
    header = dict(reader.blocks(lambda: (reader.text(), reader.bytes())))
    unpack = _CODECS.get(header.get("avro.codec", b"null").decode())
    if unpack is None:
        raise BadAvro(f"blocks are packed with {header['avro.codec'].decode()}")
    schema, mark, records = orjson.loads(header["avro.schema"]), reader.take(SYNC_MARKER_BYTES), []
    while not reader.is_at_end:
        count, packed = reader.number(), reader.bytes()
        block = _Reader(unpack(packed))
        records += [block.value(schema) for _ in range(count)]
        if reader.take(SYNC_MARKER_BYTES) != mark:
            raise BadAvro("a block does not end where it should")
    return AvroFile(header, mark, records)


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
        """Read an integer: seven bits in each byte, in which even numbers stand for values from 0 up, and odd ones for
        negative values.
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
        return _READERS[kind](self)


class _Writer:
    """Appends values to bytes, in the form in which `_Reader` returns them."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)

    def number(self, number: int) -> None:
        rest = (number << 1) ^ (number >> 63)
        while rest > 0x7F:
            self.content.append(rest & 0x7F | 0x80)
            rest >>= 7
        self.content.append(rest)

    def bytes(self, value: bytes) -> None:
        self.number(len(value))
        self.content += value

    def text(self, value: str) -> None:
        self.bytes(value.encode())

    def blocks(self, values: Sequence[Any], element: Callable[[Any], object]) -> None:
        if values:
            self.number(len(values))
            for each in values:
                element(each)
        self.number(0)

    def value(self, schema: Any, value: Any) -> None:
        if isinstance(schema, list):
            branch = next(number for number, each in enumerate(schema) if (each == "null") is (value is None))
            self.number(branch)
            schema = schema[branch]
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "record":
                for field in schema["fields"]:
                    self.value(field["type"], value[field["name"]])
            case "array":
                self.blocks(value, lambda each: self.value(schema["items"], each))
            case "map":
                self.blocks(value, lambda each: self.entry(schema["values"], each))
            case "fixed":
                self.content += value
            case dict() | list():
                self.value(kind, value)
            case _:
                _WRITERS[kind](self, value)

    def entry(self, schema: Any, entry: tuple[str, Any]) -> None:
        """An entry of a map."""
        name, value = entry
        self.text(name)
        self.value(schema, value)

    def pack(self, form: str, value: Any) -> None:
        self.content += struct.pack(form, value)


_READERS: Mapping[str, Callable[[_Reader], Any]] = {
    "null": lambda _: None,
    "boolean": lambda reader: reader.take(1) == b"\x01",
    "int": _Reader.number,
    "long": _Reader.number,
    "float": lambda reader: struct.unpack("<f", reader.take(4))[0],
    "double": lambda reader: struct.unpack("<d", reader.take(8))[0],
    "bytes": _Reader.bytes,
    "string": _Reader.text,
}

_WRITERS: Mapping[str, Callable[[_Writer, Any], object]] = {
    "null": lambda *_: None,
    "boolean": lambda writer, value: writer.pack("<?", value),
    "int": _Writer.number,
    "long": _Writer.number,
    "float": lambda writer, value: writer.pack("<f", value),
    "double": lambda writer, value: writer.pack("<d", value),
    "bytes": _Writer.bytes,
    "string": _Writer.text,
}


def _inflate(block: bytes) -> bytes:
    return zlib.decompress(block, -zlib.MAX_WBITS)


def _decompress(block: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(block)


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {"null": bytes, "deflate": _inflate, "zstandard": _decompress}
