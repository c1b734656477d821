"""The hash of a text.

Partitions chosen by hash must stay where they are when producers and consumers move over, so it is the one of Java.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_MASK = 0xFFFFFFFF
_BLOCK = 64


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
