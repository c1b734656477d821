"""The application: checks a request, finds its route, and answers."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.waiting import resume
from nakadi.http import compression, negotiation
from nakadi.http.message import (
    JSON_MEDIA_TYPE,
    Answer,
    AnswerTask,
    Request,
    Response,
    StreamingResponse,
    UnfinishedAnswer,
    finish_answer,
    is_request_about_kpis,
)
from nakadi.http.problem import make_and_log_problem, problem_of_error, token_problem
from nakadi.http.router import Lane, Route, Router
from nakadi.http.urls import checked_path
from nakadi.model.authorization import UNAUTHENTICATED, Subject
from nakadi.model.outcomes import MAX_TEXT_CHARACTERS, NotAuthenticated, NotPermitted, Outcome, TooLarge
from nakadi.schemas.strict_json import MAX_MEMORY_BYTES_PER_TEXT_BYTE, parsed_memory_exceeds

if TYPE_CHECKING:
    pass


access_log = logging.getLogger("nakadi.access")

current_flow_id: ContextVar[str] = ContextVar("flow_id", default="")
"""The flow id of the request that is being answered, for log lines."""

Authenticate = Callable[[Request], Subject]
ReportAnswer = Callable[[str, int, float, int, int], None]
"""Called with every answer: the operation, its status, the seconds that it took, and the bytes of both bodies."""

ReportEarlyRefusal = Callable[[int], None]
"""Called with the status of every answer that refuses a request before its operation is known or its body is read."""

CountClientRequest = Callable[[str, str, str, float], None]
"""Called with every answer to a request with a route: the client, the method, the path, and the seconds that it
took."""

WrapAnswer = Callable[[Request, Answer, float], Answer]
"""Called with a request, its answer, and the time at which the request began. The returned answer is sent."""


def ignore_answer_report(_operation: str, _status: int, _seconds: float, _received: int, _sent: int) -> None:
    pass


def ignore_early_refusal_report(_status: int) -> None:
    pass


def ignore_client_request(_client: str, _method: str, _path: str, _seconds: float) -> None:
    pass


class AdmittedRequest(Struct, frozen=True):
    """A request with an acceptable head: it has a route, and its sender may use it."""

    request: Request
    route: Route


class Application:
    """Answers requests.

    Each request passes through only a few functions, because calls cost as much as the other work for a small request.
    This class only recognizes rare needs of requests, such as decompression or content negotiation; other modules do
    the work.

    Without `authenticate`, clients may send tokens, but nobody checks them.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        authenticate: Authenticate | None = None,
        report_answer: ReportAnswer = ignore_answer_report,
        wrap_answer: WrapAnswer | None = None,
        report_early_refusal: ReportEarlyRefusal = ignore_early_refusal_report,
        count_client_request: CountClientRequest = ignore_client_request,
    ) -> None:
        self.router = Router(routes)
        self.is_quick = self.router.is_quick
        self._authenticate = authenticate
        self._report_answer = report_answer
        self._wrap_answer = wrap_answer
        self._report_early_refusal = report_early_refusal
        self._count_client_request = count_client_request

    def answer(self, request: Request) -> Answer:
        """Answer a request from the network."""
        return finish_answer(self.admit_and_begin_answer(request))

    def admit_and_begin_answer(self, request: Request) -> Answer | UnfinishedAnswer:
        """Begin to answer a request from the network, and stop where the answer first has to wait."""
        admitted = self.admit(request)
        if not isinstance(admitted, AdmittedRequest):
            return admitted
        return self._run_or_resume(admitted.request, admitted.route, time.perf_counter())

    def admit(self, request: Request) -> AdmittedRequest | Answer:
        """Check the head of a request, whether or not its body has been read. Return the admitted request, or the
        answer that refuses it.
        """
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
                        compression.check_content_encoding(request)
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

    def begin_answer(self, admitted: AdmittedRequest, body: bytes) -> Answer | UnfinishedAnswer:
        """Begin to answer an admitted request after its body has been read."""
        began, route, request = time.perf_counter(), admitted.route, admitted.request
        if body is not request.body:
            request = replace(request, body=body)

        return self._run_or_resume(request, route, began)

    def _run_or_resume(
        self, request: Request, route: Route, began: float, task: AnswerTask | None = None, outcome: Any = None
    ) -> Answer | UnfinishedAnswer:
        """Run the handler of a route, or resume its task with the outcome for which the task has waited."""
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
            spent = time.perf_counter() - began
            self._report_answer(route.operation, answer.status, spent, len(request.body), sent)
            self._count_client_request(request.subject.name, request.method, logged_path(request), spent)
            return self._finish_answer(request, answer, began)
        finally:
            current_flow_id.reset(token)
            is_request_about_kpis.reset(about)

    def lane_of(self, request: Request) -> Lane:
        """The lane of the threads that should answer a request."""
        return self.router.lane_of(request.method, request.target.partition("?")[0])

    def refuse(self, request: Request, outcome: Outcome) -> Answer:
        """The answer to a request that an edge could not read to its end."""
        began, request = time.perf_counter(), replace(request, flow_id=flow_id_or_new(request))
        token = current_flow_id.set(request.flow_id)
        try:
            answer = negotiation.with_preferred_problem_media_type(request, problem_of_error(outcome))
            self._report_early_refusal(answer.status)
            return self._finish_answer(request, answer, began)
        finally:
            current_flow_id.reset(token)

    def _finish_answer(self, request: Request, answer: Answer, began: float) -> Answer:
        """Add the common headers to an answer, report it, and log it."""
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
    """The request with its body in the form that the route reads: decompressed, small enough, and of the right type."""
    if len(request.body) > route.max_body_bytes:
        raise TooLarge(f"The body is longer than {route.max_body_bytes} bytes")
    if "content-encoding" in request.headers:
        request = compression.decompress_body(request, route.max_body_bytes)
    if (
        route.max_parsed_bytes is not None
        # Most bodies are too short to be nested too deeply, whatever they contain.
        and len(request.body) * MAX_MEMORY_BYTES_PER_TEXT_BYTE > route.max_parsed_bytes
        and parsed_memory_exceeds(request.body, route.max_parsed_bytes)
    ):
        raise TooLarge("The body has too many values within it")
    if request.body and not route.accepts_any_content_type and request.headers.get("content-type") != JSON_MEDIA_TYPE:
        negotiation.check_content_type(request)
    return request


def logged_path(request: Request) -> str:
    """The path for the log: shortened, because clients choose its length, and without the query, which may contain
    secrets.
    """
    return request.target.partition("?")[0][:MAX_TEXT_CHARACTERS]


def flow_id_or_new(request: Request | None) -> str:
    """The client's flow id, or a new one if it is missing or unacceptable."""
    if request is not None:
        sent = request.headers.get("x-flow-id", "")
        if request.flow_id or 0 < len(sent) <= MAX_TEXT_CHARACTERS:
            return request.flow_id or sent
    # The id must be unique, but not secret. Asking the operating system for random bytes takes longer than reading a
    # body.
    return f"{random.getrandbits(96):024x}"
