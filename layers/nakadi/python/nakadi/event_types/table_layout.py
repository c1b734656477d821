"""How tables are partitioned and sorted, according to annotations of their event types.

    nakadi.io/table-partition-by: "day(metadata.occurred_at), bucket(16, customer.id)"
    nakadi.io/table-sort-by: "customer.id, nakadi_time desc"

The broker reads these annotations without the table, so only the job that writes the table knows whether it has such
columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from nakadi.model.annotations import (
    PARTITION_BY_ANNOTATION,
    SORT_BY_ANNOTATION,
)

TIME_TRANSFORMS = ("year", "month", "day", "hour")
BUCKET_TRANSFORM, TRUNCATE_TRANSFORM, IDENTITY_TRANSFORM = "bucket", "truncate", "identity"

MAX_TABLE_LAYOUT_COLUMNS = 8
"""The greatest number of columns of each kind. With more, files become small, and queries slow to plan."""

MAX_TABLE_PARTITION_BUCKETS = 4096
MAX_TABLE_TRUNCATE_WIDTH = 1000

_COLUMN_PATTERN = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*"
_PARTITION_PATTERN = re.compile(
    rf"(?:(?P<unit>{'|'.join(TIME_TRANSFORMS)})\s*\(\s*(?P<moment>{_COLUMN_PATTERN})\s*\)"
    rf"|(?P<sized>{BUCKET_TRANSFORM}|{TRUNCATE_TRANSFORM})"
    rf"\s*\(\s*(?P<size>[0-9]{{1,9}})\s*,\s*(?P<inner>{_COLUMN_PATTERN})\s*\)"
    rf"|(?P<plain>{_COLUMN_PATTERN}))",
    re.IGNORECASE,
)
_SORT_PATTERN = re.compile(rf"(?P<column>{_COLUMN_PATTERN})(?:\s+(?P<direction>asc|desc))?", re.IGNORECASE)
_COMMA_PATTERN = re.compile(r",(?![^()]*\))")
"""A comma between fields, outside parentheses."""


class BadTableLayout(Exception):
    """Raised for an invalid annotation; the message says why."""


class TablePartitionColumn(Struct, frozen=True):
    """A column whose value, or a part of it, decides in which partition a row is.

    `bucket_count_or_width` is the argument of `bucket` or `truncate`.
    """

    column: str
    transform_name: str = IDENTITY_TRANSFORM
    bucket_count_or_width: int = 0


class TableSortColumn(Struct, frozen=True):
    column: str
    descending: bool = False


Columns = TypeVar("Columns")


class TableLayout(Struct, frozen=True):
    """A layout; None for properties without an annotation."""

    partition_by: tuple[TablePartitionColumn, ...] | None = None
    sort_by: tuple[TableSortColumn, ...] | None = None


def table_layout_from_annotations(annotations: Mapping[str, str | None]) -> TableLayout:
    return TableLayout(
        _parse_annotation(annotations, PARTITION_BY_ANNOTATION, _parse_partition_columns),
        _parse_annotation(annotations, SORT_BY_ANNOTATION, _parse_sort_columns),
    )


def _parse_annotation(
    annotations: Mapping[str, str | None], name: str, read: Callable[[str], Columns]
) -> Columns | None:
    text = annotations.get(name)
    if text is None:
        return None
    try:
        return read(text)
    except BadTableLayout as reason:
        raise BadTableLayout(f'Annotation {name} is not valid: {reason}. Provided value: "{text}".') from None


def _parse_partition_columns(text: str) -> tuple[TablePartitionColumn, ...]:
    found = tuple(map(_parse_partition_column, _split_at_commas(text)))
    # Hours are parts of days, so a column needs only one of these.
    _check_distinct_columns(
        (each.column, "time" if each.transform_name in TIME_TRANSFORMS else each.transform_name) for each in found
    )
    return found


def _parse_sort_columns(text: str) -> tuple[TableSortColumn, ...]:
    found = tuple(map(_parse_sort_column, _split_at_commas(text)))
    _check_distinct_columns((each.column, "") for each in found)
    return found


def _split_at_commas(text: str) -> Iterator[str]:
    fields = _COMMA_PATTERN.split(text)
    if len(fields) > MAX_TABLE_LAYOUT_COLUMNS:
        raise BadTableLayout(f"it has {len(fields)} fields, and {MAX_TABLE_LAYOUT_COLUMNS} are possible")
    return (each.strip() for each in fields)


def _parse_partition_column(text: str) -> TablePartitionColumn:
    found = _PARTITION_PATTERN.fullmatch(text)
    if found is None:
        raise BadTableLayout(
            f'"{text}" is not a column, nor one of year, month, day and hour(column), bucket(16, column) '
            "and truncate(4, column)"
        )
    if found["unit"]:
        return TablePartitionColumn(found["moment"], found["unit"].lower())
    if not found["sized"]:
        return TablePartitionColumn(found["plain"])
    transform, size = found["sized"].lower(), int(found["size"])
    most = MAX_TABLE_PARTITION_BUCKETS if transform == BUCKET_TRANSFORM else MAX_TABLE_TRUNCATE_WIDTH
    if not 1 <= size <= most:
        raise BadTableLayout(f"the number in {transform} is from 1 to {most}, and not {size}")
    return TablePartitionColumn(found["inner"], transform, size)


def _parse_sort_column(text: str) -> TableSortColumn:
    found = _SORT_PATTERN.fullmatch(text)
    if found is None:
        raise BadTableLayout(f'"{text}" is not a column, optionally followed by asc or desc')
    return TableSortColumn(found["column"], (found["direction"] or "").lower() == "desc")


def _check_distinct_columns(found: Iterable[tuple[str, str]]) -> None:
    seen: set[tuple[str, str]] = set()
    for column, transform in found:
        if (column.lower(), transform) in seen:
            raise BadTableLayout(f"{column} is there twice")
        seen.add((column.lower(), transform))
