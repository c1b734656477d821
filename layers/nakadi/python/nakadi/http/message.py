"""Request and response, the only types that routes and edges exchange."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from msgspec import Struct, field

from nakadi.common.waiting import LEAVE_LOOP, Task, Wait
from nakadi.common.work import client_never_gone
from nakadi.http.memory import UNLIMITED_SHARE, MemoryShare
from nakadi.model.authorization import UNAUTHENTICATED, Subject

if TYPE_CHECKING:
    # A Lambda function that answers without streams starts sooner without this import.
    import asyncio


is_request_about_kpis: ContextVar[bool] = ContextVar("is_request_about_kpis", default=False)
"""Set by handlers when they find that the request being answered reads figures (KPIs) through a subscription."""

JSON_MEDIA_TYPE = "application/json"
PROBLEM_MEDIA_TYPE = "application/problem+json"


class Parameter(Struct, frozen=True, eq=False):
    """A query parameter or a header, by its name. Declarations are compared by identity, so two are never equal."""

    name: str


class Request(Struct, frozen=True, kw_only=True):
    """A request as the routes see it: body decompressed, subject known.

    `target` is the path and the query as the client sent them; `path` is decoded. Header names are in lower case, and
    the values of a repeated header are joined by commas. `query` keeps every value of a name, in order.
    `is_client_gone` may be called in any thread, and says whether to give up long work, because the client may have
    left or the process is about to end. A handler that needs memory in proportion to the body first takes it from
    `memory`. `declared` are the query parameters and headers that the route declares: its handler reads these and no
    others, through `nakadi.http.parameters`.
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

    @property
    def bearer_token(self) -> str | None:
        """The token of the caller, which the broker has checked if authentication is on; None if there is none."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() or None if scheme.lower() == "bearer" else None

    def may_have_body(self) -> bool:
        """Whether the request may have a body. Not every version of HTTP announces one."""
        announced = self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers
        return announced or self.method in ("POST", "PUT", "PATCH")


def joined_headers(pairs: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Headers as requests have them: names in lower case, values of one name joined by commas."""
    listed = values_by_name((name.lower(), value) for name, value in pairs)
    return {name: ", ".join(values) for name, values in listed.items()}


def values_by_name(pairs: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """The values of each name, in order."""
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
    """Any content as JSON. Clients get back the texts that they sent, even with half of a surrogate pair."""
    try:
        return orjson.dumps(content)
    except TypeError:
        # The standard library escapes half of a surrogate pair, where orjson fails, and also writes numbers beyond 64
        # bits.
        return json.dumps(content, separators=(",", ":")).encode()


def empty_response(status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, headers or {})


class Outlet(Protocol):
    """The connection to a client that receives a stream."""

    async def write(self, chunk: bytes) -> None:
        """Send a chunk without delay, and return once the client has room for more. Raises `ClientGone`."""

    def when_client_gone(self) -> asyncio.Future[None]:
        """A future that is done when the client has left, even while nothing is being sent."""

    def when_shutting_down(self) -> asyncio.Future[None]:
        """A future that is done when the process is about to end: the stream should end by itself within seconds."""


class ClientGone(ConnectionError):
    """Raised by a write to a client that is no longer there."""


class StreamingResponse(Struct, frozen=True):
    """A response whose body is produced while it is sent: headers are sent at once, then `serve` writes until it
    returns.

    `serve` is never called for a `HEAD`, nor for a client that has already left; for the latter,
    `release_if_never_served` is called, in a thread. The handler must hold no resource that this call does not release.
    `serve` must release its resources before it returns, because the client sees the end right afterwards. When `serve`
    has returned or raised, `on_end` is called with the number of bytes that were written.
    """

    serve: Callable[[Outlet], Awaitable[None]]
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    release_if_never_served: Callable[[], None] = lambda: None
    on_end: Callable[[int], None] = lambda _: None


Answer = Response | StreamingResponse


AnswerTask = Task[Answer]
"""A task that answers a request, and may wait meanwhile, for example until events are stored."""


class UnfinishedAnswer(Struct, frozen=True):
    """A request whose answer depends on work that its handler awaits; `resume` continues with the outcome."""

    wait: Wait[Any]
    resume: Callable[[Any], Answer | UnfinishedAnswer]


def finish_answer(work: Answer | UnfinishedAnswer) -> Answer:
    """The answer. This thread waits for everything on which it depends."""
    while isinstance(work, UnfinishedAnswer):
        try:
            outcome = work.wait.run()
        except Exception as error:  # noqa: BLE001  # it is the handler's to judge
            outcome = error
        work = work.resume(outcome)
    return work


def stay_in_thread(work: Answer | UnfinishedAnswer) -> Answer | UnfinishedAnswer:
    """Continue work that has left the event loop, up to where it waits."""
    while isinstance(work, UnfinishedAnswer) and work.wait is LEAVE_LOOP:
        work = work.resume(None)
    return work
