"""How long texts and lists may be that clients choose and the broker keeps, where the API sets no limit of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from nakadi.model.outcomes import Violation

# A name, a path to a field, an offset.
MOST_CHARACTERS = 1000
# Fields, annotations, labels: what is read with every event, or returned with every event type.
MOST_ENTRIES = 100
# Names in a list of their own.
MOST_NAMES = 10_000


def size_violations(path: str, value: Sized | None, most: int = MOST_CHARACTERS) -> Iterator[Violation]:
    """What is to be said of a text or list that is too long; one that is missing is not."""
    if value is not None and len(value) > most:
        yield Violation(path, f"size must be between 0 and {most}")
