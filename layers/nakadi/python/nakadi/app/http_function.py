"""Functions behind API Gateway."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

from nakadi.app.broker import open_broker
from nakadi.app.engines import load_engines_on_aws
from nakadi.app.functions import FunctionMetrics, Handle, LambdaFunction
from nakadi.app.settings import Settings
from nakadi.http.apigateway import handle
from nakadi.openapi.checks import prepare


def http_function(name: str, *areas: str, tells: bool = True) -> LambdaFunction:
    """A function that serves these areas, and has loaded them.

    `tells` says that it may write, and so can tell figures of its requests. They gather while it is warm, and are
    written now and then at the end of an invocation, for after it everything stands still.
    """
    load_engines_on_aws()
    for area in areas:
        module = import_module(f"nakadi.http.routes.{area}")
        prepare(*getattr(module, "BODIES", ()))

    def opened(counts: FunctionMetrics) -> Handle:
        broker = open_broker(Settings.from_env(os.environ))
        broker.write_figures_when_asked(partial(counts.number, "FiguresDropped"))
        application = broker.application_of(*areas, answered=counts.answered, tells=tells)

        def answer(event: Mapping[str, Any], context: object) -> dict[str, Any]:
            answered = handle(application, event, context)
            if tells:
                broker.figures.flush_if_due()
            return answered

        return answer

    return LambdaFunction(name, opened, areas)
