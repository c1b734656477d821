"""Processes of the laptop: each ends with whoever started it."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "layers" / "nakadi" / "python"
PACKAGES = f"{LAYER}:{ROOT}"
PATIENCE = 15

# Of Linux: to get a signal when the thread that started this process is no more.
PR_SET_PDEATHSIG = 1


def python(
    *arguments: str,
    env: Mapping[str, str],
    output: IO[bytes] | int,
    pass_fds: Sequence[int] = (),
    preexec_fn: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """A process of this interpreter. Ctrl-C is for whoever started it, and ends it in its own time."""
    return subprocess.Popen(  # noqa: S603  # nobody else says what is started
        [sys.executable, *arguments],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=pass_fds,
        preexec_fn=preexec_fn,  # noqa: PLW1509  # it only tells the system something
        start_new_session=True,
    )


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
