"""Request and response, the only types that routes and edges exchange; the memory of requests, and their URLs."""

from __future__ import annotations

import ctypes
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

import orjson
from msgspec import Struct, field

from nakadi.common.waiting import LEAVE_LOOP, Task, Wait
from nakadi.common.work import client_never_gone
from nakadi.model.authorization import UNAUTHENTICATED, Subject
from nakadi.model.outcomes import MAX_TEXT_CHARACTERS, Malformed, TooLarge, TryLater

if TYPE_CHECKING:
    # A function that answers without streams starts sooner without it.
    import asyncio

# Memory ---------------------------------------------------------------------------------------------------------------


# What a request has to have taken so that giving memory back to the system is worth a few milliseconds.
MIN_BYTES_TO_TRIM = 4 * 1024 * 1024


class RequestMemory:
    """How much memory requests may take, and have taken. Threads share it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def taken_bytes(self) -> int:
        return self._taken

    def open_share(self) -> MemoryShare:
        """The part of a new request; it has to be closed."""
        return MemoryShare(self)

    def take(self, size: int, share_size: int) -> None:
        """Take more for a request that has a share of so many bytes; raises `TooLarge` or `TryLater`."""
        if share_size + size > self._limit:
            raise TooLarge(f"The request needs more than the {self._limit} bytes of memory that all requests have")
        with self._lock:
            if self._taken + size > self._limit:
                raise TryLater("There is not enough memory for this request at the moment, please repeat request")
            self._taken += size

    def release(self, size: int) -> None:
        with self._lock:
            self._taken -= size


class MemoryShare:
    """What one request has taken. Without a `RequestMemory` there is no limit."""

    def __init__(self, memory: RequestMemory | None = None) -> None:
        self._memory = memory
        # An edge closes it while a thread may still be at work for a request that was given up.
        self._lock = threading.Lock()
        self.taken = 0
        self._closed = False

    def take(self, size: int) -> None:
        """Take so many bytes more, until the share is closed; raises `TooLarge` or `TryLater`."""
        if self._memory is None:
            return
        with self._lock:
            if not self._closed:
                self._memory.take(size, self.taken)
                self.taken += size

    def release_down_to(self, taken: int) -> None:
        """Give back what was taken since this much was, for work that is begun anew."""
        with self._lock:
            if self._memory is not None and not self._closed:
                self._memory.release(self.taken - taken)
                self.taken = taken

    def close(self) -> None:
        """Give everything back. Doing it again changes nothing."""
        with self._lock:
            if self._memory is not None and not self._closed:
                self._memory.release(self.taken)
            self._closed = True


UNLIMITED_SHARE = MemoryShare()
"""The share of requests whose memory has no limit."""


def trim_memory() -> None:
    """Give back what the allocator of the C library keeps of memory that was freed, in pieces between others."""
    trim = _find_malloc_trim()
    if trim is not None:
        trim(0)


def _find_malloc_trim() -> Callable[[int], int] | None:
    """The function for it, which only some libraries have."""
    try:
        malloc_trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return malloc_trim


# Requests and responses -----------------------------------------------------------------------------------------------


is_request_about_kpis: ContextVar[bool] = ContextVar("is_request_about_kpis", default=False)
"""Set by handlers that find that the request being answered reads figures (KPIs) by way of a subscription."""

JSON_MEDIA_TYPE = "application/json"
PROBLEM_MEDIA_TYPE = "application/problem+json"


class Parameter(Struct, frozen=True, eq=False):
    """A query parameter or a header, by its name. Two of them are never equal: a declaration is one object."""

    name: str


class Request(Struct, frozen=True, kw_only=True):
    """A request as the routes see it: body decompressed, subject known.

    `target` is path and query as they came; `path` is decoded. Header names are in lower case, and a header that came
    several times is joined by commas. `query` keeps every value of a name, in order. `is_client_gone` returns, in any
    thread, whether long work is to be given up, because the client may have left, or the process is about to end. Who
    needs memory in proportion to the body takes it from `memory` before. `declared` are the query parameters and
    headers that the route declares: its handler reads these and no others, through `nakadi.http.parameters`.
    """

    method: str
    path: str
    target: str = ""
    query: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    subject: Subject = UNAUTHENTICATED
    flow_id: str = ""
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    declared: tuple[Parameter, ...] = ()
    is_client_gone: Callable[[], bool] = client_never_gone
    memory: MemoryShare = UNLIMITED_SHARE

    def may_have_body(self) -> bool:
        """Not every version of HTTP announces one."""
        announced = self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers
        return announced or self.method in ("POST", "PUT", "PATCH")


def joined_headers(pairs: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Headers as requests have them: names in lower case, values of one name joined by commas."""
    listed = values_by_name((name.lower(), value) for name, value in pairs)
    return {name: ", ".join(values) for name, values in listed.items()}


