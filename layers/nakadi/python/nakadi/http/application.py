"""The application: what happens to every request, in the order in which clients can see it.

URL, token, scope, route, then the body: its size, its content encoding, its media type; handler, and the answer's media
type. What stands before the body is judged before the body is read. Whatever goes wrong becomes a Problem here, and
nothing that a request does can raise beyond this module.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from urllib.parse import unquote_to_bytes

from msgspec import Struct
from msgspec.structs import replace

from nakadi.http import compression, negotiation
from nakadi.http.message import JSON, Answer, Request, Response, Streaming, is_about_figures
from nakadi.http.problem import logged_problem, problem_of, token_problem
from nakadi.http.routing import Lane, Route, Router
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import MOST_CHARACTERS, Malformed, NotAuthenticated, NotPermitted, Outcome, TooLarge
from nakadi.schemas.strict_json import memory_exceeds

access_log = logging.getLogger("nakadi.access")

flow_of_this_request: ContextVar[str] = ContextVar("flow_id", default="")
"""The flow id of the request that is being answered, for log lines."""

# Slashes, backslashes, semicolons and control characters that could make two readers see two different paths.
SUSPICIOUS = re.compile(r"//|;|\\|%2f|%5c|%3b|%0[0-9a-f]|%1[0-9a-f]|%25|/\.{1,2}(/|$)|%2e", re.IGNORECASE)
HALF_AN_ESCAPE = re.compile(r"%(?![0-9a-f]{2})", re.IGNORECASE)

Authenticate = Callable[[Request], Subject]
Answered = Callable[[str, int, float, int, int], None]
"""Called with every answer: the operation, its status, the seconds that it took, and the bytes of both bodies."""

Refused = Callable[[int], None]
"""Called with the status of every request that is refused before its operation is known, or its body read."""

Observe = Callable[[Request, Answer, float], Answer]
"""Called with a request, its answer, and when it began; what it returns is sent."""


def discard_answer(_operation: str, _status: int, _seconds: float, _received: int, _sent: int) -> None:
    pass


def discard_refusal(_status: int) -> None:
    pass


class Admitted(Struct, frozen=True):
    """A request whose head is in order: its sender may make it, and there is a route for it."""

    request: Request
    route: Route


class Application:
    """Answers requests.

    Each request passes only a few functions, for the way of a small one costs as much as its work. What few requests
    need, such as unpacking a body or agreeing on a media type, is recognised here and done elsewhere.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        authenticate: Authenticate,
        answered: Answered = discard_answer,
        observe: Observe | None = None,
        refused: Refused = discard_refusal,
    ) -> None:
        self.router = Router(routes)
        self._authenticate = authenticate
        self._answered = answered
        self._observe = observe
        self._refused = refused

    def answer(self, request: Request) -> Answer:
        """Answer a request as it came from the wire."""
        admitted = self.admit(request)
        return self.complete(admitted, request.body) if isinstance(admitted, Admitted) else admitted

    def admit(self, request: Request) -> Admitted | Answer:
        """Look at the head of a request, whether its body has been read or not: it goes on, or this is its answer."""
        began = time.perf_counter()
        flow_id = _flow_id_of(request)
        token = flow_of_this_request.set(flow_id)
        try:
            answer: Answer
            try:
                path = _checked_path(request)
                try:
                    subject = self._authenticate(request)
                except (NotAuthenticated, NotPermitted) as refusal:
                    answer = token_problem(refusal)
                else:
                    if "content-encoding" in request.headers:
                        compression.check(request)
                    if request.method != "OPTIONS":
                        route, parameters = self.router.find(request.method, path)
                        known = replace(request, flow_id=flow_id, subject=subject, path_parameters=parameters)
                        return Admitted(known, route)
                    answer = Response(200, {"allow": self.router.allowed(path)})
            except Exception as error:  # noqa: BLE001  # a client always gets a Problem
                answer = _problem(request, error)
            self._refused(answer.status)
            return self._finished(replace(request, flow_id=flow_id), answer, began)
        finally:
            flow_of_this_request.reset(token)

    def complete(self, admitted: Admitted, body: bytes) -> Answer:
        """Answer an admitted request, once its body has been read."""
        began, route, request = time.perf_counter(), admitted.route, admitted.request
        if body is not request.body:
            request = replace(request, body=body)
        token, about = flow_of_this_request.set(request.flow_id), is_about_figures.set(False)
        try:
            answer: Answer
            try:
                answer = route.handler(_with_readable_body(request, route))
                if not route.any_accept and answer.status < 400 and answer.headers.get("content-type") == JSON:
                    answer = negotiation.negotiated(request, answer)
            except Exception as error:  # noqa: BLE001  # the last line of defence, counted with the operation
                answer = _problem(request, error)
            sent = len(answer.body) if isinstance(answer, Response) else 0
            self._answered(route.operation, answer.status, time.perf_counter() - began, len(body), sent)
            return self._finished(request, answer, began)
        finally:
            flow_of_this_request.reset(token)
            is_about_figures.reset(about)

    def lane(self, request: Request) -> Lane:
        """Which threads should answer a request."""
        return self.router.lane(request.method, request.target.partition("?")[0])

    def refusal(self, request: Request, outcome: Outcome) -> Answer:
        """Answer a request that an edge could not read to its end."""
        began, request = time.perf_counter(), replace(request, flow_id=_flow_id_of(request))
        token = flow_of_this_request.set(request.flow_id)
        try:
            answer = negotiation.adapted(request, problem_of(outcome))
            self._refused(answer.status)
            return self._finished(request, answer, began)
        finally:
            flow_of_this_request.reset(token)

    def _finished(self, request: Request, answer: Answer, began: float) -> Answer:
        """The answer with the headers that every answer has. It is shown to the observer, and logged."""
        headers = {**answer.headers, "x-flow-id": request.flow_id}
        if isinstance(answer, Streaming):
            headers["span_ctx"] = "{}"
            answer = Response(answer.status, headers) if request.method == "HEAD" else replace(answer, headers=headers)
        else:
            if not answer.body:
                headers["span_ctx"] = "{}"
            if request.method == "HEAD":
                headers["content-length"] = str(len(answer.body))
            answer = Response(answer.status, headers, b"" if request.method == "HEAD" else answer.body)
        if self._observe is not None:
            answer = self._observe(request, answer, began)
        if access_log.isEnabledFor(logging.INFO):
            spent = (time.perf_counter() - began) * 1000
            access_log.info("%s %s %d %.1f ms", request.method, logged_path(request), answer.status, spent)
        return answer


