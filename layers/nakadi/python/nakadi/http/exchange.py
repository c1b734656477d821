"""A request and its answer, between the connection and an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from nakadi.http.asgi import Message, Receive, Send
from nakadi.http.direct import http_response_bytes, http_status_line
from nakadi.http.message import Response

log = logging.getLogger(__name__)

AsgiCallable = Callable[[Message, Receive, Send], Coroutine[Any, Any, None]]
"""An application of ASGI."""

CONTROL_CHARACTER_PATTERN = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class DateHeaderSource(Protocol):
    """Provides the `Date` header."""

    date_header: bytes
    """The `Date` header for every answer."""


class ExchangeConnection(Protocol):
    """The connection that an exchange belongs to."""

    drained: asyncio.Event | None
    """None, or an event that is set once the client has read more of the written bytes."""

    def write(self, data: bytes) -> None:
        """Write these bytes; do nothing if the connection is being closed."""

    def resume_reading(self) -> None:
        """Continue to read, if reading was paused."""

    def close(self) -> None:
        """Close after writing everything."""

    def serve_next_after(self, exchange: Exchange) -> None:
        """Continue with the request after `exchange`, which is answered."""


class Exchange:
    """A request and its answer. `receive` and `send` come from ASGI."""

    __slots__ = (
        *(
            "_awaits_go_ahead",
            "_changed",
            "_connection",
            "_date_source",
            "_is_chunked",
            "_is_received",
            "_bytes_left",
            "body",
            "body_bytes",
        ),
        *("disconnected", "is_http_1_0", "keep_alive", "more_body", "response_complete", "response_started", "scope"),
    )

    def __init__(
        self,
        connection: ExchangeConnection,
        scope: Message,
        date_source: DateHeaderSource,
        *,
        is_http_1_0: bool,
        keep_alive: bool,
        awaits_go_ahead: bool,
    ) -> None:
        self.scope = scope
        self.is_http_1_0 = is_http_1_0
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.disconnected = False
        # The parts of the body that have arrived but were not received yet.
        self.body: bytes | bytearray = b""
        self.body_bytes = 0
        self._connection = connection
        self._date_source = date_source
        self._awaits_go_ahead = awaits_go_ahead
        self._is_received = False
        # The future of the task that waits in `receive`, if there is one; every open stream has one. An `asyncio.Event`
        # would take several times as much memory.
        self._changed: asyncio.Future[None] | None = None
        self._is_chunked = False
        # The number of bytes of the answer still to be sent; None if it was not announced.
        self._bytes_left: int | None = 0

    @property
    def awaits_body(self) -> bool:
        """Whether more of the body must arrive and be read."""
        return self.more_body and not self.response_complete

    def add_to_body(self, piece: bytes) -> None:
        self.body_bytes += len(piece)
        if not self.body:
            self.body = piece
        else:
            if not isinstance(self.body, bytearray):
                self.body = bytearray(self.body)
            self.body += piece
        self._wake_receiver()

    def mark_body_complete(self) -> None:
        self.more_body = False
        self._wake_receiver()

    def mark_disconnected(self) -> None:
        self.disconnected = not self.response_complete
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def handle_task_end(self, task: asyncio.Task[None]) -> None:
        """Handle the end of the application's task."""
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("Answering a request failed", exc_info=error)
        if not self.response_complete and not self.disconnected:
            # Close without the end of the answer, so that the client knows that it is incomplete.
            self._connection.close()

    async def receive(self) -> Message:
        if self._awaits_go_ahead:
            self._awaits_go_ahead = False
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.disconnected and not self.response_complete:
            self._connection.resume_reading()
            if not self.body and (self.more_body or self._is_received):
                self._changed = asyncio.get_running_loop().create_future()
                await self._changed
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body, self._is_received = bytes(self.body), b"", not self.more_body
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        if not self.disconnected and self._connection.drained is not None:
            await self._connection.drained.wait()
        if self.disconnected:
            return
        if not self.response_started:
            self._send_head(message["status"], message["headers"])
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            self._bytes_left = 0
        elif self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._connection.write(chunk if more else chunk + b"0\r\n\r\n")
        else:
            if self._bytes_left is not None:
                self._bytes_left -= len(body)
            self._connection.write(body)
        if self._bytes_left is not None and (self._bytes_left < 0 or (self._bytes_left and not more)):
            raise ValueError("an answer that is not as long as it says")
        if not more:
            self.response_complete = True
            self._wake_receiver()
            self._connection.serve_next_after(self)

    def _send_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        lines = [http_status_line(status), self._date_source.date_header]
        length: int | None = None
        closes = False
        for each, value in headers:
            name = each.lower()
            if CONTROL_CHARACTER_PATTERN.search(value):
                raise ValueError(f"a header that cannot be sent: {name!r}")
            if name == b"content-length":
                length = int(value)
            closes |= name == b"connection" and value == b"close"
            lines.append(b"%b: %b\r\n" % (name, value))
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if length is not None or self.scope["method"] == "HEAD" or status in (204, 304):
            self._bytes_left = length or 0
        else:
            self._bytes_left = None
            # HTTP/1.0 has no chunks, so the answer ends with the connection.
            self._is_chunked = not self.is_http_1_0
            if self._is_chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self.response_started = True
        self._awaits_go_ahead = False
        self._connection.write(b"".join(lines))

    def send_whole_response(self, response: Response) -> None:
        """Send a whole answer. The client may have left meanwhile."""
        if not self.disconnected:
            self.response_started = self.response_complete = True
            self._connection.write(
                http_response_bytes(response, self._date_source.date_header, keep_alive=self.keep_alive)
            )
            self._connection.serve_next_after(self)
