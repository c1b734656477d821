"""Kills programs at a random moment, and returns their output until then."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.environment import plain_environment
from tests.support.patience import until

ROOT = Path(__file__).parents[2]


def lines_until_killed(script: str, *arguments: object, between: tuple[float, float]) -> list[str]:
    """Start a script of this folder, kill it a random time after its first line of output, and return its complete
    lines.
    """
    return _lines_until(lambda: time.sleep(random.uniform(*between)), script, *arguments)


def lines_until_condition(script: str, *arguments: object, condition: Callable[[], object]) -> list[str]:
    """Do the same as `lines_until_killed`, but kill the script as soon as a condition holds."""
    return _lines_until(lambda: until(condition), script, *arguments)


def _lines_until(wait: Callable[[], None], script: str, *arguments: object) -> list[str]:
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
            wait()
        finally:
            process.kill()
    said = (first + rest.result()).decode()
    return said[: said.rfind("\n") + 1].splitlines()
