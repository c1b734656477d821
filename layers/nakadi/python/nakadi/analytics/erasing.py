"""Erasing: which events hold a value at a path, and what is left of them. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

import orjson

from nakadi.model.events import Record, StoredEvent

ENVELOPE = ("metadata", "data_type", "data_op")
"""What a blanked event keeps: nothing that its publisher had to say."""


class How(StrEnum):
    REMOVE = "remove"
    BLANK = "blank"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A value, as text, at a path from the top of the event; lists on the way are looked through."""

    path: tuple[str, ...]
    value: str

    @property
    def is_number(self) -> bool:
        return _number(self.value) is not None

    def found_in(self, event: Any) -> bool:
        return any(self._is_it(value) for value in _values(event, self.path))

    def found_in_text(self, text: bytes) -> bool:
        """What cannot be parsed holds whatever is written in it."""
        try:
            event = orjson.loads(text)
        except orjson.JSONDecodeError:
            return self.value.encode() in text
        return self.found_in(event)

    def found_in_record(self, record: Record) -> bool:
        """A tombstone has nothing but its key."""
        return record.key == self.value if record.value is None else self.found_in_text(record.value)

    def _is_it(self, value: Any) -> bool:
        if isinstance(value, str):
            return value == self.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _number(repr(value)) == _number(self.value)
        return not isinstance(value, dict | list) and orjson.dumps(value).decode() == self.value


def erased(events: Sequence[StoredEvent], wanted: Wanted, how: How) -> tuple[list[StoredEvent], list[int]]:
    """What stays of these events, and the offsets of those that were meant."""
    kept: list[StoredEvent] = []
    meant: list[int] = []
    for event in events:
        if not wanted.found_in_record(event.record):
            kept.append(event)
            continue
        meant.append(event.offset)
        # What is blank already stays as it is found: a tombstone has nothing that could be left.
        if how is How.BLANK and event.record.value is not None:
            kept.append(event._replace(record=blank(event.record)))
    return kept, meant


def blank(record: Record) -> Record:
    """The event without what was said in it; nobody finds it under its key any more."""
    assert record.value is not None
    event = orjson.loads(record.value)
    left = {name: event[name] for name in ENVELOPE if name in event}
    if "metadata" in left and isinstance(left["metadata"], dict):
        left["metadata"] = {name: text for name, text in left["metadata"].items() if name != "partition_compaction_key"}
    if "data_type" in left:
        left["data"] = {}
    return record._replace(value=orjson.dumps(left), key=None)


def is_candidate(text: str, value: str) -> bool:
    """Whether a text could hold the value: as it is, or written with escapes."""
    return value in text or "\\" in text


def _values(found: Any, path: Sequence[str]) -> Iterator[Any]:
    if isinstance(found, list):
        for each in found:
            yield from _values(each, path)
    elif not path:
        yield found
    elif isinstance(found, dict):
        if path[0] in found:
            yield from _values(found[path[0]], path[1:])
    elif isinstance(found, str) and found[:1] in ("{", "["):
        # Tables keep what they know no more of as text.
        yield from _values(_parsed(found), path)


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
