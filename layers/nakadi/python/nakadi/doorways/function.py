"""A function's handler, opened by its first invocation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from nakadi.doorways.telling import Counts, Handle, logger


class Function:
    """Nothing happens until the first invocation; what that one opens is kept for those that follow.

    An invocation that fails to open leaves it to the next to try again.
    """

    def __init__(self, name: str, open_: Callable[[Counts], Handle], areas: tuple[str, ...] = ()) -> None:
        self.name = name
        self.areas = areas
        self._open = open_
        self._opening = threading.Lock()
        self._handle: Handle | None = None

    def __call__(self, event: Mapping[str, Any], context: Any) -> Any:
        return (self._handle or self._opened())(event, context)

    def _opened(self) -> Handle:
        with self._opening:
            if self._handle is None:
                self._handle = self._told(self._open(Counts(self.name)))
            return self._handle

    def _told(self, handle: Handle) -> Handle:
        told: Handle = logger().inject_lambda_context(handle)
        return told
