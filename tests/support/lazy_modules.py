"""Modules that a test imports when it uses them.

    api = LazyModule("nakadi_cdk.api")

The CDK starts node, which takes seconds and a part of a gigabyte. Each process of a run collects every test, and one
of them runs the CDK's.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Has the public names of a module, and imports it for the first of them. pytest looks for the others."""

    def __init__(self, name: str) -> None:
        self._module = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._module), name)
