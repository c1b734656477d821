"""Lambda functions: a handler that is opened by its first invocation, its log lines, its metrics, and API Gateway.

Lambda itself traces each invocation. What happens within one is traced by a layer with OpenTelemetry, where a
deployment names one: it wraps the handler and the calls to AWS without a line here.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from nakadi.app.logs import METRIC_NAMESPACE, without_secrets
from nakadi.http import compression
from nakadi.http.application import Application, current_flow_id
from nakadi.http.message import Request, Response, StreamingResponse, joined_headers
from nakadi.http.problem import NotAcceptable
from nakadi.model.authorization import UNAUTHENTICATED, Attribute, Subject
from nakadi.model.outcomes import FeatureSwitchedOff, NotAuthenticated

if TYPE_CHECKING:
    from nakadi.auth.tokens import TokenVerifier


log = logging.getLogger(__name__)

# Each deployment has its own, so that alarms of one do not count what another one tells.

HandleInvocation = Callable[[Mapping[str, Any], Any], Any]


def make_logger() -> Logger:
    made = Logger(
        service="nakadi", logger_formatter=RedactingLogFormatter(use_rfc3339=True, serialize_stacktrace=False)
    )
    made.registered_handler.addFilter(_add_flow_id)
    # The gateway keeps an access log of its own.
    logging.getLogger("nakadi.access").setLevel(logging.WARNING)
    return made


class RedactingLogFormatter(LambdaPowertoolsFormatter):
    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name for it
        return without_secrets(super().formatException(ei))


def _add_flow_id(record: logging.LogRecord) -> bool:
    """Every line bears the flow id of its request, and no line a token."""
    record.msg, record.args = without_secrets(record.getMessage()), None
    flow_id = current_flow_id.get()
    if flow_id:
        record.flow_id = flow_id
    return True


class FunctionMetrics:
    """Metrics of a function. What differs from request to request is metadata, since every dimension costs."""

    def __init__(self, function: str) -> None:
        self._function = function

    def count_answer(self, operation: str, status: int, seconds: float, _received: int, _sent: int) -> None:
        metrics = self._new_metrics()
        metrics.add_metric("Answers", MetricUnit.Count, 1)
        metrics.add_metric("Refusals", MetricUnit.Count, int(400 <= status < 500))
        metrics.add_metric("Faults", MetricUnit.Count, int(status >= 500))
        metrics.add_metric("Duration", MetricUnit.Milliseconds, round(seconds * 1000, 3))
        metrics.add_metadata("operation", operation)
        metrics.add_metadata("status", status)
        metrics.add_metadata("flow_id", current_flow_id.get())
        metrics.flush_metrics()

    def count_one(self, name: str) -> None:
        self.count(name, 1)

    def count(self, name: str, number: int) -> None:
        metrics = self._new_metrics()
        metrics.add_metric(name, MetricUnit.Count, number)
        metrics.flush_metrics()

    def _new_metrics(self) -> EphemeralMetrics:
        return EphemeralMetrics(namespace=METRIC_NAMESPACE, service=self._function)


class LambdaFunction:
    """Nothing happens until the first invocation; what that one opens is kept for those that follow.

    An invocation that fails to open leaves it to the next to try again.
    """

    def __init__(
        self, name: str, open_: Callable[[FunctionMetrics], HandleInvocation], areas: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.areas = areas
        self._open = open_
        self._opening = threading.Lock()
        self._handle: HandleInvocation | None = None

    def __call__(self, event: Mapping[str, Any], context: Any) -> Any:
        return (self._handle or self._open_once())(event, context)

    def _open_once(self) -> HandleInvocation:
        with self._opening:
            if self._handle is None:
                self._handle = self._with_log_context(self._open(FunctionMetrics(self.name)))
            return self._handle

    def _with_log_context(self, handle_gateway_event: HandleInvocation) -> HandleInvocation:
        logged: HandleInvocation = make_logger().inject_lambda_context(handle_gateway_event)
        return logged


def make_http_function(name: str, *areas: str, collects_kpis: bool = True) -> LambdaFunction:
    """A function that serves these areas, and has loaded them.

    `collects_kpis` says that it may write, and so can collect figures of its requests. They gather while it is warm,
    and are written now and then at the end of an invocation, for after it everything stands still.
    """
    # Other functions do without, and start sooner.
    from nakadi.app.broker import open_broker
    from nakadi.app.engines import load_engines_on_aws
    from nakadi.app.routes import make_application
    from nakadi.app.settings import read_settings
    from nakadi.openapi.checks import compile_body_schemas

    load_engines_on_aws()
    for area in areas:
        module = import_module(f"nakadi.http.routes.{area}")
        compile_body_schemas(*getattr(module, "BODY_SCHEMAS_TO_COMPILE", ()))

    def opened(counts: FunctionMetrics) -> HandleInvocation:
        broker = open_broker(read_settings(os.environ))
        broker.write_kpis_only_when_asked(partial(counts.count, "FiguresDropped"))
        application = make_application(broker, *areas, report_answer=counts.count_answer, collects_kpis=collects_kpis)

        def answer(event: Mapping[str, Any], context: object) -> dict[str, Any]:
            broker.watch.forget_snapshot_from_before_pause(broker.settings.cache_seconds)
            answered = handle_gateway_event(application, event, context)
            if collects_kpis:
                broker.kpi_collector.flush_if_due()
            return answered

        return answer

    return LambdaFunction(name, opened, areas)


# A REST API's proxy event becomes our Request, our Response its proxy response. The API takes every body for binary:
# bodies come as they were sent, in base64, and so do those that are compressed in ways that the gateway does not know.
# It compresses no answers then, so they are compressed here for those who want it. The gateway turns base64 into bytes
# only for a request with an `Accept` header, so an answer to one without is never compressed.

# What Lambda hands on of an answer, written as JSON; one below the other figure cannot grow so large.
MAX_ANSWER_BYTES = 6_291_556
MIN_BYTES_TO_MEASURE_ANSWER = 1_000_000
ANSWER_TOO_LARGE_MESSAGE = (
    "The answer would have {size} bytes, and {most} can be sent. Ask for it packed, with the headers Accept and "
    "Accept-Encoding: gzip, or for less at once, with limit where it is known"
)


def handle_gateway_event(application: Application, event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    request = request_from_event(event)
    answer = application.answer(request)
    if isinstance(answer, StreamingResponse):
        answer = application.refuse(request, FeatureSwitchedOff("Streams of events are not served by this function"))
    assert isinstance(answer, Response)
    proxied = _proxy_response(_compressed_response(request, answer))
    if len(answer.body) > MIN_BYTES_TO_MEASURE_ANSWER and (size := len(json.dumps(proxied))) > MAX_ANSWER_BYTES:
        refusal = application.refuse(
            request, NotAcceptable(ANSWER_TOO_LARGE_MESSAGE.format(size=size, most=MAX_ANSWER_BYTES))
        )
        assert isinstance(refusal, Response)
        return _proxy_response(refusal)
    return proxied


def request_from_event(event: Mapping[str, Any]) -> Request:
    """The request as the client sent it. The name of the stage is no part of it, and a missing member is empty."""
    # The gateway escapes paths differently from one kind of endpoint to the other; what is escaped already stays.
    raw_path = quote(event["path"], safe="/%:@!$&'()*+,;=~")
    query = event.get("multiValueQueryStringParameters") or {}
    body = event.get("body") or ""
    return Request(
        method=event["httpMethod"],
        path=unquote(raw_path),
        target=f"{raw_path}?{urlencode(query, doseq=True)}" if query else raw_path,
        query={name: tuple(values) for name, values in query.items()},
        headers=joined_headers(_header_pairs(event)),
        body=base64.b64decode(body) if event.get("isBase64Encoded") else body.encode(),
        subject=subject_from_context((event.get("requestContext") or {}).get("authorizer") or {}),
    )


def authorizer_context_from_subject(subject: Subject) -> dict[str, str]:
    """A subject as an authorizer hands it to the integration: texts, for nothing else survives."""
    attributes = sorted((each.data_type, each.value) for each in subject.attributes)
    return {
        "subject": subject.name,
        "attributes": json.dumps(attributes),
        "scopes": " ".join(sorted(subject.scopes)),
        "realm": subject.realm,
    }


def subject_from_context(context: Mapping[str, Any]) -> Subject:
    """The subject that the authorizer found. Without an authorizer it is unauthenticated."""
    if "subject" not in context:
        return UNAUTHENTICATED
    return Subject(
        name=context["subject"],
        attributes=frozenset(Attribute(data_type, value) for data_type, value in json.loads(context["attributes"])),
        scopes=frozenset(context["scopes"].split()),
        realm=context["realm"],
    )


def _header_pairs(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, values in (event.get("multiValueHeaders") or {}).items():
        for value in values:
            yield name, value


def _compressed_response(request: Request, answer: Response) -> Response:
    return compression.compress_body(request, answer) if request.headers.get("accept") else answer


def _proxy_response(response: Response) -> dict[str, Any]:
    bodiless = response.status in (204, 304)
    text, is_base64 = _text_or_base64(b"" if bodiless else response.body)
    return {
        "statusCode": response.status,
        "multiValueHeaders": {name: [value] for name, value in response.headers.items()},
        "body": text,
        "isBase64Encoded": is_base64,
    }


def _text_or_base64(body: bytes) -> tuple[str, bool]:
    try:
        return body.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), True


class Unauthorized(Exception):
    """Raised for a token that is not good: API Gateway answers 401 when it reads this very word."""

    def __init__(self) -> None:
        super().__init__("Unauthorized")


def authorizer_decision(tokens: TokenVerifier, event: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return policy_allowing(tokens.verified_subject(event.get("authorizationToken")), event["methodArn"])
    except NotAuthenticated as error:
        # One log line instead of the traceback that Lambda writes for every exception.
        log.info("Refused: %s", error.detail)
        raise Unauthorized from None


def policy_allowing(subject: Subject, method_arn: str) -> dict[str, Any]:
    """The whole API is open to the subject; what it may do is decided behind, where the request is understood."""
    api, stage, *_ = method_arn.split("/")
    statement = {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": f"{api}/{stage}/*"}
    return {
        "principalId": subject.name,
        "policyDocument": {"Version": "2012-10-17", "Statement": [statement]},
        "context": authorizer_context_from_subject(subject),
    }
