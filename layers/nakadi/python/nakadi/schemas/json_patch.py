"""JSON Patch (RFC 6902): the operations that lead from one JSON value to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nakadi.schemas.document import escaped_step

Operation = dict[str, Any]


def patch_between(before: Any, after: Any) -> list[Operation]:
    """The operations that turn `before` into `after`. Lists of different lengths are replaced as a whole."""
    return list(_operations(before, after, ""))


def _operations(before: Any, after: Any, pointer: str) -> Iterator[Operation]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _operations_in_object(before, after, pointer)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        yield from _operations_in_list(before, after, pointer)
    # 1, 1.0 and true are equal in Python, but different in JSON.
    elif type(before) is not type(after) or before != after:
        yield {"op": "replace", "path": pointer, "value": after}


def _operations_in_object(before: Mapping[str, Any], after: Mapping[str, Any], pointer: str) -> Iterator[Operation]:
    for name, value in before.items():
        place = f"{pointer}/{escaped_step(name)}"
        if name in after:
            yield from _operations(value, after[name], place)
        else:
            yield {"op": "remove", "path": place}
    for name, value in after.items():
        if name not in before:
            yield {"op": "add", "path": f"{pointer}/{escaped_step(name)}", "value": value}


def _operations_in_list(before: Sequence[Any], after: Sequence[Any], pointer: str) -> Iterator[Operation]:
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        yield from _operations(old, new, f"{pointer}/{index}")
