"""Starts Python processes with the package on their path, and finds listening ports."""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import nakadi
from tests.support.environment import plain_environment

# A broker has one process, whatever the number of cores, unless a test asks for several.
ENVIRONMENT = plain_environment(
    PYTHONPATH=str(Path(nakadi.__file__).parents[1]), PYTHONUNBUFFERED="1", NAKADI_WORKERS="1"
)
# ROOT_ENVIRONMENT also has the other folders of the checkout on the path.
ROOT = Path(__file__).parents[2]
ROOT_ENVIRONMENT = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}{os.pathsep}{ROOT}"}


@contextmanager
def run_process(
    command: Sequence[str],
    environment: Mapping[str, str] = ENVIRONMENT,
    cwd: Path | None = None,
    log: IO[str] | int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    """Yield a process whose output the caller can read. At the end of the block, the process is killed and its pipes
    are closed. A process that logs a lot needs a file as its `log`, because nothing reads a pipe meanwhile.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, cwd=cwd, stdout=pipe, stderr=log, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def is_listening(port: int) -> bool:
    """Whether a program listens on this port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
