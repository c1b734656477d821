"""The HTTP server under the ASGI edge: uvicorn's httptools protocol, and what real clients need beyond it.

Why this one, and with which figures: docs/decisions/0002-http-server.md.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus

import httptools
import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from nakadi.http.asgi import Answering, Edge, Limits, asgi_application
from nakadi.http.message import PROBLEM_JSON
from nakadi.http.problem import problem_body

# Room for the cursors of thousands of partitions in a header.
MAX_HEAD = 256 * 1024
# For the head of a request, once its first byte or the connection is there.
HEAD_SECONDS = 20.0
# Longer than load balancers keep a connection that nobody uses, so that it is never us who close it under a request.
KEEP_ALIVE_SECONDS = 75
# Behind a stream, a client that has nothing more to ask may be waiting for the connection to close.
AFTER_STREAM_SECONDS = 1.5
BACKLOG = 2048


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed."""
    try:
        import uvloop  # noqa: PLC0415  # not there on every system
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def settle_in() -> None:
    """Make the interpreter fit for a process that does nothing but serve, once everything is loaded.

    Requests are threads that each need the interpreter for a moment: they wait less if it changes hands more often.
    What is loaded stays until the end, and what a request leaves is mostly freed by itself: both need not be looked
    through again and again for garbage.
    """
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections from now on; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


class Server:
    """Serves an application until it is told to stop; open streams are told first, and may finish."""

    def __init__(
        self,
        application: Answering,
        *,
        threads: int = 64,
        grace_seconds: float = 10.0,
        keep_alive_seconds: int = KEEP_ALIVE_SECONDS,
        limits: Limits | None = None,
    ) -> None:
        self._edge: Edge = asgi_application(application, threads=threads, limits=limits)
        self._grace_seconds = grace_seconds
        self._config = Config(
            self._edge,
            interface="asgi3",
            ws="none",
            log_config=None,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_seconds,
        )
        self._config.load()
        self._state = ServerState()
        self._all_gone = asyncio.Event()

    async def serve(self, listening: socket.socket, stopping: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self._connection, sock=listening, backlog=BACKLOG)
        dating = asyncio.create_task(self._keep_the_date())
        try:
            await stopping.wait()
        finally:
            dating.cancel()
            await self._shut_down(listener)

    def _connection(self) -> Connection:
        return Connection(self._config, self._state, self._connection_ended)

    def _connection_ended(self) -> None:
        if not self._state.connections:
            self._all_gone.set()

    async def _keep_the_date(self) -> None:
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            await asyncio.sleep(1)

    async def _shut_down(self, listener: asyncio.Server) -> None:
        # 1. Nobody new.
        listener.close()
        # 2. Streams learn that the end is near, idle connections close, others do after their response.
        self._edge.drain()
        for connection in self._open():
            connection.shutdown()
        # 3. Everyone may finish.
        await self._until_all_are_gone()
        # 4. Whoever did not is cut off, and what worked for them ends.
        for connection in self._open():
            connection.abort()
        await self._until_all_is_done()
        # 5. The threads end once they have nothing more to do.
        self._edge.close()

    def _open(self) -> list[Connection]:
        return [each for each in self._state.connections if isinstance(each, Connection)]

    async def _until_all_are_gone(self) -> None:
        self._all_gone.clear()
        if not self._state.connections:
            return
        try:
            async with asyncio.timeout(self._grace_seconds):
                await self._all_gone.wait()
        except TimeoutError:
            pass

    async def _until_all_is_done(self) -> None:
        if not self._state.tasks:
            return
        _, late = await asyncio.wait(self._state.tasks, timeout=1)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


class Connection(HttpToolsProtocol):
    """The connection of a client.

    * An `Upgrade` is passed over, and the body behind it is read as any other.
    * A head has a size and a time that it must not exceed, as bodies have in the edge.
    * What cannot be read is answered by a Problem.
    * A client that has closed its half after a whole request gets its answer.
    * The edge may close it, through `connection` in the state of its requests.
    """

    def __init__(self, config: Config, server_state: ServerState, ended: Callable[[], None]) -> None:
        super().__init__(config, server_state, {})
        self.access_log = False
        self.half_closed = False
        self._ended = ended
        self._in_head = False
        self._head_size = 0
        self._head_deadline: asyncio.TimerHandle | None = None
        self._resuming = False

    # What asyncio tells.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        _give_up_on_the_dead(transport)
        self._mind_the_head(0)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._forget_the_deadline()
        self._ended()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio takes an answer, uvicorn gives none
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_started:
            return None
        cycle.keep_alive = False
        self.half_closed = True
        return True

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        size = len(data)
        while data:
            try:
                self.parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as upgrade:
                self._read_on_without_upgrade()
                data = data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._refuse_the_unreadable()
                return
        self._mind_the_head(size)

    # What the parser tells.

    def on_message_begin(self) -> None:
        if not self._resuming:
            super().on_message_begin()
            self.scope["state"]["connection"] = self
            self._in_head, self._head_size = True, 0

    def on_url(self, url: bytes) -> None:
        if not self._resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._resuming:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._resuming:
            self._in_head = False
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        # After an upgrade the parser takes the head for the whole message.
        if not self.parser.should_upgrade():
            super().on_message_complete()

    # What the edge and the server ask for.

    def close_soon(self) -> None:
        """Close unless the client asks for something else on it in a moment."""
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = self.loop.call_later(AFTER_STREAM_SECONDS, self.timeout_keep_alive_handler)

    def abort(self) -> None:
        """Close now."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._send_problem(HTTPStatus.BAD_REQUEST, msg)

    def _read_on_without_upgrade(self) -> None:
        """Give the rest of the message to a fresh parser, which is told of the body and not of the upgrade."""
        about_the_body = (b"content-length", b"transfer-encoding")
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name in about_the_body]
        self.parser = httptools.HttpRequestParser(self)
        self._resuming = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(headers))
        self._resuming = False

    def _refuse_the_unreadable(self) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started):
            self.send_400_response("The request is not HTTP/1.1 as it should be")
        elif cycle.more_body:
            self.transport.close()
        else:
            # Rubbish behind a good request: that one is answered, and then it is enough.
            cycle.keep_alive = False
            self.flow.pause_reading()

    def _send_problem(self, status: HTTPStatus, detail: str) -> None:
        body = orjson.dumps(problem_body(status, detail))
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\n"
            f"content-type: {PROBLEM_JSON}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _mind_the_head(self, size: int) -> None:
        """Keep a deadline while a head is awaited, and bound its size."""
        unused = self.cycle is None or (self.cycle.response_complete and self.timeout_keep_alive_task is None)
        if not self._in_head and not unused:
            self._forget_the_deadline()
            return
        self._head_size += size
        if self._head_size > MAX_HEAD:
            self._send_problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The headers exceed {MAX_HEAD} bytes")
        elif self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget_the_deadline(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None


def _give_up_on_the_dead(transport: asyncio.Transport) -> None:
    """Have the system close a connection whose other end takes nothing for two minutes: its machine may be gone."""
    taken: socket.socket | None = transport.get_extra_info("socket")
    if taken is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000)
