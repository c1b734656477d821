"""The connection of a client: parses incoming bytes, and answers the requests in order.

The parser is httptools. A small request that has arrived as a whole is answered directly; any other has a task, in
which the edge speaks ASGI. Everything beyond a simple server is here because real clients need it:
docs/decisions/0002-http-server.md.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus

import httptools
import orjson

from nakadi.http.application import flow_id_or_new
from nakadi.http.direct import QuickAnswerer
from nakadi.http.exchange import AsgiCallable, Exchange
from nakadi.http.hosts import ServedHosts
from nakadi.http.message import PROBLEM_MEDIA_TYPE
from nakadi.http.problem import RequestRefusal, plain_problem_members

# Room for the cursors of thousands of partitions in a header, including the request line and the empty line at the end.
MAX_HEAD_BYTES = 256 * 1024
# Each header costs memory beyond its bytes.
MAX_HEADER_COUNT = 1000
# The time for the head of a request, from its first byte or the start of the connection.
HEAD_TIMEOUT_SECONDS = 20.0
# After a stream, a client with no further request may be waiting for the connection to close.
CLOSE_AFTER_STREAM_TIMEOUT_SECONDS = 1.5
# A client that is still sending would lose the refusal if the connection were closed under it.
LINGER_TIMEOUT_SECONDS = 2.0
# While nothing reads a body, no more bytes than this are read from the socket.
MAX_UNREAD_BYTES = 64 * 1024
# From this size of a body on, its work takes longer than the detour through another process, so another process that
# has little to do should serve the connection.
MANY_BYTES = 16 * 1024

HOST_PATTERN = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
REQUEST_LINE_PATTERN = re.compile(rb"(?:\r\n)*[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^ \r\n]+ HTTP/1\.[01]\r?\n")


class ServerState:
    """The shared state of all connections of a server. Each connection calls `on_connection_ended` when it ends.

    Requests for hosts other than `served_hosts` are refused; None serves every host. With `closes_after_streams`, a
    connection closes soon after a stream, unless its client sends another request on it.
    """

    def __init__(
        self,
        application: AsgiCallable,
        keep_alive_seconds: float,
        on_connection_ended: Callable[[], None],
        served_hosts: ServedHosts | None = None,
        *,
        closes_after_streams: bool = True,
    ) -> None:
        self.application = application
        self.served_hosts = served_hosts
        self.closes_after_streams = closes_after_streams
        self.keep_alive_seconds = keep_alive_seconds
        self.on_connection_ended = on_connection_ended
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.date_header = b""
        self.is_closing = False
        self.note_large_body: Callable[[Connection], None] = lambda _: None


HEAD_TOO_LARGE_REFUSAL = RequestRefusal(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The headers exceed {MAX_HEAD_BYTES} bytes"
)
TOO_MANY_HEADERS_REFUSAL = RequestRefusal(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"There are more than {MAX_HEADER_COUNT} headers"
)
TOO_MUCH_BETWEEN_CHUNKS_REFUSAL = RequestRefusal(
    HTTPStatus.BAD_REQUEST, f"More than {MAX_HEAD_BYTES} bytes are between two chunks"
)
UNREADABLE_REQUEST_REFUSAL = RequestRefusal(HTTPStatus.BAD_REQUEST, "The request is not valid HTTP/1.1")
UNKNOWN_VERSION_REFUSAL = RequestRefusal(HTTPStatus.BAD_REQUEST, "The request is neither HTTP/1.1 nor HTTP/1.0")
BAD_HOST_REFUSAL = RequestRefusal(HTTPStatus.BAD_REQUEST, "The request does not have exactly one valid Host header")
UNEXPECTED_CHUNKS_REFUSAL = RequestRefusal(HTTPStatus.BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding")
UNKNOWN_METHOD_REFUSAL = RequestRefusal(HTTPStatus.NOT_IMPLEMENTED, "The request method is unknown")
NOT_A_PROXY_REFUSAL = RequestRefusal(HTTPStatus.NOT_IMPLEMENTED, "The broker is not a proxy")


class _ParsingStopped(Exception):
    """Raised within the parser to stop it."""


class Connection(asyncio.Protocol):
    """The connection of a client.

    * An `Upgrade` is ignored, and the body after it is read like any other.
    * A head has a size and a time that it must not exceed, as bodies have in the edge.
    * A request for a host that is not served is refused before its body.
    * Two readers cannot understand a request differently: exactly one `Host`, no trailers, no other versions of HTTP.
    * Unreadable requests are answered by a Problem.
    * A client that has closed its half after a whole request gets its answer.
    * A stream to a client of HTTP/1.0, which knows no chunks, ends with the connection.
    * A client that does not read its answers gets no further ones, however many requests it has sent.
    * The edge may close the connection, through `connection` in the state of its requests.
    """

    transport: asyncio.Transport

    def __init__(self, state: ServerState, direct: QuickAnswerer, *, was_taken_over: bool = False) -> None:
        self.is_half_closed = False
        self.is_lost = False
        self._state = state
        self._direct = direct
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # Bytes that a client sends after a request with `Connection: close` do not affect that request.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        # The request being read.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._awaits_go_ahead = False
        self._in_head = False
        # `_newest` is the newest request, `_current` the one that is being answered; `_waiting` has the requests after
        # that.
        self._newest: Exchange | None = None
        self._current: Exchange | None = None
        # A list, because there is hardly ever more than one request, and an empty deque would take a tenth of the
        # memory of an idle connection.
        self._waiting: list[Exchange] = []
        # The parser's progress: the number of requests that have begun, and the number of its callbacks for beginnings,
        # heads, and pieces of bodies.
        self._requests_begun = 0
        self._parser_steps = 0
        # How many bytes the parser has kept: those of an incomplete head, or between the chunks of a body.
        self._unfinished = 0
        self._resuming = False
        self._refused = False
        self._refusal: RequestRefusal | None = None
        self._is_reading_paused = False
        # Another process has served this connection before, so its client may be idle as between two requests.
        self._was_taken_over = was_taken_over
        self.drained: asyncio.Event | None = None
        # The time at which the connection is to be closed, if any. One timer is enough: if it fires too early, it is
        # started again.
        self._deadline: float | None = None
        self._is_head_awaited = False
        self._timer: asyncio.TimerHandle | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is a stream
        self.transport = transport
        self._state.connections.add(self)
        _detect_dead_peers(transport)
        if self._state.is_closing:
            # The connection was accepted just before the server stopped listening, and nothing was read from it yet.
            transport.close()
        elif self._was_taken_over:
            self._close_in(self._state.keep_alive_seconds)
        else:
            self._start_head_timeout()

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True
        self._state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for exchange in (self._current, *self._waiting):
            if exchange is not None:
                exchange.mark_disconnected()
        self._is_reading_paused = False
        if self.drained is not None:
            self.drained.set()
        # Break reference cycles: the objects would stay in memory until garbage is collected.
        self._newest = self._current = None
        self._waiting.clear()
        del self._parser
        self._state.on_connection_ended()

    def eof_received(self) -> bool | None:
        exchange = self._newest
        if exchange is None or exchange.more_body or exchange.response_started:
            return None
        exchange.keep_alive = False
        self.is_half_closed = True
        return True

    def pause_writing(self) -> None:
        self.drained = asyncio.Event()

    def resume_writing(self) -> None:
        if self.drained is not None:
            self.drained.set()
            self.drained = None
        if self._current is None:
            self._serve_next_or_idle()

    def data_received(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._refused:
            # The parser gets no more bytes than the head may still have, so the limit for the head is exact.
            rest = rest[self._feed_parser(rest[: MAX_HEAD_BYTES - self._unfinished]) :]
        if self._current is None and self.drained is None and self._waiting:
            self._start_next_exchange()
        newest = self._newest
        if newest is not None and newest.more_body and len(newest.body) > MAX_UNREAD_BYTES:
            self._pause_reading()
        if self._refused:
            return
        if self._in_head or not (self._current or self._waiting):
            self._start_head_timeout()
        else:
            self._deadline = None

    def _feed_parser(self, data: memoryview) -> int:
        """Give these bytes to the parser, and return how many of them it took."""
        before, begun = self._parser_steps, self._requests_begun
        newest = self._newest
        between_requests = not (self._in_head or (newest and newest.more_body and not newest.response_complete))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade()
            self._unfinished = 0
            return int(upgrade.args[0])
        except httptools.HttpParserError as error:
            self._refuse(self._refusal or _refusal_of_parse_error(error, data))
            return len(data)
        if self._parser_steps == before:
            self._unfinished += len(data)
        else:
            # The bytes of a head that begins in the middle of `data`, after another request, are counted only from the
            # next call on.
            begun_here = between_requests and self._requests_begun == begun + 1 and self._in_head
            self._unfinished = len(data) if begun_here else 0
        if self._unfinished >= MAX_HEAD_BYTES:
            self._refuse(TOO_MUCH_BETWEEN_CHUNKS_REFUSAL if self._is_in_body() else HEAD_TOO_LARGE_REFUSAL)
        return len(data)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if not self._resuming:
            self._url = b""
            self._headers = []
            self._awaits_go_ahead = False
            self._in_head = True
            self._requests_begun += 1
            self._parser_steps += 1

    def on_url(self, url: bytes) -> None:
        if not self._resuming:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # A field that follows a body is a trailer. A proxy may have read only the headers, so a trailer must not count
        # as a header.
        if self._resuming or not self._in_head:
            return
        if len(self._headers) >= MAX_HEADER_COUNT:
            self._stop_parsing(TOO_MANY_HEADERS_REFUSAL)
        # The parser removes the blanks before a value, but not those after it.
        name, value = name.lower(), value.rstrip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self._awaits_go_ahead = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._resuming:
            return
        method, version = self._parser.get_method(), self._parser.get_http_version()
        refusal = _refusal_of_head(method, version, self._headers, self._url, self._state.served_hosts)
        if refusal is not None:
            self._stop_parsing(refusal)
        self._in_head = self._is_head_awaited = False
        self._parser_steps += 1
        path, query = _split_url(self._url)
        is_http_1_0 = version == "1.0"
        self._newest = exchange = Exchange(
            self,
            {
                "type": "http",
                "method": method.decode("ascii"),
                "raw_path": path,
                "query_string": query,
                "headers": self._headers,
                "state": {"connection": self},
            },
            self._state,
            is_http_1_0=is_http_1_0,
            keep_alive=not is_http_1_0 and self._parser.should_keep_alive(),
            awaits_go_ahead=self._awaits_go_ahead,
        )
        self._waiting.append(exchange)
        if self._current is not None or len(self._waiting) > 1:
            # Stop reading until a request is answered.
            self._pause_reading()

    def on_body(self, body: bytes) -> None:
        self._parser_steps += 1
        if self._newest is not None and not self._newest.response_complete:
            self._newest.add_to_body(body)

    def on_message_complete(self) -> None:
        # After an upgrade, the parser takes the head for the whole message.
        if self._newest is not None and not self._parser.should_upgrade():
            self._newest.mark_body_complete()

    # Called by the edge, the server, and exchanges.

    @property
    def has_whole_body(self) -> bool:
        """Whether the body of the newest request has arrived."""
        return self._newest is not None and not self._newest.more_body

    def close_unless_reused(self) -> None:
        """Close, unless the client soon sends another request on it.

        The connections of proxies stay open: a proxy keeps them for other clients, and a request that it sends at that
        moment would be lost.
        """
        if self._state.closes_after_streams and self._current is None and not self._is_head_awaited:
            self._close_in(CLOSE_AFTER_STREAM_TIMEOUT_SECONDS)

    def shut_down(self) -> None:
        """Close after answering all requests."""
        if self._newest is None or self._newest.response_complete:
            self.transport.close()
        else:
            self._newest.keep_alive = False

    def close(self) -> None:
        """Close after writing everything."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused and not self.transport.is_closing():
            self._is_reading_paused = True
            self.transport.pause_reading()

    def serve_next_after(self, exchange: Exchange) -> None:
        """Continue with the request after `exchange`, which is answered; or close the connection if it is not kept
        alive.
        """
        if not exchange.keep_alive:
            self.transport.close()
        if not self.transport.is_closing():
            self._current = None
            if self.drained is None:
                self._serve_next_or_idle()
            if exchange.body_bytes >= MANY_BYTES:
                # Scheduled for after this round of the loop, in which the answer is written.
                self._loop.call_soon(self._state.note_large_body, self)

    def hand_over(self, hand_over: Callable[[socket.socket], bool]) -> None:
        """Let another process serve the connection from now on, if the connection is idle between two requests and
        `hand_over` succeeds.
        """
        if self.is_lost or self._state.is_closing or self.transport.is_closing() or not self._is_resting():
            return
        # Bytes that arrive from now on stay in the socket, for the process that reads from it next.
        self.transport.pause_reading()
        copy = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
        if hand_over(copy):
            self.transport.abort()  # closes only this descriptor: the connection continues with the copy
        else:
            copy.close()
            self.transport.resume_reading()

    def _is_resting(self) -> bool:
        """Whether everything that has arrived is answered, and every answer is written."""
        is_asked = self._current or self._waiting or self._in_head or self._unfinished or self._refused
        return not (is_asked or self.is_half_closed or self.drained or self.transport.get_write_buffer_size())

    def _serve_next_or_idle(self) -> None:
        if self._is_reading_paused:
            self.resume_reading()
        if self._waiting:
            self._start_next_exchange()
        elif not self._in_head and not self._refused:
            self._close_in(self._state.keep_alive_seconds)

    def _start_next_exchange(self) -> None:
        self._current = exchange = self._waiting.pop(0)
        if exchange.disconnected:
            return  # the request is already refused
        if exchange.more_body:
            self._start_task(exchange)
        else:
            self._direct.answer_if_quick(
                exchange.scope, bytes(exchange.body), exchange.send_whole_response, partial(self._start_task, exchange)
            )

    def _start_task(self, exchange: Exchange) -> None:
        # The task runs the application itself, because each line of an open stream would pass through any frame around
        # it.
        task = self._loop.create_task(self._state.application(exchange.scope, exchange.receive, exchange.send))
        task.add_done_callback(exchange.handle_task_end)
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _stop_parsing(self, refusal: RequestRefusal) -> None:
        """Refuse the request whose head is being read. The parser reports that an exception was raised, but not which
        one, so the refusal is stored.
        """
        self._refusal = refusal
        raise _ParsingStopped

    def _parse_without_upgrade(self) -> None:
        """Give the rest of the message to a new parser, which gets the headers of the body but not the upgrade."""
        about_the_body = (b"content-length", b"transfer-encoding")
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self._headers if name in about_the_body]
        self._parser = httptools.HttpRequestParser(self)
        self._resuming = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(headers))
        self._resuming = False

    def _refuse(self, refusal: RequestRefusal) -> None:
        """Answer all requests read so far, then send this refusal as a Problem, and read nothing more."""
        self._refused = True
        self._deadline = None
        last = self._newest
        if self._is_in_body() and last is not self._current and (self._current or len(self._waiting) > 1):
            # The refused request waits for earlier ones, and must not be answered before them.
            self._waiting.pop()
            last = self._waiting[-1] if self._waiting else self._current
        if last is None or last.response_complete or (last.more_body and not last.response_started):
            self._send_problem(refusal)
        elif last.more_body:
            self.transport.close()
        else:
            last.keep_alive = False

    def _send_problem(self, refusal: RequestRefusal) -> None:
        if self.transport.is_closing():
            return
        if self._newest is not None and self._is_in_body():
            self._newest.mark_disconnected()
        body = orjson.dumps(plain_problem_members(refusal.status, refusal.detail))
        head = (
            f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}\r\nconnection: close\r\n"
            f"content-type: {PROBLEM_MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
            f"x-flow-id: {flow_id_or_new(None)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self._close_in(LINGER_TIMEOUT_SECONDS)

    def _is_in_body(self) -> bool:
        return self._newest is not None and self._newest.awaits_body

    # When the connection is closed.

    def _start_head_timeout(self) -> None:
        """Limit the time for a head, from its first byte or from the beginning of the connection."""
        if not self._is_head_awaited:
            self._is_head_awaited = True
            self._close_in(HEAD_TIMEOUT_SECONDS)

    def _close_in(self, seconds: float) -> None:
        self._deadline = deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > deadline:
            self._set_close_timer(deadline)

    def _set_close_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._close_if_due)

    def _close_if_due(self) -> None:
        self._timer = None
        if self._deadline is None or self.transport.is_closing():
            return
        if self._deadline > self._loop.time():
            self._set_close_timer(self._deadline)
        else:
            self.transport.close()