def values_by_name(pairs: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """The values of each name, in their order."""
    collected: dict[str, list[str]] = {}
    for name, value in pairs:
        collected.setdefault(name, []).append(value)
    return collected


class Response(Struct, frozen=True):
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, {"content-type": JSON_MEDIA_TYPE, **(headers or {})}, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """Content as JSON, whatever it holds: what clients sent is returned to them, half of a surrogate pair included."""
    try:
        return orjson.dumps(content)
    except TypeError:
        # It writes an escape where orjson gives up, and numbers beyond 64 bits.
        return json.dumps(content, separators=(",", ":")).encode()


def empty_response(status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, headers or {})


class Outlet(Protocol):
    """The way to a client that is being streamed to."""

    async def write(self, chunk: bytes) -> None:
        """Send, flushed, and return once the client has room for more. Raises `ClientGone`."""

    def when_client_gone(self) -> asyncio.Future[None]:
        """Done when the client has gone away, also while nothing is being sent."""

    def when_shutting_down(self) -> asyncio.Future[None]:
        """Done when the process is about to end: the stream should come to its own end within seconds."""


class ClientGone(ConnectionError):
    """Raised by a write to a client that is no longer there."""


class StreamingResponse(Struct, frozen=True):
    """A response whose body is made while it is sent: headers go out at once, then `serve` writes until it returns.

    `serve` is never called for a `HEAD`, nor for a client that has already gone; for the latter
    `release_if_never_served` is, in a thread. Its handler must hold nothing that this does not release.
    When `serve` returns, what it held is given back, for the client sees the end right after. Then, or when it raises,
    `on_end` is called with how many bytes it has written.
    """

    serve: Callable[[Outlet], Awaitable[None]]
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    release_if_never_served: Callable[[], None] = lambda: None
    on_end: Callable[[int], None] = lambda _: None


Answer = Response | StreamingResponse


AnswerTask = Task[Answer]
"""Answers a request, and waits meanwhile, as for events to be stored."""


class UnfinishedAnswer(Struct, frozen=True):
    """A request whose answer depends on what its handler waits for; `resume` goes on with the outcome of that."""

    wait: Wait[Any]
    resume: Callable[[Any], Answer | UnfinishedAnswer]


def finish_answer(work: Answer | UnfinishedAnswer) -> Answer:
    """The answer, once everything that it depends on has been waited for in this thread."""
    while isinstance(work, UnfinishedAnswer):
        try:
            outcome = work.wait.run()
        except Exception as error:  # noqa: BLE001  # it is the handler's to judge
            outcome = error
        work = work.resume(outcome)
    return work


def stay_in_thread(work: Answer | UnfinishedAnswer) -> Answer | UnfinishedAnswer:
    """Go on with work that has left the event loop, up to where it waits."""
    while isinstance(work, UnfinishedAnswer) and work.wait is LEAVE_LOOP:
        work = work.resume(None)
    return work


# Requests of servers that speak ASGI ----------------------------------------------------------------------------------


AsgiScope = Mapping[str, Any]

SCHEME_AND_HOST_PATTERN = re.compile(r"^https?://[^/?]*", re.IGNORECASE)


class ClosableConnection(Protocol):
    """What a server may offer as `connection` in the state of a scope, for there are no words for it in ASGI."""

    is_half_closed: bool
    is_lost: bool
    has_whole_body: bool
    """Whether the body of the newest request has arrived, so that nothing is won by refusing to read it."""

    def close_unless_reused(self) -> None:
        """Close unless the client asks for something else on it in a moment."""

    def abort(self) -> None:
        """Close now."""


def request_from_scope(
    scope: AsgiScope,
    body: bytes = b"",
    memory: MemoryShare = UNLIMITED_SHARE,
    is_draining: Callable[[], bool] = client_never_gone,
) -> Request:
    """The request. What is wrong with its URL is for the application to say."""
    raw_path = scope["raw_path"].decode("latin-1")
    if not raw_path.startswith("/"):
        raw_path = SCHEME_AND_HOST_PATTERN.sub("", raw_path) or "/"
    query = scope["query_string"].decode("latin-1")
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    headers: Mapping[str, str] = dict(pairs)
    connection = connection_in_scope(scope)
    return Request(
        method=scope["method"],
        path=unquote(raw_path) if "%" in raw_path else raw_path,
        target=f"{raw_path}?{query}" if query else raw_path,
        query=parse_query(query) if query else {},
        headers=headers if len(headers) == len(pairs) else joined_headers(pairs),
        body=body,
        # Long work should be given up: who asked may be gone, or will have to ask another process.
        # A client that closes its half may still read. To be gone altogether looks the same from here.
        is_client_gone=lambda: (
            is_draining() or (connection is not None and (connection.is_lost or connection.is_half_closed))
        ),
        memory=memory,
    )


def parse_query(query: str) -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(values) for name, values in values_by_name(parse_qsl(query, keep_blank_values=True)).items()}


def connection_in_scope(scope: AsgiScope) -> ClosableConnection | None:
    found: ClosableConnection | None = scope.get("state", {}).get("connection")
    return found


# Whether a URL can be accepted ----------------------------------------------------------------------------------------


# Slashes, backslashes, semicolons and control characters that could make two readers see two different paths.
SUSPICIOUS_PATH_PATTERN = re.compile(r"//|;|\\|%2f|%5c|%3b|%0[0-9a-f]|%1[0-9a-f]|%25|/\.{1,2}(/|$)|%2e", re.IGNORECASE)
INCOMPLETE_ESCAPE_PATTERN = re.compile(r"%(?![0-9a-f]{2})", re.IGNORECASE)


def checked_path(request: Request) -> str:
    """The path as it was sent, still escaped. Raises `Malformed` for a flow id or a URL that cannot be accepted."""
    target, path = request.target, request.target.partition("?")[0]
    # It goes into every event of the request, and into every line of the log.
    if len(request.headers.get("x-flow-id", "")) > MAX_TEXT_CHARACTERS:
        raise Malformed(f"X-Flow-Id has more than {MAX_TEXT_CHARACTERS} characters")
    if SUSPICIOUS_PATH_PATTERN.search(path):
        raise Malformed("The request was rejected because its URL is not normal")
    if not target.isascii() or ("%" in target and INCOMPLETE_ESCAPE_PATTERN.search(target)):
        raise Malformed(
            "The request was rejected because its URL has characters that are not escaped as they should be"
        )
    if "%" in target:
        try:
            unquote_to_bytes(target).decode()
        except UnicodeDecodeError:
            raise Malformed("The request was rejected because its URL is not UTF-8") from None
    return path
