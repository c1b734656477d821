"""Gzip members, by the faster of two libraries: ISA-L packs and unpacks in a third of the time that zlib takes.

It is there wherever the broker runs. Where somebody only has the package, as a job may, zlib does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

try:
    from isal import isal_zlib as library

    LEVEL = 1
except ImportError:
    import zlib as library  # type: ignore[no-redef]

    LEVEL = 2

# On events, higher levels take longer and save little.

GZIP = 16 + library.MAX_WBITS


class BadGzip(Exception):
    """Raised when bytes are not whole gzip members."""


class Pack(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def pack() -> Pack:
    """A member without name and time, so that the same events make the same bytes."""
    made: Any = library.compressobj(LEVEL, library.DEFLATED, GZIP)
    return made  # type: ignore[no-any-return]


def unpacked(content: bytes) -> Iterator[bytes]:
    """What is in members that follow each other. Their checksums and lengths say whether it is what was packed."""
    rest = content
    while True:
        unpacker = library.decompressobj(GZIP)
        try:
            text: bytes = unpacker.decompress(rest)
        except Exception as error:  # each library has its own
            raise BadGzip(str(error)) from error
        if not unpacker.eof:
            raise BadGzip("it ends early")
        yield text
        rest = unpacker.unused_data
        if not rest:
            return
