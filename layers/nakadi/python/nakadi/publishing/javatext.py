"""JSON values as the text that keys and owners are made of, and the hash of such a text.

Partitions chosen by hash must stay where they are when producers and consumers move over, so both are defined by what
Java makes of the same value.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from operator import mul
from typing import Any

import orjson

_WORDS = {True: "true", False: "false", None: "null"}

_BLOCK = 64
_POWERS = tuple(pow(31, _BLOCK - 1 - index, 1 << 32) for index in range(_BLOCK))
_BLOCK_POWER = pow(31, _BLOCK, 1 << 32)
_MASK = 0xFFFFFFFF


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
    """The shortest digits that tell the number from its neighbours, plain from 0.001 up to ten million."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        plain = f"{Decimal(repr(number)):f}"
        return plain if "." in plain else f"{plain}.0"
    sign, digits, _ = Decimal(repr(number)).normalize().as_tuple()
    exponent = Decimal(repr(number)).adjusted()
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{exponent}"


def string_hash(text: str) -> int:
    """`31 * hash + unit` over the UTF-16 code units, in signed 32 bits."""
    units = _utf16(text)
    total = 0
    for start in range(0, len(units), _BLOCK):
        block = units[start : start + _BLOCK]
        # Only the last block can be short; then the place of its first unit moves up.
        power = _BLOCK_POWER if len(block) == _BLOCK else pow(31, len(block), 1 << 32)
        total = (total * power + sum(map(mul, block, _POWERS[-len(block) :]))) & _MASK
    return signed(total)


def signed(total: int) -> int:
    """What is left of a sum in signed 32 bits."""
    return ((total + 0x80000000) & _MASK) - 0x80000000


def _utf16(text: str) -> Sequence[int]:
    if text.isascii():
        return text.encode()
    packed = text.encode("utf-16-le")
    return struct.unpack(f"<{len(packed) // 2}H", packed)
