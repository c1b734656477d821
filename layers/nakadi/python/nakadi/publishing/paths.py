"""Paths into an event: `order.id`, with quotes or a backslash where a name holds a dot."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any


class NoSuchField(Exception):
    """Raised when an event has nothing at a path; tells the one segment that leads nowhere."""

    def __init__(self, segment: str) -> None:
        super().__init__(f"field {segment} doesn't exist.")


@lru_cache(maxsize=1000)
def segments(path: str) -> tuple[str, ...]:
    """The names of a path. Quotes protect dots, a backslash protects any symbol, an empty name ends the path."""
    names: list[str] = []
    name, quoted = "", False
    symbols = iter(path)
    for symbol in symbols:
        match symbol:
            case "'":
                quoted = not quoted
            case "\\":
                name += next(symbols, "")
            case "." if not quoted:
                if not name:
                    break
                names.append(name)
                name = ""
            case _:
                name += symbol
    return (*names, name) if name else tuple(names)


def value_at(event: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = event
    for segment in path:
        try:
            value = value[segment]
        except (KeyError, TypeError):
            # Only objects have names within; arrays, texts and all else cannot be asked for one.
            raise NoSuchField(segment) from None
    return value
