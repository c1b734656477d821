"""The lines of a function that judges the variable `value`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nakadi.schemas.scalars import Check


class Lines:
    """Source as it grows; what is written within `block` is indented under the block's head."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self._indent = "    "

    def add(self, line: str) -> None:
        self.written.append(self._indent + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(head)
        self._indent += "    "
        yield
        self._indent = self._indent[:-4]

    def refuse_if(self, condition: str) -> None:
        self.add(f"if {condition}: return False")

    def refuse_unless(self, check: Check) -> int:
        """Answers what the check costs, for the sum of its function."""
        if not check.always:
            self.refuse_if(f"not ({check.expression})")
        return check.cost

    def spend(self, steps: str) -> None:
        self.add(f"steps[0] -= {steps}")
        self.add("if steps[0] < 0: raise Exhausted")
