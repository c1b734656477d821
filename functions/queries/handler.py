"""Answers queries with SQL, one at a time. A child process runs each query, as a client of the broker."""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from nakadi.app.authentication import make_authentication
from nakadi.app.functions import FunctionMetrics, HandleInvocation, LambdaFunction
from nakadi.app.queries import make_query_processes
from nakadi.app.settings import read_settings
from nakadi.http.api_gateway import handle_gateway_event
from nakadi.http.application import Application
from nakadi.http.routes.queries import QueryHandlers
from nakadi.ports.clock import SystemClock

# API Gateway waits for 29 s, which include the start of the function.
CHILD_SECONDS = 25.0

# Lambda's answer has at most 6 MB, and contains the body as a JSON text, which may be three times as long.
ANSWER_BYTES = 2_000_000


def make_handler(counts: FunctionMetrics) -> HandleInvocation:
    settings = read_settings(os.environ)
    authenticate = make_authentication(settings, SystemClock())

    @cache
    def application_for(broker_url: str) -> Application:
        processes = make_query_processes(
            settings, broker_url, at_once=1, child_seconds=CHILD_SECONDS, answer_bytes=ANSWER_BYTES
        )
        return Application(QueryHandlers(lambda: processes).routes(), authenticate, counts.count_answer)

    def answer(event: Mapping[str, Any], context: object) -> dict[str, Any]:
        # The stage tells the URL, not the client: children ask the broker at this URL what their callers may read.
        return handle_gateway_event(application_for(event["stageVariables"]["broker_url"]), event, context)

    return answer


handler = LambdaFunction("queries", make_handler, ("queries",))
