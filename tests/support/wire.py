"""A client that sends and receives bytes, which shows details that well-behaved clients hide."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

from tests.support.patience import PATIENCE, until


class Wire:
    """A connection to a server. `url` is the server's address."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=PATIENCE)
        self._host = address.netloc
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *lines: str | bytes, body: bytes = b"") -> Self:
        """Send a request's head, line by line, and its body."""
        head = b"\r\n".join(each if isinstance(each, bytes) else each.encode() for each in lines)
        self.socket.sendall(head + f"\r\nHost: {self._host}\r\n\r\n".encode() + body)
        return self

    def once(self) -> bytes:
        """The bytes of one read of the socket."""
        return self.socket.recv(65536)

    def until(self, mark: bytes) -> bytes:
        """All bytes up to and including this mark."""
        while mark not in self._received:
            more = self.socket.recv(65536)
            assert more, f"closed after {self._received!r}"
            self._received += more
        found, _, self._received = self._received.partition(mark)
        return found + mark

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a response with a length."""
        status, headers = self.head()
        return status, headers, self.body(int(headers.get("content-length", "0")))

    def body(self, length: int) -> bytes:
        """Read this number of bytes."""
        while len(self._received) < length:
            more = self.socket.recv(65536)
            assert more, f"closed after {self._received!r}"
            self._received += more
        body, self._received = self._received[:length], self._received[length:]
        return body

    def head(self) -> tuple[int, dict[str, str]]:
        first, *rest = self.until(b"\r\n\r\n").decode("latin-1").strip().split("\r\n")
        return int(first.split()[1]), {
            name.lower(): value for name, _, value in (each.partition(": ") for each in rest)
        }

    def chunk(self) -> bytes:
        """The next chunk; an empty one is the last."""
        size = int(self.until(b"\r\n"), 16)
        while len(self._received) < size + 2:
            more = self.socket.recv(65536)
            assert more, f"closed after {self._received!r}"
            self._received += more
        chunk, self._received = self._received[:size], self._received[size + 2 :]
        return chunk

    def answers(self, sent: bytes) -> list[int]:
        """Send these bytes, say that nothing follows, and return the statuses of all answers."""
        try:
            self.socket.sendall(sent)
            self.socket.shutdown(socket.SHUT_WR)
            while more := self.socket.recv(65536):
                self._received += more
        except ConnectionError:
            pass  # the server may close the connection before it has read everything
        return [int(status) for status in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", self._received, re.MULTILINE)]

    def closed(self) -> bool:
        """Whether the server closes the connection, and sends nothing before it does."""
        assert self._received == b""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


def eventually(holds: Callable[[], object], within: float = PATIENCE) -> bool:
    """Whether a condition becomes true in time."""
    until(holds, within)
    return True
