"""The HTTP server under the ASGI edge: uvicorn's httptools protocol, and what real clients need beyond it.

Why this one, and with which figures: docs/decisions/0002-http-server.md.
"""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import ssl
import sys
from collections.abc import Callable, MutableMapping, Sequence
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import httptools
import orjson
from msgspec import Struct
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from nakadi.common.metrics import Metrics
from nakadi.http.application import new_flow_id
from nakadi.http.asgi import Answering, Edge, Limits, asgi_application
from nakadi.http.direct import DirectAnswers, written_response
from nakadi.http.message import PROBLEM_JSON, Response
from nakadi.http.problem import problem_body

# Room for the cursors of thousands of partitions in a header; with the request line and the empty line at the end.
MAX_HEAD = 256 * 1024
# Each header costs memory beyond its bytes.
MAX_HEADERS = 1000
# For the head of a request, once its first byte or the connection is there.
HEAD_SECONDS = 20.0
# Longer than load balancers keep an idle connection, so that the server never closes it under a request.
KEEP_ALIVE_SECONDS = 75
# Behind a stream, a client that has nothing more to ask may be waiting for the connection to close.
AFTER_STREAM_SECONDS = 1.5
# A client that is still sending would lose the refusal if the connection were closed under it.
LINGER_SECONDS = 2.0
BACKLOG = 2048

HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
REQUEST_LINE = re.compile(rb"(?:\r\n)*[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^ \r\n]+ HTTP/1\.[01]\r?\n")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed."""
    try:
        import uvloop  # noqa: PLC0415  # not there on every system
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def tune_interpreter() -> None:
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


class ConnectionSource(Protocol):
    """Connections that another process accepts, and hands over."""

    def begin(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Serve every connection that is handed over with a protocol of its own."""

    def ended(self) -> None:
        """To be called when one of them has ended."""

    def close(self) -> None:
        """Take no further ones."""


