"""Runs Lambda functions as Lambda does: with a handler loaded from its folder, an environment, and an invocation's
context.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.environment import plain_environment

ROOT = Path(__file__).parents[2]
EVENTS = ROOT / "events"


@dataclass(frozen=True)
class Context:
    function_name: str = "nakadi-live-function"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:eu-central-1:210987654321:function:nakadi-live-function"
    aws_request_id: str = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"


def load_handler(name: str) -> ModuleType:
    """Load a function's module, as a new execution environment does."""
    spec = spec_from_file_location(f"functions_{name}_handler", ROOT / "functions" / name / "handler.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_recorded_event(path: str) -> dict[str, Any]:
    """A recorded invocation from the folder `events`, such as `apigateway/publish_batch`."""
    event: dict[str, Any] = json.loads((EVENTS / f"{path}.json").read_text())
    return event


PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def read_pins(path: str) -> Mapping[str, str]:
    """The pinned versions in a file of requirements, by the names of their packages."""
    return {name.lower(): version for name, version in PIN.findall((ROOT / path).read_text())}


PROBE = """
import socket, sys, threading
sys.path[:0] = sys.argv[1:]
def refuse(*_, **__):
    raise AssertionError("work at import")
socket.socket.__init__ = threading.Thread.start = refuse
import handler
assert handler.handler._handle is None
print(*sys.modules)
"""


@cache
def import_handler(name: str) -> frozenset[str]:
    """Import a function's handler in a new process, and return the modules that it has loaded then. Raise an error if
    the import does any work.
    """
    folders = (ROOT / "layers/nakadi/python", ROOT / "functions" / name)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
        env=plain_environment(),
    )
    assert done.returncode == 0, done.stderr
    return frozenset(done.stdout.split())
