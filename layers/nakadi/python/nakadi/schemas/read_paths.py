r"""Paths to members of events, as subscriptions declare them: `customer.id`.

A dot separates names; `\.` is a dot in a name, and `\\` a backslash. Lists need no separate step: `items.sku` is
the `sku` of each item.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ReadPath = tuple[str, ...]

MAX_READ_PATH_STEPS = 64

_STEP = re.compile(r"((?:[^.\\]|\\[.\\])+)(\.|\Z)")


class BadReadPath(ValueError):
    """Raised for a text that is not a path; its message says why."""


def parse_read_path(text: str) -> ReadPath:
    """Raises `BadReadPath`."""
    steps: list[str] = []
    at = 0
    while at < len(text) or not steps or text[at - 1] == ".":
        step = _STEP.match(text, at)
        if step is None:
            raise BadReadPath(
                r"must be names with dots between them; in a name, write \. for a dot and \\ for a backslash"
            )
        steps.append(re.sub(r"\\(.)", r"\1", step[1]))
        at = step.end()
        if not step[2]:
            break
    if len(steps) > MAX_READ_PATH_STEPS:
        raise BadReadPath(f"must have at most {MAX_READ_PATH_STEPS} names")
    return tuple(steps)


def read_path_text(path: Sequence[str]) -> str:
    return ".".join(re.sub(r"([.\\])", r"\\\1", step) for step in path)
