"""The application: what happens to every request, in the order in which clients can see it.

URL, token, scope, route, then the body: its size, its content encoding, its media type; handler, and the answer's media
type. Everything before the body is checked before the body is read. Every error becomes a Problem here, and no request
can raise beyond this module.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.common.waiting import resume
from nakadi.http import negotiation
from nakadi.http.message import (
    JSON_MEDIA_TYPE,
    Answer,
    AnswerTask,
    Parameter,
    Request,
    Response,
    StreamingResponse,
    UnfinishedAnswer,
    checked_path,
    finish_answer,
    is_request_about_kpis,
)
from nakadi.http.problem import MethodNotAllowed, make_and_log_problem, problem_of_error, token_problem
from nakadi.model.authorization import UNAUTHENTICATED, Subject
from nakadi.model.outcomes import MAX_TEXT_CHARACTERS, NotAuthenticated, NotFound, NotPermitted, Outcome, TooLarge
from nakadi.schemas.strict_json import MAX_MEMORY_BYTES_PER_TEXT_BYTE, parsed_memory_exceeds

if TYPE_CHECKING:
    from nakadi.publishing.system_events import KpiCollector

# Routes: a table, looked through segment by segment -------------------------------------------------------------------


Handler = Callable[[Request], Answer]

# What a schema may have in any spelling, or thousands of cursors; and that in memory, once it is parsed.
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_PARSED_BODY_BYTES = 8 * 1024 * 1024

# Clients choose paths: neither many nor long ones may fill the memory.
MAX_CACHED_PATHS = 2000
MAX_CACHED_PATH_LENGTH = 300


class Lane(StrEnum):
    """Which threads of a process work on a request.

    Each lane has threads of its own. So requests that wait for something, such as a registry that does not answer, can
    fill their own lane and no other.
    """

    IMMEDIATE = "immediate"
    """No thread at all: the handler waits for nothing, and runs on the event loop."""
    MONITORING = "monitoring"
    EVENTS = "events"
    """Publishing, and the commits without which open streams come to a halt."""
    STREAMS = "streams"
    """Opening streams; those that are open have threads of their own."""
    REGISTRY = "registry"
    """Everything else."""


class Route(Struct, frozen=True, kw_only=True):
    """One operation.

    `parameters` are the query parameters and headers that its handler may read. What every request may have, such as
    `X-Flow-Id`, `Accept` and `Content-Encoding`, is the application's, and need not be declared for that.
    A handler that is `quick` may be begun on an event loop: before it waits, it raises `NeedsThread`, and it can be
    begun anew then. `accepts_any_content_type` reads a body of every content type; otherwise it must be JSON.
    `ignores_accept_header` sends JSON also to clients that do not accept it; otherwise these get 406 instead of a
    success with a body. A success of one that `changes_cached_documents` is answered when no process of the deployment
    goes by an older document any more, unless the request `only_reads`. `max_body_bytes` is how many bytes a body may
    have, as it is sent and decompressed, and `max_parsed_bytes` how many its values may take in memory.
    """

    method: str
    template: str
    handler: Handler | Callable[[Request], AnswerTask]
    operation: str
    parameters: tuple[Parameter, ...] = ()
    accepts_any_content_type: bool = False
    lane: Lane = Lane.REGISTRY
    quick: bool = False
    ignores_accept_header: bool = False
    changes_cached_documents: bool = False
    only_reads: Callable[[Request], bool] | None = None
    max_body_bytes: int = MAX_BODY_BYTES
    max_parsed_bytes: int | None = MAX_PARSED_BODY_BYTES


class _RouteNode(Struct):
    literal_children: dict[str, _RouteNode] = field(default_factory=dict)
    parameter_child: _RouteNode | None = None
    # By method, with the names of the parameters on the way.
    route_by_method: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _RouteNode()
        self._cached_search = lru_cache(MAX_CACHED_PATHS)(self._search_node)
        self._cached_route = lru_cache(MAX_CACHED_PATHS)(self._search_route_uncached)
        for route in self.routes:
            self._add_route(route)

    def _add_route(self, route: Route) -> None:
        node, names = self._root, []
        for segment in route.template.removeprefix("/").split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter_child = node.parameter_child or _RouteNode()
                node = node.parameter_child
            else:
                node = node.literal_children.setdefault(segment, _RouteNode())
        assert route.method not in node.route_by_method, f"two routes for {route.method} {route.template}"
        node.route_by_method[route.method] = route, tuple(names)

    def find_route(self, method: str, raw_path: str) -> tuple[Route, Mapping[str, str]]:
        """The route and its path parameters. `HEAD` goes where `GET` goes."""
        find = self._cached_route if len(raw_path) <= MAX_CACHED_PATH_LENGTH else self._search_route_uncached
        return find(method, raw_path)

    def _search_route_uncached(self, method: str, raw_path: str) -> tuple[Route, Mapping[str, str]]:
        found = self._find_node(raw_path)
        if found is None:
            raise NotFound(f"There is nothing at {unquote(raw_path)}")
        node, values = found
        entry = node.route_by_method.get("GET" if method == "HEAD" else method)
        if entry is None:
            raise MethodNotAllowed(method, _allowed_methods(node))
        route, names = entry
        return route, dict(zip(names, values, strict=True))

    def lane_of(self, method: str, raw_path: str) -> Lane:
        """The lane of a request, also of one that no route is for."""
        found = self._find_node(raw_path)
        if found is None:
            return Lane.REGISTRY
        routes = found[0].route_by_method
        # A path that lacks the method is refused where the methods that it has are answered.
        route, _ = routes.get("GET" if method == "HEAD" else method) or next(iter(routes.values()))
        return route.lane

    def is_quick(self, method: str, target: str) -> bool:
        """Whether the handler of a request may be begun on an event loop."""
        found = self._find_node(target.partition("?")[0])
        entry = found and found[0].route_by_method.get(method)
        return bool(entry and entry[0].quick)

    def allowed_methods(self, raw_path: str) -> str:
        """The methods of a path, as the `Allow` header lists them."""
        found = self._find_node(raw_path)
        if found is None:
            raise NotFound(f"There is nothing at {unquote(raw_path)}")
        return _allowed_methods(found[0])

    def _find_node(self, raw_path: str) -> tuple[_RouteNode, tuple[str, ...]] | None:
        """What a path leads to. Most requests ask for what others have asked for before, and each asks twice."""
        return self._cached_search(raw_path) if len(raw_path) <= MAX_CACHED_PATH_LENGTH else self._search_node(raw_path)

    def _search_node(self, raw_path: str) -> tuple[_RouteNode, tuple[str, ...]] | None:
        """The node with routes that a path leads to, and the values of its parameters.

        One slash at the end means nothing. A word goes before a parameter, unless it leads nowhere: then the parameter,
        which waits on the stack, is next.
        """
        segments = [*map(unquote, raw_path.removeprefix("/").removesuffix("/").split("/"))]
        waiting: list[tuple[_RouteNode, int, tuple[str, ...]]] = [(self._root, 0, ())]
        while waiting:
            node, depth, values = waiting.pop()
            if depth == len(segments):
                if node.route_by_method:
                    return node, values
                continue
            segment = segments[depth]
            if node.parameter_child is not None:
                waiting.append((node.parameter_child, depth + 1, (*values, segment)))
            if segment in node.literal_children:
                waiting.append((node.literal_children[segment], depth + 1, values))
        return None


def _allowed_methods(node: _RouteNode) -> str:
    implied = ("HEAD", "OPTIONS") if "GET" in node.route_by_method else ("OPTIONS",)
    return ", ".join((*node.route_by_method, *implied))


# The application ------------------------------------------------------------------------------------------------------


access_log = logging.getLogger("nakadi.access")

current_flow_id: ContextVar[str] = ContextVar("flow_id", default="")
"""The flow id of the request that is being answered, for log lines."""

Authenticate = Callable[[Request], Subject]
ReportAnswer = Callable[[str, int, float, int, int], None]
"""Called with every answer: the operation, its status, the seconds that it took, and the bytes of both bodies."""

ReportEarlyRefusal = Callable[[int], None]
"""Called with the status of every request that is refused before its operation is known, or its body read."""

WrapAnswer = Callable[[Request, Answer, float], Answer]
"""Called with a request, its answer, and when it began; what it returns is sent."""


def ignore_answer_report(_operation: str, _status: int, _seconds: float, _received: int, _sent: int) -> None:
    pass


def ignore_early_refusal_report(_status: int) -> None:
    pass


class AdmittedRequest(Struct, frozen=True):
    """A request whose head is in order: its sender may make it, and there is a route for it."""

    request: Request
    route: Route


class Application:
    """Answers requests.

    Each request passes only a few functions, for the way of a small one costs as much as its work. What few requests
    need, such as decompressing a body or agreeing on a media type, is recognised here and done elsewhere.

    Without `authenticate` a token may be sent, and is not looked at.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        authenticate: Authenticate | None = None,
        report_answer: ReportAnswer = ignore_answer_report,
        wrap_answer: WrapAnswer | None = None,
        report_early_refusal: ReportEarlyRefusal = ignore_early_refusal_report,
    ) -> None:
        self.router = Router(routes)
        self.is_quick = self.router.is_quick
        self._authenticate = authenticate
        self._report_answer = report_answer
        self._wrap_answer = wrap_answer
        self._report_early_refusal = report_early_refusal

    def answer(self, request: Request) -> Answer:
        """Answer a request as it came from the wire."""
        return finish_answer(self.admit_and_begin(request))

    def admit_and_begin(self, request: Request) -> Answer | UnfinishedAnswer:
        """Begin to answer a request as it came from the wire, up to where it waits first."""
        admitted = self.admit(request)
        if not isinstance(admitted, AdmittedRequest):
            return admitted
        return self._run_or_resume(admitted.request, admitted.route, time.perf_counter())

    def admit(self, request: Request) -> AdmittedRequest | Answer:
        """Look at the head of a request, whether its body has been read or not: it goes on, or this is its answer."""
        began = time.perf_counter()
        flow_id = flow_id_or_new(request)
        token = current_flow_id.set(flow_id)
        try:
            answer: Answer
            try:
                path = checked_path(request)
                try:
                    subject = UNAUTHENTICATED if self._authenticate is None else self._authenticate(request)
                except (NotAuthenticated, NotPermitted) as refusal:
                    answer = token_problem(refusal)
                else:
                    if "content-encoding" in request.headers:
                        negotiation.check_content_encoding(request)
                    if request.method != "OPTIONS":
                        route, parameters = self.router.find_route(request.method, path)
                        known = replace(
                            request,
                            flow_id=flow_id,
                            subject=subject,
                            path_parameters=parameters,
                            declared=route.parameters,
                        )
                        return AdmittedRequest(known, route)
                    answer = Response(200, {"allow": self.router.allowed_methods(path)})
            except Exception as error:  # noqa: BLE001  # a client always gets a Problem
                answer = _problem_answer(request, error)
            self._report_early_refusal(answer.status)
            return self._finish_answer(replace(request, flow_id=flow_id), answer, began)
        finally:
            current_flow_id.reset(token)

    def begin_admitted(self, admitted: AdmittedRequest, body: bytes) -> Answer | UnfinishedAnswer:
        """Begin to answer an admitted request, once its body has been read."""
        began, route, request = time.perf_counter(), admitted.route, admitted.request
        if body is not request.body:
            request = replace(request, body=body)

        return self._run_or_resume(request, route, began)

    def _run_or_resume(
        self, request: Request, route: Route, began: float, task: AnswerTask | None = None, outcome: Any = None
    ) -> Answer | UnfinishedAnswer:
        """Begin with the handler; or go on with its task, now that what it has waited for had this outcome."""
        token, about = current_flow_id.set(request.flow_id), is_request_about_kpis.set(False)
        try:
            answer: Answer
            try:
                made = task or route.handler(_with_readable_body(request, route))
                if isinstance(made, Response | StreamingResponse):
                    answer = made
                else:
                    try:
                        wait = resume(made, outcome)
                        return UnfinishedAnswer(wait, partial(self._run_or_resume, request, route, began, made))
                    except StopIteration as end:
                        answer = end.value
                if (
                    not route.ignores_accept_header
                    and answer.status < 400
                    and answer.headers.get("content-type") == JSON_MEDIA_TYPE
                ):
                    answer = negotiation.with_negotiated_media_type(request, answer)
            except Exception as error:  # noqa: BLE001  # the last line of defence, counted with the operation
                answer = _problem_answer(request, error)
            sent = len(answer.body) if isinstance(answer, Response) else 0
            self._report_answer(route.operation, answer.status, time.perf_counter() - began, len(request.body), sent)
            return self._finish_answer(request, answer, began)
        finally:
            current_flow_id.reset(token)
            is_request_about_kpis.reset(about)

    def lane_of(self, request: Request) -> Lane:
        """Which threads should answer a request."""
        return self.router.lane_of(request.method, request.target.partition("?")[0])

    def refuse(self, request: Request, outcome: Outcome) -> Answer:
        """Answer a request that an edge could not read to its end."""
        began, request = time.perf_counter(), replace(request, flow_id=flow_id_or_new(request))
        token = current_flow_id.set(request.flow_id)
        try:
            answer = negotiation.with_preferred_problem_media_type(request, problem_of_error(outcome))
            self._report_early_refusal(answer.status)
            return self._finish_answer(request, answer, began)
        finally:
            current_flow_id.reset(token)

    def _finish_answer(self, request: Request, answer: Answer, began: float) -> Answer:
        """The answer with the headers that every answer has. It is shown to the observer, and logged."""
        headers = {**answer.headers, "x-flow-id": request.flow_id}
        if isinstance(answer, StreamingResponse):
            headers["span_ctx"] = "{}"
            answer = Response(answer.status, headers) if request.method == "HEAD" else replace(answer, headers=headers)
        else:
            if not answer.body:
                headers["span_ctx"] = "{}"
            if request.method == "HEAD":
                headers["content-length"] = str(len(answer.body))
            answer = Response(answer.status, headers, b"" if request.method == "HEAD" else answer.body)
        if self._wrap_answer is not None:
            answer = self._wrap_answer(request, answer, began)
        if access_log.isEnabledFor(logging.INFO):
            spent = (time.perf_counter() - began) * 1000
            access_log.info("%s %s %d %.1f ms", request.method, logged_path(request), answer.status, spent)
        return answer


