"""Starts DynamoDB Local and kinesalite, each once for the tests of a process. No engine was adapted to either.

Only `make test-engines` installs and uses them.
"""

from __future__ import annotations

import atexit
import os
import subprocess
from functools import cache
from pathlib import Path

from infra.laptop.kinesis_local import LOOPBACK_SCRIPT, find_node, free_port
from infra.laptop.processes import end_with_parent, start_process, stop_process
from tests.support.patience import until
from tests.support.processes import is_listening

OTHER_ENGINES_WANTED = os.environ.get("OTHER_ENGINES") == "1"

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "engines"
SOURCES = Path(__file__).with_name("others")


@cache
def dynamodb_local() -> str:
    """The address of DynamoDB Local. It keeps all data in memory, and knows neither regions nor accounts."""
    jars, port = FOLDER / "dynamodb", free_port()
    program = ("-cp", f"{jars}/*", str(SOURCES / "OnLoopback.java"))
    return _start_process(
        "java", f"-Djava.library.path={jars}", *program, "-inMemory", "-sharedDb", "-disableTelemetry", port=port
    )


@cache
def kinesalite() -> str:
    """The address of kinesalite."""
    program = FOLDER / "node_modules" / "kinesalite" / "cli.js"
    hurried = [part for name in ("create", "delete", "update") for part in (f"--{name}StreamMs", "10")]
    return _start_process(
        find_node(), "--require", str(LOOPBACK_SCRIPT), str(program), "--shardLimit", "5000", *hurried, port=free_port()
    )


def _start_process(*command: str, port: int) -> str:
    argument = "-port" if command[0] == "java" else "--port"
    process = start_process(
        [*command, argument, str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    )
    atexit.register(stop_process, process)
    until(lambda: _answers(process, port))
    return f"http://127.0.0.1:{port}"


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, f"{process.args} has ended"
    return is_listening(port)
