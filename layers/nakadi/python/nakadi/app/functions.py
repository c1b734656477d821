"""Lambda functions: a handler that is opened by its first invocation, its log lines, and its metrics.

Lambda itself traces each invocation. What happens within one is traced by a layer with OpenTelemetry, where a
deployment names one: it wraps the handler and the calls to AWS without a line here.
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

from nakadi.app.logs import without_secrets
from nakadi.http.application import current_flow_id

# Logs and metrics -----------------------------------------------------------------------------------------------------


# Each deployment has its own, so that alarms of one do not count what another one tells.
METRIC_NAMESPACE = os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "Nakadi")

Handle = Callable[[Mapping[str, Any], Any], Any]


def logger() -> Logger:
    """The logger of the package, above the loggers of its modules."""
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

    def answered(self, operation: str, status: int, seconds: float, _received: int, _sent: int) -> None:
        metrics = self._metrics()
        metrics.add_metric("Answers", MetricUnit.Count, 1)
        metrics.add_metric("Refusals", MetricUnit.Count, int(400 <= status < 500))
        metrics.add_metric("Faults", MetricUnit.Count, int(status >= 500))
        metrics.add_metric("Duration", MetricUnit.Milliseconds, round(seconds * 1000, 3))
        metrics.add_metadata("operation", operation)
        metrics.add_metadata("status", status)
        metrics.add_metadata("flow_id", current_flow_id.get())
        metrics.flush_metrics()

    def one(self, name: str) -> None:
        self.number(name, 1)

    def number(self, name: str, count: int) -> None:
        metrics = self._metrics()
        metrics.add_metric(name, MetricUnit.Count, count)
        metrics.flush_metrics()

    def _metrics(self) -> EphemeralMetrics:
        return EphemeralMetrics(namespace=METRIC_NAMESPACE, service=self._function)


# Handlers -------------------------------------------------------------------------------------------------------------


class LambdaFunction:
    """Nothing happens until the first invocation; what that one opens is kept for those that follow.

    An invocation that fails to open leaves it to the next to try again.
    """

    def __init__(self, name: str, open_: Callable[[FunctionMetrics], Handle], areas: tuple[str, ...] = ()) -> None:
        self.name = name
        self.areas = areas
        self._open = open_
        self._opening = threading.Lock()
        self._handle: Handle | None = None

    def __call__(self, event: Mapping[str, Any], context: Any) -> Any:
        return (self._handle or self._open_once())(event, context)

    def _open_once(self) -> Handle:
        with self._opening:
            if self._handle is None:
                self._handle = self._with_log_context(self._open(FunctionMetrics(self.name)))
            return self._handle

    def _with_log_context(self, handle_gateway_event: Handle) -> Handle:
        logged: Handle = logger().inject_lambda_context(handle_gateway_event)
        return logged


# Functions behind API Gateway -----------------------------------------------------------------------------------------


def http_function(name: str, *areas: str, tells: bool = True) -> LambdaFunction:
    """A function that serves these areas, and has loaded them.

    `tells` says that it may write, and so can tell figures of its requests. They gather while it is warm, and are
    written now and then at the end of an invocation, for after it everything stands still.
    """
    # Other functions do without, and start sooner.
    from nakadi.app.broker import open_broker
    from nakadi.app.engines import load_engines_on_aws
    from nakadi.app.settings import Settings
    from nakadi.http.apigateway import handle_gateway_event
    from nakadi.openapi.checks import prepare

    load_engines_on_aws()
    for area in areas:
        module = import_module(f"nakadi.http.routes.{area}")
        prepare(*getattr(module, "BODIES", ()))

    def opened(counts: FunctionMetrics) -> Handle:
        broker = open_broker(Settings.from_env(os.environ))
        broker.write_figures_when_asked(partial(counts.number, "FiguresDropped"))
        application = broker.application_of(*areas, answered=counts.answered, tells=tells)

        def answer(event: Mapping[str, Any], context: object) -> dict[str, Any]:
            answered = handle_gateway_event(application, event, context)
            if tells:
                broker.figures.flush_if_due()
            return answered

        return answer

    return LambdaFunction(name, opened, areas)
