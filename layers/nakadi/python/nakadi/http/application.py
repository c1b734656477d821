"""The application: what happens to every request, in the order in which clients can see it.

URL, token, scope, content encoding, route, the body's media type, handler, the answer's media type. Whatever goes
wrong becomes a Problem here, and nothing that a request does can raise beyond this module.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from urllib.parse import unquote_to_bytes

from nakadi.http import compression, negotiation
from nakadi.http.message import Answer, Request, Response, Streaming
from nakadi.http.problem import logged_problem, problem_of, token_problem
from nakadi.http.routing import Lane, Route, Router
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import Malformed, NotAuthenticated, NotPermitted, Outcome

access_log = logging.getLogger("nakadi.access")

flow_of_this_request: ContextVar[str] = ContextVar("flow_id", default="")
"""The flow id of the request that is being answered, for those who write logs."""

# Slashes, backslashes, semicolons and control characters that could make two readers see two different paths.
SUSPICIOUS = re.compile(r"//|;|\\|%2f|%5c|%3b|%0[0-9a-f]|%1[0-9a-f]|%25|/\.{1,2}(/|$)|%2e", re.IGNORECASE)
HALF_AN_ESCAPE = re.compile(r"%(?![0-9a-f]{2})", re.IGNORECASE)

Authenticate = Callable[[Request], Subject]
Answered = Callable[[str, int, float], None]
"""Told of every answer: the operation, its status, the seconds that it took."""


def nobody_counts(_operation: str, _status: int, _seconds: float) -> None:
    pass


class Application:
    def __init__(self, routes: Iterable[Route], authenticate: Authenticate, answered: Answered = nobody_counts) -> None:
        self.router = Router(routes)
        self._authenticate = authenticate
        self._answered = answered

    def answer(self, request: Request) -> Answer:
        """Answer a request as it came from the wire."""
        return self._told(request, self._attempt)

    def lane(self, request: Request) -> Lane:
        """Which threads should answer a request."""
        return self.router.lane(request.method, _raw_path(request))

    def refusal(self, request: Request, outcome: Outcome) -> Answer:
        """Answer a request that an edge could not read to its end."""
        return self._told(request, lambda named: negotiation.adapted(named, problem_of(outcome)))

    def _told(self, request: Request, attempt: Callable[[Request], Answer]) -> Answer:
        """Answer under the request's flow id, which goes into the response and into every line of the logs."""
        began = time.perf_counter()
        request = replace(request, flow_id=request.headers.get("x-flow-id") or new_flow_id())
        token = flow_of_this_request.set(request.flow_id)
        try:
            answer = _finished(request, attempt(request))
            if access_log.isEnabledFor(logging.INFO):
                # The query stays out: nobody knows what clients put there.
                spent = (time.perf_counter() - began) * 1000
                access_log.info("%s %s %d %.1f ms", request.method, _raw_path(request), answer.status, spent)
            return answer
        finally:
            flow_of_this_request.reset(token)

    def _attempt(self, request: Request) -> Answer:
        try:
            _refuse_suspicious(request)
            try:
                request = replace(request, subject=self._authenticate(request))
            except (NotAuthenticated, NotPermitted) as refusal:
                return token_problem(refusal)
            return self._dispatch(compression.unpacked(request))
        except Exception as error:  # noqa: BLE001  # the last line of defence: a client always gets a Problem
            return negotiation.adapted(request, logged_problem(error, f"{request.method} {_raw_path(request)}"))

    def _dispatch(self, request: Request) -> Answer:
        raw_path = _raw_path(request)
        if request.method == "OPTIONS":
            return Response(200, {"allow": self.router.allowed(raw_path)})
        route, parameters = self.router.find(request.method, raw_path)
        began = time.perf_counter()
        answer = self._handled(route, replace(request, path_parameters=parameters))
        self._answered(route.operation, answer.status, time.perf_counter() - began)
        return answer

    def _handled(self, route: Route, request: Request) -> Answer:
        try:
            negotiation.check_body(request, route)
            return negotiation.negotiated(request, route, route.handler(request))
        except Exception as error:  # noqa: BLE001  # counted with the operation that it belongs to
            return negotiation.adapted(request, logged_problem(error, f"{request.method} {_raw_path(request)}"))


def new_flow_id() -> str:
    return secrets.token_hex(12)


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
