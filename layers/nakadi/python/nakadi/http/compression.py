"""Packed bodies, in and out."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from dataclasses import replace

import zstandard

from nakadi.http.message import Request
from nakadi.http.problem import NotAcceptable, TooLarge
from nakadi.model.outcomes import Malformed

# An honest batch of events stays far below; a bomb does not get further.
MAX_UNPACKED = 64 * 1024 * 1024
CHUNK = 256 * 1024


def unpacked(request: Request) -> Request:
    """The request with its body as it was before the client packed it."""
    encoding = request.headers.get("content-encoding")
    if encoding is None:
        return request
    if request.method != "POST":
        raise NotAcceptable(f"{request.method} method doesn't support gzip content encoding")
    if "gzip" in encoding.lower():
        return replace(request, body=_bounded(_gunzip(request.body)))
    if "zstd" in encoding.lower():
        return replace(request, body=_bounded(_unzstd(request.body)))
    return request


def _bounded(chunks: Iterator[bytes]) -> bytes:
    whole = bytearray()
    for chunk in chunks:
        whole += chunk
        if len(whole) > MAX_UNPACKED:
            raise TooLarge(f"The body unpacks to more than {MAX_UNPACKED} bytes")
    return bytes(whole)


def _gunzip(packed: bytes) -> Iterator[bytes]:
    """All members of a gzip body, a piece at a time."""
    if packed[:2] != b"\x1f\x8b":
        raise Malformed("Not in GZIP format")
    while packed:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            try:
                piece = member.decompress(packed, CHUNK)
            except zlib.error as error:
                raise Malformed(f"I/O error while reading input message: {error}") from error
            packed = member.unconsumed_tail
            if not piece and not packed and not member.eof:
                raise Malformed("I/O error while reading input message: the gzip body ends too early")
            yield piece
        packed = member.unused_data


def _unzstd(packed: bytes) -> Iterator[bytes]:
    # The window bounds the memory that a frame's header can ask for.
    unpacker = zstandard.ZstdDecompressor(max_window_size=8 * 1024 * 1024)
    try:
        with unpacker.stream_reader(io.BytesIO(packed), read_across_frames=True) as reader:
            while piece := reader.read(CHUNK):
                yield piece
    except zstandard.ZstdError as error:
        raise Malformed(f"I/O error while reading input message: {error}") from error
