"""Lambda functions: handlers that the first invocation opens, with their log lines and metrics.

Lambda itself traces each invocation. If a deployment names a layer with OpenTelemetry, that layer also traces the calls
to AWS, without any code here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from nakadi.app.logs import METRIC_NAMESPACE, without_secrets
from nakadi.http.api_gateway import handle_gateway_event
from nakadi.http.application import current_flow_id

HandleInvocation = Callable[[Mapping[str, Any], Any], Any]


def make_logger() -> Logger:
    made = Logger(
        service="nakadi", logger_formatter=RedactingLogFormatter(use_rfc3339=True, serialize_stacktrace=False)
    )
    made.registered_handler.addFilter(_add_flow_id)
    # The gateway keeps its own access log.
    logging.getLogger("nakadi.access").setLevel(logging.WARNING)
    return made


class RedactingLogFormatter(LambdaPowertoolsFormatter):
    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name for it
        return without_secrets(super().formatException(ei))


def _add_flow_id(record: logging.LogRecord) -> bool:
    """Add the flow id of the request to a log line, and remove tokens from it."""
    record.msg, record.args = without_secrets(record.getMessage()), None
    flow_id = current_flow_id.get()
    if flow_id:
        record.flow_id = flow_id
    return True


class FunctionMetrics:
    """Metrics of a function. Values that differ from request to request are metadata, not dimensions, because every
    dimension costs money.
    """

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

    def count(self, name: str, number: float, **dimensions: str) -> None:
        metrics = self._new_metrics()
        for dimension, value in dimensions.items():
            metrics.add_dimension(dimension, value)
        metrics.add_metric(name, MetricUnit.Count, number)
        metrics.flush_metrics()

    def _new_metrics(self) -> EphemeralMetrics:
        return EphemeralMetrics(namespace=METRIC_NAMESPACE, service=self._function)


class LambdaFunction:
    """A function that opens nothing before its first invocation. The resources that one invocation opens stay open for
    later invocations.

    If an invocation fails to open them, the next one tries again.
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
    """Make a function that serves these areas of the API, and import the modules of these areas.

    With `collects_kpis`, the function has permission to publish KPIs of its requests, and therefore collects them. KPIs
    accumulate while the function is warm, and some invocations write them at their end, because the function is
    suspended between invocations.
    """
    # Functions of other kinds do not import these modules, so they start sooner.
    from nakadi.app.broker import open_broker
    from nakadi.app.engines import load_engines_on_aws
    from nakadi.app.routes import make_application
    from nakadi.app.settings import read_settings
    from nakadi.openapi.checks import compile_body_schemas

    load_engines_on_aws()
    for area in areas:
        module = import_module(f"nakadi.http.routes.{area}")
        compile_body_schemas(*getattr(module, "BODY_SCHEMAS_TO_COMPILE", ()))

    def make_handler(counts: FunctionMetrics) -> HandleInvocation:
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

    return LambdaFunction(name, make_handler, areas)
