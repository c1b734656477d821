"""A local Lambda: each function runs in its own processes, with the environment of its template.

Like Lambda, a process serves one invocation at a time and stays for the next one. If all are busy, another one starts,
up to a limit. Retries after errors are up to the caller.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from infra.laptop.processes import JOBS, LAYER, ROOT, start_python, stop_process
from infra.laptop.roles import OWNER
from infra.laptop.templates import ACCOUNT, REGION, Properties, Template

# Lambda's limit for the event and the answer of a synchronous invocation.
MAX_PAYLOAD_BYTES = 6 * 1024 * 1024

# Lambda allows 10 s for the start; a busy laptop needs more.
START_TIMEOUT_SECONDS = 120.0

MAX_PROCESSES = 3


class InvocationFailed(Exception):
    """Raised for a failed invocation, with the error type and message of Lambda's answer."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class TooLarge(InvocationFailed):
    """Raised for an event beyond the limit, before anything runs."""


class TimedOut(InvocationFailed):
    """Raised after a function exceeded its timeout and was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionDefinition:
    """The definition of a function in its template."""

    name: str
    folder: Path
    handler: str
    timeout: float
    memory: int
    environment: Mapping[str, str]
    role: str = OWNER
    packages: Sequence[Path] = (LAYER,)

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.name}"


def function_definitions(template: Template) -> Mapping[str, FunctionDefinition]:
    """The functions of a template by logical id. A tag names the source folder of each."""
    return {name: _define_function(properties) for name, properties in template.resources("AWS::Lambda::Function")}


def _define_function(properties: Properties) -> FunctionDefinition:
    [folder] = [tag["Value"] for tag in properties["Tags"] if tag["Key"] == "function"]
    return FunctionDefinition(
        name=properties["FunctionName"],
        folder=ROOT / "functions" / folder,
        # An image has a command instead of a handler, and more packages than the layers.
        handler=properties.get("Handler") or properties["ImageConfig"]["Command"][0],
        packages=(LAYER, JOBS, ROOT) if properties.get("PackageType") == "Image" else (LAYER,),
        timeout=properties["Timeout"],
        memory=properties["MemorySize"],
        environment=properties["Environment"]["Variables"],
        role=properties["Role"].rpartition("/")[2],
    )


class Function:
    """A function that any thread may invoke. With `limits`, a process beyond its memory limit is stopped."""

    def __init__(
        self, definition: FunctionDefinition, base_environment: Mapping[str, str], logs: Path, *, limits: bool = False
    ) -> None:
        self.definition = definition
        self._limits = limits
        self._surroundings = base_environment
        self._logs = logs
        self._lock = threading.Lock()
        self._places = threading.Semaphore(MAX_PROCESSES)
        self._idle: list[_Worker] = []
        self._closed = False

    def invoke(self, event: Any) -> Any:
        """Return the function's answer. Raises `InvocationFailed`."""
        payload = json.dumps(event).encode()
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise TooLarge("RequestEntityTooLargeException", f"The event has {len(payload)} bytes")
        with self._places:
            worker = self._take_worker()
            try:
                result = worker.invoke(payload)
                if self._limits:
                    worker.check_memory()
            except BaseException:
                worker.close()
                raise
            self._give_back(worker)
        if "errorType" in result:
            raise InvocationFailed(result["errorType"], result["errorMessage"])
        return result["result"]

    def warm_up(self) -> None:
        """Start a process in advance for the first invocation."""
        self._give_back(self._start_worker())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def _take_worker(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._start_worker()

    def _start_worker(self) -> _Worker:
        return _Worker(self.definition, self._surroundings, self._logs)

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.close()


class _Worker:
    def __init__(self, definition: FunctionDefinition, base_environment: Mapping[str, str], logs: Path) -> None:
        self._define_function = definition
        ours, theirs = socket.socketpair()
        self._closing = ExitStack()
        output = self._closing.enter_context((logs / f"{definition.name}.log").open("ab"))
        self._process = self._start_process(theirs, {**_worker_environment(definition), **base_environment}, output)
        self._closing.callback(stop_process, self._process, timeout=2)
        theirs.close()
        self._connection = self._closing.enter_context(ours)
        self._answers = self._closing.enter_context(ours.makefile("rb"))
        self._start_timeout = START_TIMEOUT_SECONDS

    def invoke(self, event: bytes) -> dict[str, Any]:
        """Return the result in Lambda's format. Raises `InvocationFailed` if the process itself failed."""
        payload = b'{"id":"%b","arn":"%b","deadline":%f,"event":%b}\n'
        deadline = time.time() + self._define_function.timeout
        # The first invocation also waits for the start, which has its own timeout.
        self._connection.settimeout(self._define_function.timeout + self._start_timeout)
        self._start_timeout = 0.0
        try:
            self._connection.sendall(
                payload % (str(uuid4()).encode(), self._define_function.arn.encode(), deadline, event)
            )
            answer = self._answers.readline()
        except TimeoutError:
            raise TimedOut(
                "Sandbox.Timedout", f"Task timed out after {self._define_function.timeout} seconds"
            ) from None
        except OSError:
            answer = b""
        if not answer:
            raise InvocationFailed("Runtime.ExitError", "The process of the function has ended")
        if len(answer) > MAX_PAYLOAD_BYTES:
            message = f"Response payload size exceeded maximum allowed payload size ({MAX_PAYLOAD_BYTES} bytes)."
            return {"errorType": "Function.ResponseSizeTooLarge", "errorMessage": message}
        result: dict[str, Any] = json.loads(answer)
        return result

    def check_memory(self) -> None:
        """Raise `InvocationFailed` if Lambda would have killed the process. Needs /proc, and passes without it."""
        status = Path(f"/proc/{self._process.pid}/status")
        found = re.search(r"VmHWM:\s+([0-9]+) kB", status.read_text()) if status.exists() else None
        if found and int(found[1]) > self._define_function.memory * 1024:
            most = f"{int(found[1]) // 1024} of {self._define_function.memory} MB"
            raise InvocationFailed(
                "Runtime.ExitError", f"Runtime exited with error: signal: killed. It used {most} of memory"
            )

    def close(self) -> None:
        self._closing.close()

    def _start_process(
        self, theirs: socket.socket, env: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        descriptor = theirs.fileno()
        # -P keeps the worker's own folder off the path, so a function can import only its folder and its layers.
        program = str(Path(__file__).with_name("worker.py"))
        arguments = ("-P", program, str(descriptor), self._define_function.handler)
        return start_python(*arguments, env=env, output=output, pass_fds=[descriptor])


def _worker_environment(definition: FunctionDefinition) -> Mapping[str, str]:
    """The variables that Lambda sets for every function, and the template's own variables, with tracing disabled."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(map(str, (definition.folder, *definition.packages))),
        "PYTHONUNBUFFERED": "1",
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        "LAMBDA_TASK_ROOT": str(definition.folder),
        "AWS_LAMBDA_FUNCTION_NAME": definition.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(definition.memory),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{definition.name}",
        "POWERTOOLS_TRACE_DISABLED": "true",
        **definition.environment,
    }
