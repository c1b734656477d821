"""JSON's types by the names that messages about schemas use, and values as they compare."""

from __future__ import annotations

import json
from typing import Any

_NAMES: dict[type, str] = {
    bool: "Boolean",
    int: "Integer",
    float: "Double",
    str: "String",
    list: "JsonArray",
    dict: "JsonObject",
    type(None): "Null",
}


_NUMBERS = frozenset({"Integer", "Long", "Double"})


def type_name(value: Any) -> str:
    if type(value) is int and not -(2**31) <= value < 2**31:
        return "Long"
    return _NAMES[type(value)]


def fits(value: Any, name: str) -> bool:
    return type_name(value) in (_NUMBERS if name == "Number" else {name})


def canonical(value: Any) -> str:
    """Equal for values that are the same JSON; 1, 1.0 and true are three values, the order of members is none."""
    return json.dumps(value, sort_keys=True)
