"""The application: what happens to every request, in the order in which clients can see it.

URL, token, scope, content encoding, route, media types, handler. Whatever goes wrong becomes a Problem here, and
nothing that a request does can raise beyond this module.
"""

from __future__ import annotations

import logging
import re
import secrets
import string
from collections.abc import Callable, Iterable
from dataclasses import replace

from nakadi.http import compression, negotiation
from nakadi.http.message import Answer, Request, Response, Streaming
from nakadi.http.problem import problem_of, token_problem
from nakadi.http.routing import Route, Router
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import Malformed, NotAuthenticated, NotPermitted, Outcome

log = logging.getLogger(__name__)

# Slashes, backslashes, semicolons and control characters that could make two readers see two different paths.
SUSPICIOUS = re.compile(r"//|;|\\|%2f|%5c|%3b|%0[0-9a-f]|%1[0-9a-f]|%25|/\.{1,2}(/|$)|%2e", re.IGNORECASE)

Authenticate = Callable[[Request], Subject]


class Application:
    def __init__(self, routes: Iterable[Route], authenticate: Authenticate) -> None:
        self.router = Router(routes)
        self._authenticate = authenticate

    def answer(self, request: Request) -> Answer:
        """Answer a request as it came from the wire."""
        request = replace(request, flow_id=request.headers.get("x-flow-id") or new_flow_id())
        answer = self._attempt(request)
        headers = {**answer.headers, "x-flow-id": request.flow_id}
        if isinstance(answer, Streaming):
            return replace(answer, headers=headers)
        body = b"" if request.method == "HEAD" else answer.body
        return Response(answer.status, {**headers, "span_ctx": "{}"}, body)

    def _attempt(self, request: Request) -> Answer:
        try:
            _refuse_suspicious(request)
            try:
                request = replace(request, subject=self._authenticate(request))
            except (NotAuthenticated, NotPermitted) as refusal:
                return token_problem(refusal)
            return self._dispatch(compression.unpacked(request))
        except Exception as error:  # the last line of defence: a client always gets a Problem
            return negotiation.adapted(request, self._problem(request, error))

    def _dispatch(self, request: Request) -> Answer:
        raw_path = request.target.partition("?")[0]
        if request.method == "OPTIONS":
            return Response(200, {"allow": self.router.allowed(raw_path)})
        route, parameters = self.router.find(request.method, raw_path)
        negotiation.check(request, route)
        return route.handler(replace(request, path_parameters=parameters))

    def _problem(self, request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.status >= 500 and not isinstance(error, Outcome):
            # The ticket in the Problem is what a client can report; the flow id finds the rest of the story.
            log.error("%s %s failed: %s", request.method, request.path, problem.body.decode(), exc_info=error)
        return problem


def new_flow_id() -> str:
    alphabet = string.ascii_letters + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(24))


def _refuse_suspicious(request: Request) -> None:
    if SUSPICIOUS.search(request.target.partition("?")[0]):
        raise Malformed("The request was rejected because its URL is not normal")
