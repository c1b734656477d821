"""Values of a result as texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def json_line(names: Sequence[str], row: Sequence[Any]) -> str:
    """A row as a JSON object."""
    return _ENCODER.encode(dict(zip(names, row, strict=True))).decode()


def json_array(row: Sequence[Any]) -> str:
    """A row as a JSON array."""
    return _ENCODER.encode(row).decode()


def value_text(value: Any) -> str:
    """A value as the text of one cell: a list or an object as JSON, and NULL as an empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    text = _ENCODER.encode(value).decode()
    return text[1:-1] if text.startswith('"') else text
