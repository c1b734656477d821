"""Child processes that end together with their parent."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "layers" / "nakadi" / "python"
JOBS = ROOT / "glue_jobs"
PACKAGES = f"{LAYER}:{ROOT}"
TIMEOUT_SECONDS = 15

# The processes started here that are still referenced.
_STARTED: WeakSet[subprocess.Popen[bytes]] = WeakSet()

# Linux's option to get a signal when the thread that started this process ends.
PR_SET_PDEATHSIG = 1


def start_python(
    *arguments: str,
    env: Mapping[str, str],
    output: IO[bytes] | int,
    pass_fds: Sequence[int] = (),
    preexec_fn: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process of this interpreter."""
    return start_process(
        [sys.executable, *arguments],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=pass_fds,
        preexec_fn=preexec_fn,
    )


def start_process(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so Ctrl-C reaches only the parent, which stops it in time."""
    process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603  # only our own code says what is started
        command, start_new_session=True, **options
    )
    _STARTED.add(process)
    return process


def end_with_parent() -> None:
    """A `preexec_fn` that ends the process with the thread that started it, even if that thread is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def stop_process(process: subprocess.Popen[bytes], *, timeout: float = TIMEOUT_SECONDS) -> None:
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def stop_all() -> None:
    """Terminate every process without waiting, since none has anything to save."""
    for process in list(_STARTED):
        process.terminate()
