"""The execution environment of a function: `python -P worker.py 7 handler.handler`.

It reads invocations from the socket with that descriptor, one per line, and writes results likewise. The function's
output is its log.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Context:
    """The context that Lambda passes to a handler."""

    aws_request_id: str
    invoked_function_arn: str
    function_name: str
    function_version: str
    memory_limit_in_mb: int
    deadline: float

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self.deadline - time.time()) * 1000))


def main(descriptor: int, handler: str) -> None:
    module, _, name = handler.rpartition(".")
    handle = getattr(import_module(module), name)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as invocations:
        for line in invocations:
            invocations.write(json.dumps(_result(handle, json.loads(line))).encode() + b"\n")
            invocations.flush()


def _result(handle: Callable[[Any, Context], Any], invocation: Mapping[str, Any]) -> dict[str, Any]:
    context = Context(
        aws_request_id=invocation["id"],
        invoked_function_arn=invocation["arn"],
        function_name=os.environ["AWS_LAMBDA_FUNCTION_NAME"],
        function_version=os.environ["AWS_LAMBDA_FUNCTION_VERSION"],
        memory_limit_in_mb=int(os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]),
        deadline=invocation["deadline"],
    )
    try:
        answer = {"result": handle(invocation["event"], context)}
        json.dumps(answer)
    except Exception as error:  # noqa: BLE001  # any error is the invocation's result
        sys.excepthook(type(error), error, error.__traceback__)
        return {"errorType": type(error).__name__, "errorMessage": str(error)}
    return answer


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
