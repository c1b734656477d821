"""JSON values as the text that keys and owners are made of, and the hash of such a text.

Partitions chosen by hash must stay where they are when producers and consumers move over, so both are defined by what
Java makes of the same value.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import orjson

_WORDS = {True: "true", False: "false", None: "null"}

_MASK = 0xFFFFFFFF
_BLOCK = 64


def text_of(value: Any) -> str:
    """A parsed JSON value as text; objects and arrays as compact JSON with sorted keys."""
    match value:
        case str():
            return value
        case bool() | None:
            return _WORDS[value]
        case int():
            return str(value)
        case float():
            return double_text(value)
        case _:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def double_text(number: float) -> str:
    """The shortest digits, at least two, that tell the number; plain from 0.001 up to ten million."""
    shortest = Decimal(repr(number))
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        plain = f"{shortest:f}"
        return plain if "." in plain else f"{plain}.0"
    if len(shortest.normalize().as_tuple().digits) == 1:
        shortest = Decimal(f"{number:.1e}")
    sign, digits, _ = shortest.normalize().as_tuple()
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{shortest.adjusted()}"


def string_hash(text: str) -> int:
    """`31 * hash + unit` over the UTF-16 code units, in 32 bits without sign."""
    units = _utf16(text)
    total = 0
    # Cutting down to 32 bits costs as much as the sum, and letting it grow costs more with every unit.
    for start in range(0, len(units), _BLOCK):
        for unit in units[start : start + _BLOCK]:
            total = 31 * total + unit
        total &= _MASK
    return total


def signed(total: int) -> int:
    """What a sum is in 32 bits with a sign."""
    return ((total + 0x80000000) & _MASK) - 0x80000000


def _utf16(text: str) -> Sequence[int]:
    if text.isascii():
        return text.encode()
    packed = text.encode("utf-16-le")
    return struct.unpack(f"<{len(packed) // 2}H", packed)
