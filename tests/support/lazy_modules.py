"""Modules that a test imports when it uses them.

    api = LazyModule("nakadi_cdk.api")

The CDK starts node, which takes seconds and hundreds of megabytes. Each process of a run collects every test, but only
one of them runs the tests of the CDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module, and imports it when a test first uses one of its public names. pytest also looks for private
    names, which must not import it.
    """

    def __init__(self, name: str) -> None:
        self._module = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._module), name)
