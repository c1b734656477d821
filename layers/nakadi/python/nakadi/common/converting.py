"""Converts JSON to values of the model.

`msgspec` prepares a type at the first conversion to it. It stores its findings in the class step by step, and without a
lock: another thread that prepares the same class can read an incomplete state, and the process crashes. So this module
prepares types at import, and no other code in the package converts to types that several threads use.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Generic, TypeVar

from msgspec import ValidationError, convert

T = TypeVar("T")

# Several threads may import modules at the same time, and types of different modules share parts.
_preparing = threading.Lock()


class Converter(Generic[T]):
    """Converts to one type. Create a converter at the top of a module, so that the type is prepared before there are
    threads.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        with _preparing, suppress(ValidationError):
            self.from_builtins(NotImplemented)

    def from_builtins(self, value: Any) -> T:
        """Raises `ValidationError` of `msgspec` if the value does not fit."""
        # `str_keys`: the keys of a mapping may be numbers, which are texts in JSON.
        return convert(value, self._kind, str_keys=True)