def _problem_answer(request: Request, error: Exception) -> Response:
    return negotiation.with_preferred_problem_media_type(
        request, make_and_log_problem(error, f"{request.method} {logged_path(request)}")
    )


def _with_readable_body(request: Request, route: Route) -> Request:
    """The request with its body as the route reads it: decompressed, not too large, and of the right type."""
    if len(request.body) > route.max_body_bytes:
        raise TooLarge(f"The body is longer than {route.max_body_bytes} bytes")
    if "content-encoding" in request.headers:
        request = negotiation.decompress_body(request, route.max_body_bytes)
    if (
        route.max_parsed_bytes is not None
        # Most bodies are too short for it, whatever they hold.
        and len(request.body) * MAX_MEMORY_BYTES_PER_TEXT_BYTE > route.max_parsed_bytes
        and parsed_memory_exceeds(request.body, route.max_parsed_bytes)
    ):
        raise TooLarge("The body has too many values within it")
    if request.body and not route.accepts_any_content_type and request.headers.get("content-type") != JSON_MEDIA_TYPE:
        negotiation.check_content_type(request)
    return request


def logged_path(request: Request) -> str:
    """The path as it may stand in a log: clients choose its length, and may put secrets into queries."""
    return request.target.partition("?")[0][:MAX_TEXT_CHARACTERS]


