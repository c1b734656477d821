"""Lambda on a laptop: each function in processes of its own, with the environment that its template gives it.

As in Lambda, a process serves one invocation at a time and is kept for the next one; when all are busy another one is
started, up to a few. There is no asking again after an error here: that is for the caller.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from infra.laptop.processes import LAYER, ROOT, ended, python
from infra.laptop.roles import OWNER
from infra.laptop.templates import ACCOUNT, REGION, Properties, Template

# As Lambda allows of an event and of an answer, for who waits for it.
MOST_BYTES = 6 * 1024 * 1024

# To be up and loaded: Lambda gives 10 s, a laptop with other work needs more.
STARTING = 120.0

AT_ONCE = 3


class Failed(Exception):
    """Raised for an invocation that ended in an error; its type and message are Lambda's answer."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class TooLarge(Failed):
    """Raised before anything runs."""


class TimedOut(Failed):
    """Raised when a function took longer than its timeout, and was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A function as its template describes it."""

    name: str
    folder: Path
    handler: str
    timeout: float
    memory: int
    environment: Mapping[str, str]
    role: str = OWNER

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.name}"


def described(template: Template) -> Mapping[str, Described]:
    """The functions of a template, by their names in it. A tag says in which folder a function is written."""
    return {name: _described(properties) for name, properties in template.named("AWS::Lambda::Function")}


def _described(properties: Properties) -> Described:
    [folder] = [tag["Value"] for tag in properties["Tags"] if tag["Key"] == "function"]
    return Described(
        name=properties["FunctionName"],
        folder=ROOT / "functions" / folder,
        handler=properties["Handler"],
        timeout=properties["Timeout"],
        memory=properties["MemorySize"],
        environment=properties["Environment"]["Variables"],
        role=properties["Role"].rpartition("/")[2],
    )


class Function:
    """To be invoked from any thread. With `limits`, a process that took more memory than it has is ended."""

    def __init__(
        self, described: Described, surroundings: Mapping[str, str], logs: Path, *, limits: bool = False
    ) -> None:
        self.described = described
        self._limits = limits
        self._surroundings = surroundings
        self._logs = logs
        self._lock = threading.Lock()
        self._places = threading.Semaphore(AT_ONCE)
        self._idle: list[_Worker] = []
        self._closed = False

    def invoke(self, event: Any) -> Any:
        """What the function answers. Raises `Failed`."""
        asked = json.dumps(event).encode()
        if len(asked) > MOST_BYTES:
            raise TooLarge("RequestEntityTooLargeException", f"The event has {len(asked)} bytes")
        with self._places:
            worker = self._worker()
            try:
                result = worker.invoke(asked)
                if self._limits:
                    worker.see_that_it_had_enough_memory()
            except BaseException:
                worker.close()
                raise
            self._give_back(worker)
        if "errorType" in result:
            raise Failed(result["errorType"], result["errorMessage"])
        return result["result"]

    def warm_up(self) -> None:
        """Begin to start a process, so that the first invocation finds one."""
        self._give_back(self._started())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def _worker(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._started()

    def _started(self) -> _Worker:
        return _Worker(self.described, self._surroundings, self._logs)

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.close()


class _Worker:
    def __init__(self, described: Described, surroundings: Mapping[str, str], logs: Path) -> None:
        self._described = described
        ours, theirs = socket.socketpair()
        self._closing = ExitStack()
        output = self._closing.enter_context((logs / f"{described.name}.log").open("ab"))
        self._process = self._run(theirs, {**_reserved(described), **surroundings}, output)
        self._closing.callback(ended, self._process, patience=2)
        theirs.close()
        self._connection = self._closing.enter_context(ours)
        self._answers = self._closing.enter_context(ours.makefile("rb"))
        self._patience = STARTING

    def invoke(self, event: bytes) -> dict[str, Any]:
        """What came of an invocation, as Lambda tells it. Raises `Failed` where the process itself failed."""
        asked = b'{"id":"%b","arn":"%b","deadline":%f,"event":%b}\n'
        deadline = time.time() + self._described.timeout
        # The first one waits for the start too, which has a time of its own.
        self._connection.settimeout(self._described.timeout + self._patience)
        self._patience = 0.0
        try:
            self._connection.sendall(asked % (str(uuid4()).encode(), self._described.arn.encode(), deadline, event))
            answer = self._answers.readline()
        except TimeoutError:
            raise TimedOut("Sandbox.Timedout", f"Task timed out after {self._described.timeout} seconds") from None
        except OSError:
            answer = b""
        if not answer:
            raise Failed("Runtime.ExitError", "The process of the function has ended")
        if len(answer) > MOST_BYTES:
            message = f"Response payload size exceeded maximum allowed payload size ({MOST_BYTES} bytes)."
            return {"errorType": "Function.ResponseSizeTooLarge", "errorMessage": message}
        result: dict[str, Any] = json.loads(answer)
        return result

    def see_that_it_had_enough_memory(self) -> None:
        """Raises `Failed` where Lambda would have ended the process. Where the system does not tell, it had."""
        status = Path(f"/proc/{self._process.pid}/status")
        found = re.search(r"VmHWM:\s+([0-9]+) kB", status.read_text()) if status.exists() else None
        if found and int(found[1]) > self._described.memory * 1024:
            most = f"{int(found[1]) // 1024} of {self._described.memory} MB"
            raise Failed("Runtime.ExitError", f"Runtime exited with error: signal: killed. It used {most} of memory")

    def close(self) -> None:
        self._closing.close()

    def _run(self, theirs: socket.socket, env: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        descriptor = theirs.fileno()
        # Nothing of this project but its folder and its layers: -P leaves out the folder of the program.
        program = str(Path(__file__).with_name("worker.py"))
        arguments = ("-P", program, str(descriptor), self._described.handler)
        return python(*arguments, env=env, output=output, pass_fds=[descriptor])


def _reserved(described: Described) -> Mapping[str, str]:
    """What Lambda tells every function, and what the template tells this one. There is no service for traces."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{described.folder}:{LAYER}",
        "PYTHONUNBUFFERED": "1",
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        "LAMBDA_TASK_ROOT": str(described.folder),
        "AWS_LAMBDA_FUNCTION_NAME": described.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(described.memory),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{described.name}",
        "POWERTOOLS_TRACE_DISABLED": "true",
        **described.environment,
    }
