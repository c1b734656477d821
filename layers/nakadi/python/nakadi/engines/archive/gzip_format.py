"""Packing and unpacking gzip, with the fastest library that is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

try:
    from isal import isal_zlib as library

    COMPRESSION_LEVEL = 1
except ImportError:
    import zlib as library  # type: ignore[no-redef]

    COMPRESSION_LEVEL = 2

# For events, higher levels take longer and save little.

GZIP_WINDOW_BITS = 16 + library.MAX_WBITS


class BadArchive(Exception):
    """Raised when bytes are not a member of an archive object, or not complete gzip members."""


def new_compressor() -> Any:
    """A compressor for a member, without name and time, so that the same events make the same bytes."""
    return library.compressobj(COMPRESSION_LEVEL, library.DEFLATED, GZIP_WINDOW_BITS)


def decompress_members(content: bytes) -> Iterator[bytes]:
    """The content of consecutive members. Raises `BadArchive` if a checksum or length shows that the content is not
    what was packed.
    """
    rest = content
    while True:
        unpacker = library.decompressobj(GZIP_WINDOW_BITS)
        try:
            text: bytes = unpacker.decompress(rest)
        except Exception as error:  # each library raises its own errors
            raise BadArchive(str(error)) from error
        if not unpacker.eof:
            raise BadArchive("it ends early")
        yield text
        rest = unpacker.unused_data
        if not rest:
            return


def decompress_pieces(content: bytes, most_bytes: int) -> Iterator[bytes]:
    """The content in pieces of at most this many bytes, however long a member is."""
    unpacker = library.decompressobj(GZIP_WINDOW_BITS)
    whole = memoryview(content)
    for start in range(0, len(content), most_bytes):
        rest: Any = whole[start : start + most_bytes]
        while True:
            if unpacker.eof and rest:
                unpacker = library.decompressobj(GZIP_WINDOW_BITS)
            try:
                piece: bytes = unpacker.decompress(rest, most_bytes)
            except Exception as error:  # each library raises its own errors
                raise BadArchive(str(error)) from error
            rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if piece:
                yield piece
            if not rest and (unpacker.eof or len(piece) < most_bytes):
                break
    if not unpacker.eof:
        raise BadArchive("it ends early")