def _split_url(url: bytes) -> tuple[bytes, bytes]:
    """The path and the query of the target of a request."""
    if not url.isascii():
        raise ValueError
    if url.startswith(b"/") and b"#" not in url:
        path, _, query = url.partition(b"?")
        return path, query
    parsed = httptools.parse_url(url)
    return parsed.path, parsed.query or b""


def _refusal_of_head(
    method: bytes, version: str, headers: Sequence[tuple[bytes, bytes]], target: bytes, served_hosts: ServedHosts | None
) -> RequestRefusal | None:
    """The reason to refuse a head that two readers could understand differently, or whose host is not served."""
    if version not in ("1.0", "1.1"):
        return UNKNOWN_VERSION_REFUSAL
    hosts, in_chunks, host, is_of_page = 0, False, None, False
    for name, value in headers:
        if name == b"host":
            host = value
            hosts += 1 if HOST_PATTERN.fullmatch(value) else 2
        elif name == b"transfer-encoding":
            in_chunks = True
        elif name == b"origin" or name == b"sec-fetch-site":  # noqa: PLR1714  # a tuple would take twice as long
            is_of_page = True
    if hosts > 1 or (version == "1.1" and not hosts):
        return BAD_HOST_REFUSAL
    if version == "1.0" and in_chunks:
        return UNEXPECTED_CHUNKS_REFUSAL
    if method == b"CONNECT":
        return NOT_A_PROXY_REFUSAL
    return None if served_hosts is None else served_hosts.refusal_of(host, target, headers if is_of_page else ())


def _refusal_of_parse_error(error: httptools.HttpParserError, data: memoryview) -> RequestRefusal:
    unknown = isinstance(error, httptools.HttpParserInvalidMethodError)
    return UNKNOWN_METHOD_REFUSAL if unknown and REQUEST_LINE_PATTERN.match(data) else UNREADABLE_REQUEST_REFUSAL


def _detect_dead_peers(transport: asyncio.Transport) -> None:
    """Make the operating system close a connection whose other end accepts nothing for two minutes, because that
    machine may no longer be there.
    """
    taken: socket.socket | None = transport.get_extra_info("socket")
    if taken is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000)