class Server:
    """Serves an application until it is stopped. Open streams are signalled first, and may finish."""

    def __init__(
        self,
        application: Answering,
        *,
        threads: int = 64,
        grace_seconds: float = 10.0,
        keep_alive_seconds: int = KEEP_ALIVE_SECONDS,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._edge: Edge = asgi_application(application, threads=threads, limits=limits, metrics=metrics)
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
        self._closing = False
        self._note_end: Callable[[], None] = lambda: None

    async def serve(
        self,
        listening: socket.socket | ConnectionSource,
        stopping: asyncio.Event,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        listener: asyncio.Server | ConnectionSource
        if isinstance(listening, socket.socket):
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(self._connection, sock=listening, backlog=BACKLOG, ssl=ssl_context)
        else:
            self._note_end = listening.ended
            listening.begin(self._connection)
            listener = listening
        dating = asyncio.create_task(self._update_date())
        try:
            await stopping.wait()
        finally:
            dating.cancel()
            await self._shut_down(listener)

    def _connection(self) -> Connection:
        return Connection(self._config, self._state, self._edge.direct, self._connection_ended, lambda: self._closing)

    def _connection_ended(self) -> None:
        self._note_end()
        if not self._state.connections:
            self._all_gone.set()

    async def _update_date(self) -> None:
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            await asyncio.sleep(1)

    async def _shut_down(self, listener: asyncio.Server | ConnectionSource) -> None:
        # 1. No new connections.
        self._closing = True
        listener.close()
        # 2. Streams learn that the end is near, idle connections close, others do after their response.
        self._edge.drain()
        for connection in self._open():
            connection.shutdown()
        # 3. All may finish.
        await self._until_all_are_gone()
        # 4. The others are cut off, and the work for them ends.
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
        if late:
            # A task that gives something back as it ends may wait for a store that does not answer.
            await asyncio.wait(late, timeout=1)


class Refusal(Struct, frozen=True):
    """Why a request is not acceptable, whatever it asks for."""

    status: HTTPStatus
    detail: str


HEAD_TOO_LARGE = Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The headers exceed {MAX_HEAD} bytes")
TOO_MANY_HEADERS = Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"There are more than {MAX_HEADERS} headers")
TOO_MUCH_BETWEEN_CHUNKS = Refusal(HTTPStatus.BAD_REQUEST, f"More than {MAX_HEAD} bytes stand between two chunks")
UNREADABLE = Refusal(HTTPStatus.BAD_REQUEST, "The request is not HTTP/1.1 as it should be")
UNKNOWN_VERSION = Refusal(HTTPStatus.BAD_REQUEST, "The request is neither HTTP/1.1 nor HTTP/1.0")
BAD_HOST = Refusal(HTTPStatus.BAD_REQUEST, "The request does not have exactly one valid Host header")
UNEXPECTED_CHUNKS = Refusal(HTTPStatus.BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding")
UNKNOWN_METHOD = Refusal(HTTPStatus.NOT_IMPLEMENTED, "The request method is not known")
NO_PROXY = Refusal(HTTPStatus.NOT_IMPLEMENTED, "The broker is not a proxy")


class _ParsingStopped(Exception):
    """Raised within the parser to stop it."""


class Connection(HttpToolsProtocol):
    """The connection of a client.

    * An `Upgrade` is passed over, and the body behind it is read as any other.
    * A head has a size and a time that it must not exceed, as bodies have in the edge.
    * Two readers cannot understand a request differently: exactly one `Host`, no trailers, no other versions of HTTP.
    * What cannot be read is answered by a Problem.
    * A client that has closed its half after a whole request gets its answer.
    * A stream to a client of HTTP/1.0, which knows no chunks, ends with the connection.
    * The edge may close it, through `connection` in the state of its requests.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        direct: DirectAnswers,
        ended: Callable[[], None],
        closing: Callable[[], bool],
    ) -> None:
        super().__init__(config, server_state, {})
        self._direct = direct
        self.access_log = False
        self.half_closed = False
        self.lost = False
        self._ended = ended
        self._closing = closing
        self._in_head = False
        # As far as the parser has come: requests that have begun, and bytes of bodies.
        self._begun = 0
        self._body_size = 0
        # Bytes that the parser keeps to itself: those of a head, or between the chunks of a body.
        self._unfinished = 0
        self._head_deadline: asyncio.TimerHandle | None = None
        self._resuming = False
        self._refused = False
        self._refusal: Refusal | None = None
        self._at_work: RequestResponseCycle | None = None
        # A request that may be answered directly if the rest of it has arrived too.
        self._is_reading = False
        self._held: tuple[RequestResponseCycle, ASGI3Application] | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        _detect_dead_peers(transport)
        if self._closing():
            # It was accepted just before the server stopped to listen, and nothing was read from it yet.
            transport.close()
            return
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost = True
        self._unset_keepalive_if_required()
        self._cancel_deadline()
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
        rest = memoryview(data)
        self._is_reading = True
        while rest and not self._refused:
            # No more than the head may still have, so that its limit is exact.
            rest = rest[self._feed(rest[: MAX_HEAD - self._unfinished]) :]
        self._is_reading = False
        if self._held is not None:
            self._start_held_request(*self._held)
        if not self._refused:
            self._update_deadline()

    def _feed(self, data: memoryview) -> int:
        """Give these bytes to the parser, and return how many of them it took."""
        before, between_requests = self._progress(), not (self._in_head or self._in_body())
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_on_without_upgrade()
            self._unfinished = 0
            return int(upgrade.args[0])
        except httptools.HttpParserError as error:
            self._refuse(self._refusal or _unreadable_refusal(error, data))
            return len(data)
        if self._progress() == before:
            self._unfinished += len(data)
        else:
            # A head that begins in the middle of these bytes, behind another request, is counted from the next ones on.
            begun_here = between_requests and self._begun == before[0] + 1 and self._in_head
            self._unfinished = len(data) if begun_here else 0
        if self._unfinished >= MAX_HEAD:
            self._refuse(TOO_MUCH_BETWEEN_CHUNKS if self._in_body() else HEAD_TOO_LARGE)
        return len(data)

    def _progress(self) -> tuple[int, bool, int]:
        """What changes whenever the parser comes to the end of something."""
        return self._begun, self._in_head, self._body_size

    # Called by the parser.

    def on_message_begin(self) -> None:
        if not self._resuming:
            super().on_message_begin()
            self.scope["state"]["connection"] = self
            self._in_head = True
            self._begun += 1

    def on_url(self, url: bytes) -> None:
        if not self._resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Behind a body it is a trailer. A proxy may have looked at headers only, so it must not count as one.
        if self._resuming or not self._in_head:
            return
        if len(self.headers) >= MAX_HEADERS:
            self._stop_the_parser(TOO_MANY_HEADERS)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._resuming:
            return
        refusal = _head_refusal(self.parser.get_method(), self.parser.get_http_version(), self.headers)
        if refusal is not None:
            self._stop_the_parser(refusal)
        self._in_head = False
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.send = _WithoutChunks(self.cycle).send  # type: ignore[assignment]  # what the edge gets

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        # After an upgrade the parser takes the head for the whole message.
        if not self.parser.should_upgrade():
            super().on_message_complete()

    # Called by the edge and the server.

    @property
    def whole(self) -> bool:
        """Whether the body of the newest request has arrived."""
        return self.cycle is not None and not self.cycle.more_body

    def close_soon(self) -> None:
        """Close unless the client asks for something else on it in a moment."""
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = self.loop.call_later(AFTER_STREAM_SECONDS, self.timeout_keep_alive_handler)

    def abort(self) -> None:
        """Close now."""
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._at_work = cycle
        if self._is_reading and self._direct.may_take(cycle.scope):
            self._held = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _start_held_request(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._held = None
        usual = partial(super()._start_asgi_task, cycle, app)
        if cycle.more_body or self._refused:
            usual()
        else:
            self._direct.take(cycle.scope, bytes(cycle.body), partial(self._respond, cycle), usual)

    def _respond(self, cycle: RequestResponseCycle, response: Response) -> None:
        """Send an answer without a task. The client may have gone since it asked."""
        if cycle.disconnected or self.transport.is_closing():
            return
        self.transport.write(written_response(response, self.server_state.default_headers, keep_alive=cycle.keep_alive))
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def _stop_the_parser(self, refusal: Refusal) -> None:
        """Refuse the request whose head is being read. The parser passes on that there was an exception, not which."""
        self._refusal = refusal
        raise _ParsingStopped

    def _read_on_without_upgrade(self) -> None:
        """Give the rest of the message to a fresh parser, which sees the headers of the body and not the upgrade."""
        about_the_body = (b"content-length", b"transfer-encoding")
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name in about_the_body]
        self.parser = httptools.HttpRequestParser(self)
        self._resuming = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(headers))
        self._resuming = False

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what has been read so far, the last of it by a Problem, and read no further."""
        self._refused = True
        self._cancel_deadline()
        last: RequestResponseCycle | None = self.cycle
        if self.pipeline and self._in_body():
            # The request that is refused waits behind others, and must not be answered before them.
            self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self._at_work
        if last is None or last.response_complete or (last.more_body and not last.response_started):
            self._send_problem(refusal)
        elif last.more_body:
            self.transport.close()
        else:
            last.keep_alive = False

    def _send_problem(self, refusal: Refusal) -> None:
        if self.transport.is_closing():
            return
        if self._in_body():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = orjson.dumps(problem_body(refusal.status, refusal.detail))
        head = (
            f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}\r\nconnection: close\r\n"
            f"content-type: {PROBLEM_JSON}\r\ncontent-length: {len(body)}\r\nx-flow-id: {new_flow_id()}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _in_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _update_deadline(self) -> None:
        """Bound the time for a head, once its first byte or the connection is there."""
        unused = self.cycle is None or (self.cycle.response_complete and self.timeout_keep_alive_task is None)
        if not self._in_head and not unused:
            self._cancel_deadline()
        elif self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None


class _WithoutChunks:
    """How an answer of unknown length is sent to a client of HTTP/1.0: as it is, until the connection ends."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._unbounded = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._unbounded = all(name != b"content-length" for name, _ in message["headers"])
            if self._unbounded:
                self._cycle.chunked_encoding = False
        elif self._unbounded:
            # The cycle counts what is still to come: always exactly this.
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)  # type: ignore[arg-type]  # uvicorn lists the members of each message


def _head_refusal(method: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> Refusal | None:
    """What of a head could make two readers see two different requests, or is none of ours."""
    hosts = [value for name, value in headers if name == b"host"]
    if version not in ("1.0", "1.1"):
        return UNKNOWN_VERSION
    if len(hosts) > 1 or (version == "1.1" and not hosts) or not all(HOST.fullmatch(each) for each in hosts):
        return BAD_HOST
    if version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
        return UNEXPECTED_CHUNKS
    return NO_PROXY if method == b"CONNECT" else None


def _unreadable_refusal(error: httptools.HttpParserError, data: memoryview) -> Refusal:
    unknown = isinstance(error, httptools.HttpParserInvalidMethodError)
    return UNKNOWN_METHOD if unknown and REQUEST_LINE.match(data) else UNREADABLE


def _detect_dead_peers(transport: asyncio.Transport) -> None:
    """Have the system close a connection whose other end takes nothing for two minutes: its machine may be gone."""
    taken: socket.socket | None = transport.get_extra_info("socket")
    if taken is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000)
