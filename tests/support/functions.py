"""Lambda functions as Lambda runs them: a handler loaded from its folder, the environment, an invocation's context."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
EVENTS = ROOT / "events"


@dataclass(frozen=True)
class Context:
    function_name: str = "nakadi-live-function"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:eu-central-1:210987654321:function:nakadi-live-function"
    aws_request_id: str = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"


def load_handler(name: str) -> ModuleType:
    """A function's module as a new execution environment has it."""
    spec = spec_from_file_location(f"functions_{name}_handler", ROOT / "functions" / name / "handler.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_recorded_event(path: str) -> dict[str, Any]:
    """An invocation from the folder of events, `apigateway/publish_batch`."""
    event: dict[str, Any] = json.loads((EVENTS / f"{path}.json").read_text())
    return event
