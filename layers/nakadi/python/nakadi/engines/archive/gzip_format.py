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

# On events, higher levels take longer and save little.

GZIP_WINDOW_BITS = 16 + library.MAX_WBITS


class BadArchive(Exception):
    """Raised when bytes are not a member of an archive object, or not whole gzip members."""


def new_compressor() -> Any:
    """A compressor for a member, without name and time, so that the same events make the same bytes."""
    return library.compressobj(COMPRESSION_LEVEL, library.DEFLATED, GZIP_WINDOW_BITS)


def decompress_members(content: bytes) -> Iterator[bytes]:
    """The content of consecutive members. Their checksums and lengths show whether it is the content that was
    packed."""
    rest = content
    while True:
        unpacker = library.decompressobj(GZIP_WINDOW_BITS)
        try:
            text: bytes = unpacker.decompress(rest)
        except Exception as error:  # each library has its own
            raise BadArchive(str(error)) from error
        if not unpacker.eof:
            raise BadArchive("it ends early")
        yield text
        rest = unpacker.unused_data
        if not rest:
            return
