"""Processes that are killed at a random moment, and their output until then."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.environment import plain_environment

ROOT = Path(__file__).parents[2]


def lines_until_killed(script: str, *arguments: object, between: tuple[float, float]) -> list[str]:
    """Start a script of this folder, kill it this many seconds after its first line, and return its whole lines."""
    command = [sys.executable, str(ROOT / "tests/support" / script), *map(str, arguments)]
    environment = plain_environment(PYTHONPATH=str(ROOT / "layers/nakadi/python"))
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process,
        ThreadPoolExecutor(1) as reader,
    ):
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            first = process.stdout.readline()
            rest = reader.submit(process.stdout.read)
            time.sleep(random.uniform(*between))
        finally:
            process.kill()
    said = (first + rest.result()).decode()
    return said[: said.rfind("\n") + 1].splitlines()