def flow_id_or_new(request: Request | None) -> str:
    """The client's, or a new one in the place of none and of one that is refused."""
    if request is not None:
        sent = request.headers.get("x-flow-id", "")
        if request.flow_id or 0 < len(sent) <= MAX_TEXT_CHARACTERS:
            return request.flow_id or sent
    # It has to be unlike all others, and is no secret. Asking the system for it takes longer than reading a body.
    return f"{random.getrandbits(96):024x}"


# Figures of requests (KPIs) -------------------------------------------------------------------------------------------


# Health checks would keep an idle broker writing.
UNCOUNTED_PATHS = ("/health", "/ready")


class RequestKpiRecorder:
    """Takes a figure of every answer when it is known, or has been streamed. What it returns is sent in its place."""

    def __init__(self, figures: KpiCollector) -> None:
        self._figures = figures

    def __call__(self, request: Request, answer: Answer, began: float) -> Answer:
        # A reader of figures makes requests, and would never come to their end if each of these were a figure again.
        is_about_them = is_request_about_kpis.get() or request.path_parameters.get("name") in self._figures.event_types
        if is_about_them or request.path.startswith(UNCOUNTED_PATHS):
            return answer
        if not isinstance(answer, StreamingResponse):
            if self._figures.is_collecting(self._figures.request_event_type):
                self._record(request, answer.status, began, len(answer.body))
            return answer

        return replace(answer, on_end=partial(self._record, request, answer.status, began))

    def _record(self, request: Request, status: int, began: float, size: int) -> None:
        path, _, query = request.target.partition("?")
        headers = request.headers
        figure = {
            "method": request.method,
            "path": path,
            "query": f"?{query}" if query else "",
            "user_agent": headers.get("user-agent", "-"),
            "status_code": status,
            "response_time_ms": round((time.perf_counter() - began) * 1000),
            "accept_encoding": headers.get("accept-encoding", "-"),
            "content_encoding": headers.get("content-encoding", "-"),
            "request_length": len(request.body),
            "response_length": size,
        }
        self._figures.record_request(figure, request.subject, request.flow_id)
