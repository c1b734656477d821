"""Says why an event does not fit the columns of its table. This module needs no Spark.

>>> list(misfit_reasons('{"total": "much"}', Struct((Field("total", DOUBLE),))))
[('double', 'total')]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from nakadi_jobs.columns import Array, Json, Kind, Scalar, Struct, Texts, ddl_of

Reason = tuple[str, str]
"""A rule, which is the type of a column, and the path of the column."""

NOT_JSON: Reason = ("json", "")
"""The reason of an event that cannot be read."""

OTHER: Reason = ("other", "")
"""The reason of an event with values that the columns could hold, but that Spark cannot read for another reason."""

_MAX_BITS = {"int": 31, "bigint": 63}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[-+]\d\d:\d\d)", re.ASCII)


def misfit_reasons(event: str, columns: Struct) -> frozenset[Reason]:
    """The reasons for which an event does not fit its columns, each once."""
    try:
        value = json.loads(event)
    except (ValueError, RecursionError):
        return frozenset([NOT_JSON])
    return frozenset(_misfit_reasons(value, columns, "")) or frozenset([OTHER])


def _misfit_reasons(value: Any, kind: Kind, path: str) -> Iterator[Reason]:
    if value is None:
        return
    match kind:
        case Struct(fields) if isinstance(value, dict):
            # A property that had several types is read as text, and each of its columns takes the values that fit.
            for each in (field for field in fields if not field.has_several_types):
                yield from _misfit_reasons(value.get(each.name), each.kind, f"{path}.{each.name}".removeprefix("."))
        case Array(element) if isinstance(value, list):
            for each in value:
                yield from _misfit_reasons(each, element, f"{path}[]")
        case _ if not _fits_type(kind, value):
            yield ddl_of(kind).partition("<")[0], path


def _fits_type(kind: Kind, value: Any) -> bool:
    """Whether Spark can read a value as this type. It can read every value as a string."""
    match kind:
        case Scalar("boolean"):
            return isinstance(value, bool)
        case Scalar("int" | "bigint" as name):
            return type(value) is int and -1 - (limit := (1 << _MAX_BITS[name]) - 1) <= value <= limit
        case Scalar("timestamp"):
            return isinstance(value, str) and _MOMENT.fullmatch(value) is not None
        case Scalar("string") | Json():
            return True
        case Scalar():
            return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(kind, Texts) and isinstance(value, dict)
