"""Reads a stream as it comes over the wire: its head, its chunks, and whether it ends properly."""

from __future__ import annotations

import json
import socket
import zlib
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.patience import PATIENCE


class OpenStream:
    """Sends a request, and reads the answer piece by piece. Raises if a read takes longer than `PATIENCE`."""

    def __init__(
        self,
        url: str,
        target: str,
        headers: dict[str, str] | None = None,
        *,
        receive_bytes: int = 0,
        body: bytes | None = None,
    ) -> None:
        host, port = urlsplit(url).hostname, urlsplit(url).port
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(PATIENCE)
        self._socket.connect((host, port))
        content = [] if body is None else [f"Content-Length: {len(body)}", "Content-Type: application/json"]
        lines = [
            f"{'GET' if body is None else 'POST'} {target} HTTP/1.1",
            f"Host: {host}",
            *(f"{name}: {text}" for name, text in (headers or {}).items()),
            *content,
        ]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        self._raw = bytearray()
        self._body = bytearray()
        self.ended = False
        head = self._raw_until(b"\r\n\r\n").decode("latin-1")
        first, *rest = head.strip().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in rest)}
        self._unpack = zlib.decompressobj(wbits=31) if self.headers.get("content-encoding") == "gzip" else None

    def line(self) -> bytes:
        """The next line, with its end."""
        return self.until(b"\n")

    def lines(self, count: int) -> list[Any]:
        """Read this number of lines, and parse them as JSON."""
        return [json.loads(self.line()) for _ in range(count)]

    def until(self, mark: bytes) -> bytes:
        """Everything up to and including the next `mark`; at the end of the stream, the rest."""
        return _take_through(self._body, mark, self._next_chunk)

    def rest(self) -> bytes:
        """Everything up to the end."""
        while self._next_chunk():
            pass
        return _take(self._body, len(self._body))

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_chunk(self) -> bool:
        """Read a chunk. Return False if the chunk was the end of the stream."""
        if self.ended:
            return False
        assert self.headers.get("transfer-encoding") == "chunked", f"no stream, but {self.status} {self._raw!r}"
        size = int(self._raw_until(b"\r\n"), 16)
        while len(self._raw) < size + 2:
            self._receive()
        chunk = _take(self._raw, size)
        _take(self._raw, len(b"\r\n"))
        self.ended = size == 0
        self._body += self._unpack.decompress(chunk) if self._unpack else chunk
        return not self.ended

    def _raw_until(self, mark: bytes) -> bytes:
        return _take_through(self._raw, mark, self._receive)

    def _receive(self) -> bool:
        received = self._socket.recv(65536)
        if not received:
            raise EOFError("the connection was closed before the answer had ended")
        self._raw += received
        return True


def _take_through(buffer: bytearray, mark: bytes, receive: Callable[[], bool]) -> bytes:
    """Remove everything up to and including the next `mark`, or all of it if `receive` says that nothing follows.

    It searches each byte about once, however many pieces arrive before the mark.
    """
    searched = 0
    while (found := buffer.find(mark, searched)) < 0:
        searched = max(0, len(buffer) - len(mark) + 1)
        if not receive():
            return _take(buffer, len(buffer))
    return _take(buffer, found + len(mark))


def _take(buffer: bytearray, size: int) -> bytes:
    """Remove the first bytes and return them. A `bytearray` does this without moving the others."""
    taken = bytes(buffer[:size])
    del buffer[:size]
    return taken
