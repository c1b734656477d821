"""Runs commands of the guides in a shell, as a reader would paste them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]


def run_pasted_command(command: str, **variables: str) -> tuple[int, str]:
    """Run a command with curl, with these variables in the shell, and return the status and body of the answer."""
    done = subprocess.run(
        ["bash", "-c", f"{command} -sS --max-time {PATIENCE:.0f} -w '\\n%{{http_code}}'"],
        cwd=ROOT,
        env=plain_environment(**variables),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=True,
    )
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body
