"""How an event type's annotations say that its table is partitioned and sorted: read from text, without a table.

    nakadi.io/table-partition-by: "day(metadata.occurred_at), bucket(16, customer.id)"
    nakadi.io/table-sort-by: "customer.id, nakadi_time desc"

Whether there are such columns is known to the job that keeps the table, and not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

PARTITION_BY = "nakadi.io/table-partition-by"
SORT_BY = "nakadi.io/table-sort-by"

TIME_UNITS = ("year", "month", "day", "hour")
BUCKET, TRUNCATE, IDENTITY = "bucket", "truncate", "identity"

MOST_FIELDS = 8
"""Of each kind. Files become small, and queries slow to plan, long before that."""

MOST_BUCKETS = 4096
LONGEST_PREFIX = 1000

_COLUMN = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*"
_PARTITION = re.compile(
    rf"(?:(?P<unit>{'|'.join(TIME_UNITS)})\s*\(\s*(?P<moment>{_COLUMN})\s*\)"
    rf"|(?P<sized>{BUCKET}|{TRUNCATE})\s*\(\s*(?P<size>[0-9]{{1,9}})\s*,\s*(?P<inner>{_COLUMN})\s*\)"
    rf"|(?P<plain>{_COLUMN}))",
    re.IGNORECASE,
)
_SORT = re.compile(rf"(?P<column>{_COLUMN})(?:\s+(?P<direction>asc|desc))?", re.IGNORECASE)
_COMMA = re.compile(r",(?![^()]*\))")
"""Between fields, and not within the parentheses of one."""


class BadLayout(Exception):
    """Raised for an annotation that says nothing a table could be partitioned or sorted by; the message says why."""


class PartitionField(Struct, frozen=True):
    """A column by whose value, or by a part of it, rows are kept apart. `size` is that of `bucket` and `truncate`."""

    column: str
    transform: str = IDENTITY
    size: int = 0


class SortField(Struct, frozen=True):
    column: str
    descending: bool = False


Fields = TypeVar("Fields")


class Layout(Struct, frozen=True):
    """None where the annotations say nothing."""

    partition_by: tuple[PartitionField, ...] | None = None
    sort_by: tuple[SortField, ...] | None = None


def layout_of(annotations: Mapping[str, str | None]) -> Layout:
    """Return what annotations say. Raises `BadLayout`."""
    return Layout(
        _read(annotations, PARTITION_BY, _partition_fields),
        _read(annotations, SORT_BY, _sort_fields),
    )


def _read(annotations: Mapping[str, str | None], name: str, read: Callable[[str], Fields]) -> Fields | None:
    text = annotations.get(name)
    if text is None:
        return None
    try:
        return read(text)
    except BadLayout as reason:
        raise BadLayout(f'Annotation {name} is not valid: {reason}. Provided value: "{text}".') from None


def _partition_fields(text: str) -> tuple[PartitionField, ...]:
    found = tuple(map(_partition_field, _texts(text)))
    # Hours are parts of days: one of them is enough.
    _check_distinct((each.column, "time" if each.transform in TIME_UNITS else each.transform) for each in found)
    return found


def _sort_fields(text: str) -> tuple[SortField, ...]:
    found = tuple(map(_sort_field, _texts(text)))
    _check_distinct((each.column, "") for each in found)
    return found


def _texts(text: str) -> Iterator[str]:
    fields = _COMMA.split(text)
    if len(fields) > MOST_FIELDS:
        raise BadLayout(f"it has {len(fields)} fields, and {MOST_FIELDS} are possible")
    return (each.strip() for each in fields)


def _partition_field(text: str) -> PartitionField:
    found = _PARTITION.fullmatch(text)
    if found is None:
        raise BadLayout(
            f'"{text}" is not a column, nor one of year, month, day and hour(column), bucket(16, column) '
            "and truncate(4, column)"
        )
    if found["unit"]:
        return PartitionField(found["moment"], found["unit"].lower())
    if not found["sized"]:
        return PartitionField(found["plain"])
    transform, size = found["sized"].lower(), int(found["size"])
    most = MOST_BUCKETS if transform == BUCKET else LONGEST_PREFIX
    if not 1 <= size <= most:
        raise BadLayout(f"the number in {transform} is from 1 to {most}, and not {size}")
    return PartitionField(found["inner"], transform, size)


def _sort_field(text: str) -> SortField:
    found = _SORT.fullmatch(text)
    if found is None:
        raise BadLayout(f'"{text}" is not a column, with asc or desc behind it if at all')
    return SortField(found["column"], (found["direction"] or "").lower() == "desc")


def _check_distinct(found: Iterable[tuple[str, str]]) -> None:
    seen: set[tuple[str, str]] = set()
    for column, transform in found:
        if (column.lower(), transform) in seen:
            raise BadLayout(f"{column} is there twice")
        seen.add((column.lower(), transform))
