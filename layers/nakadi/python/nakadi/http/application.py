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
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import unquote_to_bytes

from nakadi.http import compression, negotiation
from nakadi.http.message import Answer, Request, Response, Streaming, is_about_figures
from nakadi.http.problem import logged_problem, problem_of, token_problem
from nakadi.http.routing import Lane, Route, Router
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import Malformed, NotAuthenticated, NotPermitted, Outcome, TooLarge
from nakadi.model.sizes import MOST_CHARACTERS
from nakadi.schemas.strict_json import exceeds

access_log = logging.getLogger("nakadi.access")

flow_of_this_request: ContextVar[str] = ContextVar("flow_id", default="")
"""The flow id of the request that is being answered, for those who write logs."""

# Slashes, backslashes, semicolons and control characters that could make two readers see two different paths.
SUSPICIOUS = re.compile(r"//|;|\\|%2f|%5c|%3b|%0[0-9a-f]|%1[0-9a-f]|%25|/\.{1,2}(/|$)|%2e", re.IGNORECASE)
HALF_AN_ESCAPE = re.compile(r"%(?![0-9a-f]{2})", re.IGNORECASE)

Authenticate = Callable[[Request], Subject]
Answered = Callable[[str, int, float, int, int], None]
"""Told of every answer: the operation, its status, the seconds that it took, and the bytes of both bodies."""

Refused = Callable[[int], None]
"""Told of the status of every request that is refused before its operation is known, or its body read."""

Observe = Callable[[Request, Answer, float], Answer]
"""Shown a request, its answer, and when it began; what it gives back is sent."""


def nobody_counts(_operation: str, _status: int, _seconds: float, _received: int, _sent: int) -> None:
    pass


def nobody_counts_refusals(_status: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request whose head is in order: its sender may ask for this, and there is somebody to answer it."""

    request: Request
    route: Route


Step = TypeVar("Step", bound=Admitted | Answer)


class Application:
    def __init__(
        self,
        routes: Iterable[Route],
        authenticate: Authenticate,
        answered: Answered = nobody_counts,
        observe: Observe | None = None,
        refused: Refused = nobody_counts_refusals,
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
        return self._told(request, self._counted_admission)

    def complete(self, admitted: Admitted, body: bytes) -> Answer:
        """Answer an admitted request, once its body has been read."""
        return self._told(replace(admitted.request, body=body), lambda request: self._dispatch(admitted, request))

    def lane(self, request: Request) -> Lane:
        """Which threads should answer a request."""
        return self.router.lane(request.method, _raw_path(request))

    def refusal(self, request: Request, outcome: Outcome) -> Answer:
        """Answer a request that an edge could not read to its end."""
        return self._told(request, lambda named: self._unrouted(negotiation.adapted(named, problem_of(outcome))))

    def _told(self, request: Request, attempt: Callable[[Request], Step]) -> Step | Answer:
        """Take a step under the request's flow id, which goes into the response and into every line of the logs."""
        began = time.perf_counter()
        flow_id = request.flow_id or _flow_id_of(request)
        request = replace(request, flow_id=flow_id)
        token, about = flow_of_this_request.set(flow_id), is_about_figures.set(False)
        try:
            step = attempt(request)
            if isinstance(step, Admitted):
                return step
            answer = _finished(request, step)
            if self._observe is not None:
                answer = self._observe(request, answer, began)
            if access_log.isEnabledFor(logging.INFO):
                spent = (time.perf_counter() - began) * 1000
                access_log.info("%s %s %d %.1f ms", request.method, logged_path(request), answer.status, spent)
            return answer
        finally:
            flow_of_this_request.reset(token)
            is_about_figures.reset(about)

    def _counted_admission(self, request: Request) -> Admitted | Answer:
        admitted = self._admission(request)
        return admitted if isinstance(admitted, Admitted) else self._unrouted(admitted)

    def _unrouted(self, answer: Answer) -> Answer:
        self._refused(answer.status)
        return answer

    def _admission(self, request: Request) -> Admitted | Answer:
        try:
            _check_flow_id(request)
            _refuse_suspicious(request)
            try:
                request = replace(request, subject=self._authenticate(request))
            except (NotAuthenticated, NotPermitted) as refusal:
                return token_problem(refusal)
            compression.check(request)
            if request.method == "OPTIONS":
                return Response(200, {"allow": self.router.allowed(_raw_path(request))})
            route, parameters = self.router.find(request.method, _raw_path(request))
            return Admitted(replace(request, path_parameters=parameters), route)
        except Exception as error:  # noqa: BLE001  # a client always gets a Problem
            return _problem(request, error)

    def _dispatch(self, admitted: Admitted, request: Request) -> Answer:
        route, began, received = admitted.route, time.perf_counter(), len(request.body)
        try:
            answer = negotiation.negotiated(request, route, route.handler(_with_body(request, route)))
        except Exception as error:  # noqa: BLE001  # the last line of defence, counted with the operation
            answer = _problem(request, error)
        sent = len(answer.body) if isinstance(answer, Response) else 0
        self._answered(route.operation, answer.status, time.perf_counter() - began, received, sent)
        return answer


def _problem(request: Request, error: Exception) -> Response:
    return negotiation.adapted(request, logged_problem(error, f"{request.method} {logged_path(request)}"))


def new_flow_id() -> str:
    return secrets.token_hex(12)


def _with_body(request: Request, route: Route) -> Request:
    """The request with a body that is as the route reads it."""
    if len(request.body) > route.most_body:
        raise TooLarge(f"The body is longer than {route.most_body} bytes")
    request = compression.unpacked(request, route.most_body)
    if route.most_parsed is not None and exceeds(request.body, route.most_parsed):
        raise TooLarge("The body has too many values within it")
    negotiation.check_body(request, route)
    return request


def logged_path(request: Request) -> str:
    """The path as it may stand in a log. Clients choose its length, and put things into queries that are no one's."""
    return _raw_path(request)[:MOST_CHARACTERS]


def _raw_path(request: Request) -> str:
    return request.target.partition("?")[0]


def _finished(request: Request, answer: Answer) -> Answer:
    headers = {**answer.headers, "x-flow-id": request.flow_id}
    if isinstance(answer, Streaming) or not answer.body:
        headers["span_ctx"] = "{}"
    if request.method == "HEAD":
        length = {} if isinstance(answer, Streaming) else {"content-length": str(len(answer.body))}
        return Response(answer.status, {**headers, **length})
    return replace(answer, headers=headers)


def _flow_id_of(request: Request) -> str:
    """The client's, or a new one in the place of none and of one that is refused."""
    sent = request.headers.get("x-flow-id", "")
    return sent if 0 < len(sent) <= MOST_CHARACTERS else new_flow_id()


def _check_flow_id(request: Request) -> None:
    # It goes into every event of the request, and into every line of the log.
    if len(request.headers.get("x-flow-id", "")) > MOST_CHARACTERS:
        raise Malformed(f"X-Flow-Id has more than {MOST_CHARACTERS} characters")


def _refuse_suspicious(request: Request) -> None:
    if SUSPICIOUS.search(_raw_path(request)):
        raise Malformed("The request was rejected because its URL is not normal")
    if not request.target.isascii() or HALF_AN_ESCAPE.search(request.target):
        raise Malformed(
            "The request was rejected because its URL has characters that are not escaped as they should be"
        )
    try:
        unquote_to_bytes(request.target).decode()
    except UnicodeDecodeError:
        raise Malformed("The request was rejected because its URL is not UTF-8") from None
