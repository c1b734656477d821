"""How much a schema may say, so that it is made ready within a second and with little memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nakadi.model.outcomes import Invalid

MAX_TEXT = 256 * 1024
MAX_DEPTH = 100
MAX_NODES = 10_000
MAX_ENUM = 5_000
MAX_PATTERNS = 200
MAX_PATTERN_CHARACTERS = 10_000


def check_limits(text: str) -> None:
    """Raises `Invalid` if the text is longer than a schema may be."""
    _check("characters", len(text), MAX_TEXT)


def check_tree(schema: Mapping[str, Any], *, added_levels: int = 0, added_values: int = 0) -> None:
    """Raises `Invalid` if the schema is nested too deeply, or there is too much of anything in it.

    What was added to the schema of its owner does not count against it.
    """
    patterns: set[str] = set()
    for number, (depth, value) in enumerate(_values(schema), start=1):
        _check("levels of nesting", depth - added_levels, MAX_DEPTH)
        _check("values", number - added_values, MAX_NODES)
        if isinstance(value, Mapping):
            patterns.update(_patterns(value))
            _check("patterns", len(patterns), MAX_PATTERNS)
            _check_enum(value.get("enum"))
    _check("characters in patterns", sum(map(len, patterns)), MAX_PATTERN_CHARACTERS)


def _values(schema: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    """Every value in the schema with its depth, whether it is there as a schema or as anything else."""
    waiting: list[tuple[int, Any]] = [(1, schema)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        if isinstance(value, Mapping):
            waiting.extend((depth + 1, each) for each in value.values())
        elif isinstance(value, list):
            waiting.extend((depth + 1, each) for each in value)


def _patterns(value: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value.get("pattern"), str):
        yield value["pattern"]
    if isinstance(value.get("patternProperties"), Mapping):
        yield from value["patternProperties"]


def _check_enum(allowed: Any) -> None:
    if isinstance(allowed, list):
        _check("values in an enum", len(allowed), MAX_ENUM)


def _check(what: str, found: int, most: int) -> None:
    if found > most:
        raise Invalid(f"schema is too large: at most {most} {what} are possible, found {found}")
