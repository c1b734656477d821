"""A stream as a client sees it on the wire: head, chunks, and whether the end was a proper one."""

from __future__ import annotations

import json
import socket
import zlib
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.patience import PATIENCE


class OpenStream:
    """Sends a request and reads its answer bit by bit. A wait that takes longer than a test has patience for raises."""

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
        self._raw = b""
        self._body = b""
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
        """This number of lines, as JSON."""
        return [json.loads(self.line()) for _ in range(count)]

    def until(self, mark: bytes) -> bytes:
        """Everything up to and including the next `mark`; at the end of the stream, the rest."""
        while mark not in self._body and self._next_chunk():
            pass
        found, separator, self._body = self._body.partition(mark)
        return found + separator

    def rest(self) -> bytes:
        """Everything up to the end."""
        while self._next_chunk():
            pass
        rest, self._body = self._body, b""
        return rest

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_chunk(self) -> bool:
        """Take in a chunk; whether there was one before the end."""
        if self.ended:
            return False
        assert self.headers.get("transfer-encoding") == "chunked", f"no stream, but {self.status} {self._raw!r}"
        size = int(self._raw_until(b"\r\n"), 16)
        while len(self._raw) < size + 2:
            self._receive()
        chunk, self._raw = self._raw[:size], self._raw[size + 2 :]
        self.ended = size == 0
        self._body += self._unpack.decompress(chunk) if self._unpack else chunk
        return not self.ended

    def _raw_until(self, mark: bytes) -> bytes:
        while mark not in self._raw:
            self._receive()
        found, separator, self._raw = self._raw.partition(mark)
        return found + separator

    def _receive(self) -> None:
        received = self._socket.recv(65536)
        if not received:
            raise EOFError("the connection was closed before the answer had ended")
        self._raw += received
