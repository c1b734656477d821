"""Processes of the laptop: each ends with whoever started it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "layers" / "nakadi" / "python"
PACKAGES = f"{LAYER}:{ROOT}"
PATIENCE = 15


def python(
    *arguments: str, env: Mapping[str, str], output: IO[bytes] | int, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A process of this interpreter. Ctrl-C is for whoever started it, and ends it in its own time."""
    return subprocess.Popen(  # noqa: S603  # nobody else says what is started
        [sys.executable, *arguments],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[bytes], *, patience: float = PATIENCE) -> None:
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
