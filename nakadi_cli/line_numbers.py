"""Finds the line of a JSON or YAML file on which a part of its document begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def find_line(text: str, steps: Sequence[str]) -> int:
    """Return the line of the member or item at the end of the steps, or of the last one on that path that exists. A
    step may be a part of a name with slashes. For a text that is neither JSON nor YAML, the answer is line 1.
    """
    import yaml

    try:
        # JSON may be indented by tabs, which YAML forbids; their width changes no line.
        node: Any = yaml.compose(text.expandtabs(1), yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return 1
    line, rest = 1, list(steps)
    while node is not None:
        line, node, rest = _enter(node, rest, line)
    return line


def _enter(node: Any, steps: list[str], line: int) -> tuple[int, Any, list[str]]:
    """Go one step down: the line of the next value, the value if there is one, and the remaining steps."""
    import yaml

    if isinstance(node, yaml.SequenceNode) and steps and steps[0].isdecimal() and int(steps[0]) < len(node.value):
        item = node.value[int(steps[0])]
        return item.start_mark.line + 1, item, steps[1:]
    if isinstance(node, yaml.MappingNode):
        for length in range(1, len(steps) + 1):
            name = "/".join(steps[:length])
            for key, value in node.value:
                if key.value == name:
                    return key.start_mark.line + 1, value, steps[length:]
    return line, None, steps
