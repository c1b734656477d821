"""Functions behind API Gateway."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

# The engines, loaded while the function starts and processor time is plentiful, and not by its first invocation.
import nakadi.archive.stores
import nakadi.eventlogs.kinesis.opening
import nakadi.registries.dynamodb
import nakadi.registries.log_index_dynamodb  # noqa: F401
from nakadi.bootstrap import open_broker
from nakadi.doorways.function import Function
from nakadi.doorways.telling import Counts, Handle
from nakadi.http.apigateway import handle
from nakadi.settings import Settings


def http_function(name: str, *areas: str) -> Function:
    """A function that serves these areas, and has loaded them."""
    for area in areas:
        import_module(f"nakadi.http.routes.{area}")

    def opened(counts: Counts) -> Handle:
        broker = open_broker(Settings.from_env(os.environ))
        application = broker.application_of(*areas, answered=counts.answered)

        def answer(event: Mapping[str, Any], context: object) -> dict[str, Any]:
            return handle(application, event, context)

        return answer

    return Function(name, opened, areas)
