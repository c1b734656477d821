"""How much of what is wrong is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

# In characters. A schema can hold thousands of faults in places with names that fill a page; nobody reads them all.
MAX_TOLD = 20_000

Item = TypeVar("Item")


def worth_telling(items: Iterable[Item], text: Callable[[Item], str]) -> Iterator[Item]:
    """The first of the items, until their texts are as long as is told."""
    told = 0
    for item in items:
        yield item
        told += len(text(item))
        if told > MAX_TOLD:
            return
