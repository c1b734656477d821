"""Processes of the laptop: each ends with the process that started it."""

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
PACKAGES = f"{LAYER}:{ROOT}"
PATIENCE = 15

# Those that were started, for as long as somebody has them.
_STARTED: WeakSet[subprocess.Popen[bytes]] = WeakSet()

# Of Linux: to get a signal when the thread that started this process is no more.
PR_SET_PDEATHSIG = 1


def python(
    *arguments: str,
    env: Mapping[str, str],
    output: IO[bytes] | int,
    pass_fds: Sequence[int] = (),
    preexec_fn: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """A process of this interpreter."""
    return started(
        [sys.executable, *arguments],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=pass_fds,
        preexec_fn=preexec_fn,
    )


def started(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """A process. Ctrl-C is for the process that started it, which ends it in its own time."""
    process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603  # only our own code says what is started
        command, start_new_session=True, **options
    )
    _STARTED.add(process)
    return process


def end_with_the_starter() -> None:
    """For `preexec_fn`, when a process is started by a thread that stays. Even a starter that is killed leaves none."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def ended(process: subprocess.Popen[bytes], *, patience: float = PATIENCE) -> None:
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_all() -> None:
    """Ask every process to end, and wait for none: they keep nothing."""
    for process in list(_STARTED):
        process.terminate()
