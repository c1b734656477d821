"""Compression of request and response bodies."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import zstandard
from msgspec.structs import replace

from nakadi.http.memory import MemoryShare
from nakadi.http.message import Request, Response
from nakadi.http.problem import NotAcceptable
from nakadi.model.outcomes import Malformed, TooLarge

# An honest batch of events stays far below this limit, which stops decompression bombs.
MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
# How many decompressed bytes one step of gzip makes at most. A step of zstd may make 32 times as much, so it gets its
# input in small slices.
DECOMPRESSED_PIECE_BYTES = 256 * 1024
GZIP_INPUT_SLICE_BYTES = 16 * 1024
ZSTD_INPUT_SLICE_BYTES = 256
# Every member of a gzip body costs a new state of the decompressor. Parallel compressors make members of 64 KB or more,
# so honest bodies have few.
MAX_COMPRESSED_MEMBERS = 10_000
# The size from which bodies are compressed: compressing a shorter body takes time, and hardly reduces the number of
# packets.
MIN_BYTES_TO_COMPRESS = 1024
# This level compresses nearly as well as higher levels, in a third of their time.
GZIP_LEVEL = 4


def check_content_encoding(request: Request) -> None:
    """Raise `NotAcceptable` for a method whose bodies are never compressed."""
    if "content-encoding" in request.headers and request.method != "POST":
        raise NotAcceptable(f"{request.method} method doesn't support gzip content encoding")


def decompress_body(request: Request, max_bytes: int | None = None) -> Request:
    """The request with its decompressed body, which has at most this many bytes."""
    max_bytes = MAX_DECOMPRESSED_BYTES if max_bytes is None else max_bytes
    encoding = request.headers.get("content-encoding", "").lower()
    if "gzip" in encoding:
        return replace(request, body=_join_bounded(_gunzip(request.body), max_bytes, request.memory))
    if "zstd" in encoding:
        return replace(request, body=_join_bounded(_unzstd(request.body), max_bytes, request.memory))
    return request


def compress_body(request: Request, response: Response) -> Response:
    """The response, compressed with gzip if the client of this request accepts that."""
    if request.method not in ("GET", "POST") or len(response.body) < MIN_BYTES_TO_COMPRESS:
        return response
    headers = {**response.headers, "vary": "Accept-Encoding"}
    if not wants_gzip(request.headers.get("accept-encoding", "")):
        return replace(response, headers=headers)
    body = gzip.compress(response.body, GZIP_LEVEL, mtime=0)
    return replace(response, headers={**headers, "content-encoding": "gzip"}, body=body)


def wants_gzip(accept_encoding: str) -> bool:
    """Whether an `Accept-Encoding` header prefers gzip to no compression at all."""
    weights = dict(_parse_range_with_quality(each) for each in accept_encoding.lower().split(",") if each.strip())
    gzip_weight = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return gzip_weight > 0 and gzip_weight >= weights.get("identity", 0.0)


def client_may_read_socket(headers: Mapping[str, str]) -> bool:
    """Whether a client may read a stream from the socket directly, after its HTTP library has read the headers.

    pynakadi does so, and loses the bytes that the library read together with the headers. Clients that ask for gzip
    read through a decoder.
    """
    by_requests = headers.get("user-agent", "").startswith("python-requests/")
    return by_requests and not wants_gzip(headers.get("accept-encoding", ""))


def _parse_range_with_quality(part: str) -> tuple[str, float]:
    coding, _, parameters = part.partition(";")
    found = re.search(r"(?:^|;)\s*q\s*=\s*([01](?:\.\d*)?|\.\d+)\s*(?:;|$)", parameters)
    return coding.strip(), float(found[1]) if found else 1.0


def _join_bounded(pieces: Iterator[bytes], max_bytes: int, memory: MemoryShare) -> bytes:
    whole = bytearray()
    for piece in pieces:
        memory.take(len(piece))
        whole += piece
        if len(whole) > max_bytes:
            raise TooLarge(f"The body decompresses to more than {max_bytes} bytes")
    return bytes(whole)


def _gunzip(compressed_body: bytes) -> Iterator[bytes]:
    if compressed_body[:2] != b"\x1f\x8b":
        raise Malformed("Not in GZIP format")
    return _decompress_members(
        compressed_body, GZIP_INPUT_SLICE_BYTES, partial(zlib.decompressobj, wbits=31), _gunzip_part
    )


def _unzstd(compressed_body: bytes) -> Iterator[bytes]:
    return _decompress_members(
        compressed_body, ZSTD_INPUT_SLICE_BYTES, _new_zstd_member, lambda member, part: [member.decompress(part)]
    )


def _new_zstd_member() -> Any:
    # The header of a frame can request memory only for a window of this size.
    return zstandard.ZstdDecompressor(max_window_size=8 * 1024 * 1024).decompressobj()


def _gunzip_part(member: Any, part: bytes) -> Iterator[bytes]:
    while part and not member.eof:
        yield member.decompress(part, DECOMPRESSED_PIECE_BYTES)
        part = member.unconsumed_tail


def _decompress_members(
    compressed_body: bytes,
    slice_size: int,
    new_member: Callable[[], Any],
    decompressed: Callable[[Any, bytes], Iterable[bytes]],
) -> Iterator[bytes]:
    """Decompress consecutive members. The body must end with the last of them."""
    made, member = 0, None
    for at in range(0, len(compressed_body), slice_size):
        rest = compressed_body[at : at + slice_size]
        while rest:
            if member is None or member.eof:
                made, member = made + 1, new_member()
            if made > MAX_COMPRESSED_MEMBERS:
                raise Malformed(
                    f"I/O error while reading input message: more than {MAX_COMPRESSED_MEMBERS} compressed members"
                )
            try:
                yield from decompressed(member, rest)
            except (zlib.error, zstandard.ZstdError) as error:
                raise Malformed(f"I/O error while reading input message: {error}") from error
            rest = member.unused_data
    if member is None or not member.eof:
        raise Malformed("I/O error while reading input message: the compressed body ends too early")
