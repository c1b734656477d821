"""The values that generated code works with: it knows them by names that are made here, never by what they say."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from nakadi.schemas.patterns import Patterns


class Constants:
    """`namespace` is what the code can see: the given names, and a new one for each value."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.namespace: dict[str, Any] = {"__builtins__": {}, **given}
        self._names: dict[Hashable, str] = {}
        self.patterns = Patterns()

    def name(self, value: Any) -> str:
        name = f"k{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def text(self, text: str) -> str:
        """The same text has one name, for property names come again and again."""
        if text not in self._names:
            self._names[text] = self.name(text)
        return self._names[text]

    def texts(self, texts: Iterable[str]) -> str:
        return self.name(frozenset(texts))
