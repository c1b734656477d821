"""Starting Python elsewhere, with the package on its path, and waiting for processes of others."""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import nakadi
from tests.support.environment import plain_environment

# In one process, however many cores there are; tests of several say so.
ENVIRONMENT = plain_environment(
    PYTHONPATH=str(Path(nakadi.__file__).parents[1]), PYTHONUNBUFFERED="1", NAKADI_WORKERS="1"
)
# With the folders beside the package in the checkout as well.
ROOT = Path(__file__).parents[2]
ROOT_ENVIRONMENT = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}{os.pathsep}{ROOT}"}


@contextmanager
def run_process(
    command: Sequence[str],
    environment: Mapping[str, str] = ENVIRONMENT,
    cwd: Path | None = None,
    log: IO[str] | int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    """A process whose output can be read. However the block ends, the process is killed and its pipes are closed.

    A process that says much needs a file for its `log`: nothing reads a pipe meanwhile.
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
