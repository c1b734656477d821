"""Compares a row of a table with the text of the published event, value by value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Self

from pyspark.sql import Row

BROKER_FIELDS = {
    "published_by",
    "received_at",
    "version",
    "event_type",
    "partition",
    "flow_id",
    "parent_eids",
    "span_ctx",
}
"""The fields that the broker may add to the metadata of an event."""


def assert_row_is_as_published(row: Row, text: str | None, *, has_metadata: bool) -> None:
    """Raise `AssertionError` unless a row has all published values, in columns or in the text, and no others.

    The broker adds to the metadata of an event that has some.
    """
    columns = {name: value for name, value in row.asDict().items() if not name.lower().startswith("nakadi_")}
    assert row["nakadi_tombstone"] is (text is None), (text, row)
    if text is None:
        assert (row["nakadi_event"], {*columns.values()} - {None}) == (None, set()), row
        return
    published = _read(text)
    kept = None if row["nakadi_event"] is None else _read(row["nakadi_event"])
    for event in (columns, kept) if has_metadata else ():
        # What remains of the metadata is compared like the other members.
        _check_stamps(event, published)
    assert _agrees_with_object(columns, published), (text, row)
    assert kept == published if kept is not None else _is_complete(columns, published), (text, row)


def _check_stamps(event: dict[str, Any] | None, published: Mapping[str, Any]) -> None:
    """Remove from the metadata the fields that the broker has added."""
    if event is None or event.get("metadata") is None:
        return
    metadata = event["metadata"].asDict() if isinstance(event["metadata"], Row) else dict(event["metadata"])
    assert metadata["received_at"], event
    event["metadata"] = {
        name: value for name, value in metadata.items() if name in published["metadata"] or name not in BROKER_FIELDS
    }


class _Number(Decimal):
    """A number that remembers its text."""

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


class _Object(dict[str, Any]):
    """An object that remembers its members as written: their order, and repeated names."""

    def __init__(self, members: list[tuple[str, Any]]) -> None:
        super().__init__(members)
        self.members = members


def _read(text: str) -> Any:
    return json.loads(text, parse_float=_Number, parse_int=_Number, object_pairs_hook=_Object)


def _spelling(value: Any) -> Any:
    """The value of a JSON text with its spelling: the digits of numbers, and the order of members."""
    match value:
        case _Object():
            return "object", [(name, _spelling(each)) for name, each in value.members]
        case list():
            return [_spelling(each) for each in value]
        case _Number():
            return "number", value.text
    return value


def _is_as_published(found: Any, published: Any) -> bool:  # noqa: PLR0911  # one for each type of value
    """Whether each value that is not null is the published one, perhaps in another notation."""
    match found:
        case None:
            return True
        case Row():
            return isinstance(published, dict) and _agrees_with_object(found.asDict(), published)
        case dict():
            # A column of the type map has all members.
            return isinstance(published, dict) and (found == published or _agrees_with_object(found, published))
        case list():
            return (
                isinstance(published, list)
                and len(found) == len(published)
                and all(map(_is_as_published, found, published))
            )
        case bool():
            return found is published
        case float():
            return isinstance(published, Decimal) and Decimal(repr(found)) == published
        case int() | Decimal():
            return isinstance(published, Decimal) and found == published
        case datetime():
            return isinstance(published, str) and _moment(published) == found.astimezone(UTC)
        case str():
            return found == published if isinstance(published, str) else _is_text_of(found, published)
    return False


def _agrees_with_object(found: Mapping[str, Any], published: Mapping[str, Any]) -> bool:
    return all(value is None or _agrees_at(name, value, published) for name, value in found.items())


def _agrees_at(name: str, value: Any, published: Mapping[str, Any]) -> bool:
    """Whether a column agrees with its property. The column `a__string` has texts of the property `a`, unless there is
    a property `a__string`.
    """
    source = name.rpartition("__")[0]
    return any(each in published and _is_as_published(value, published[each]) for each in (name, source))


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError:
        return None


def _is_text_of(text: str, published: Any) -> bool:
    """Whether a text is the JSON of a value. For an object or a list, even the spelling has to match."""
    try:
        found = _read(text)
    except json.JSONDecodeError:
        return False
    return bool(_spelling(found) == _spelling(published) if isinstance(published, dict | list) else found == published)


def _is_complete(found: Any, published: Any) -> bool:
    """Whether a value that agrees with the published one, as far as it goes, also lacks no part of it."""
    match found, published:
        case None, _:
            return published is None
        case Row(), Mapping():
            return _is_complete(found.asDict(), published)
        case Mapping(), Mapping():
            return all(
                name in found and found[name] is not None and _is_complete(found[name], value)
                for name, value in published.items()
            )
        case list(), list():
            return all(map(_is_complete, found, published))
    return True