def _problem(request: Request, error: Exception) -> Response:
    return negotiation.adapted(request, logged_problem(error, f"{request.method} {logged_path(request)}"))


def new_flow_id() -> str:
    return secrets.token_hex(12)


def _with_readable_body(request: Request, route: Route) -> Request:
    """The request with its body as the route reads it: unpacked, no larger than it may be, and of the right type."""
    if len(request.body) > route.most_body:
        raise TooLarge(f"The body is longer than {route.most_body} bytes")
    if "content-encoding" in request.headers:
        request = compression.unpacked(request, route.most_body)
    if route.most_parsed is not None and request.body and memory_exceeds(request.body, route.most_parsed):
        raise TooLarge("The body has too many values within it")
    if request.body and not route.any_body and request.headers.get("content-type") != JSON:
        negotiation.check_content_type(request)
    return request


def logged_path(request: Request) -> str:
    """The path as it may stand in a log: clients choose its length, and may put secrets into queries."""
    return request.target.partition("?")[0][:MOST_CHARACTERS]


def _flow_id_of(request: Request) -> str:
    """The client's, or a new one in the place of none and of one that is refused."""
    sent = request.headers.get("x-flow-id", "")
    return request.flow_id or (sent if 0 < len(sent) <= MOST_CHARACTERS else new_flow_id())


def _checked_path(request: Request) -> str:
    """The path as it was sent, still escaped. Raises `Malformed` for a flow id or a URL that cannot be accepted."""
    target, path = request.target, request.target.partition("?")[0]
    # It goes into every event of the request, and into every line of the log.
    if len(request.headers.get("x-flow-id", "")) > MOST_CHARACTERS:
        raise Malformed(f"X-Flow-Id has more than {MOST_CHARACTERS} characters")
    if SUSPICIOUS.search(path):
        raise Malformed("The request was rejected because its URL is not normal")
    if not target.isascii() or ("%" in target and HALF_AN_ESCAPE.search(target)):
        raise Malformed(
            "The request was rejected because its URL has characters that are not escaped as they should be"
        )
    if "%" in target:
        try:
            unquote_to_bytes(target).decode()
        except UnicodeDecodeError:
            raise Malformed("The request was rejected because its URL is not UTF-8") from None
    return path
