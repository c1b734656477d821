"""Describes the form of a table's files, without a table."""

from __future__ import annotations

import json
from typing import Any

from nakadi_jobs.columns import Array, Field, Kind, Scalar, Struct, Texts, ddl_of
from nakadi_jobs.places import PLACES
from nakadi_jobs.plain_lines import Form

TEXT = Scalar("string")


def make_form(columns: Struct, table: Struct | None = None) -> Form:
    """The form of a table with these columns, or with the columns of `table`."""
    owner = Struct((Field("data_type", TEXT), Field("value", TEXT)))
    places = (Field(name, owner if "<" in kind else Scalar(kind)) for name, kind, _ in PLACES)
    return Form(columns, json.dumps(_iceberg_type(Struct((*places, *(table or columns).fields)))))


def _iceberg_type(kind: Kind, number: int = 0) -> Any:
    """A type in Iceberg's JSON."""
    match kind:
        case Struct(fields):
            listed = [
                {"id": number * 100 + at, "name": each.name, "required": False, "type": _iceberg_type(each.kind, at)}
                for at, each in enumerate(fields, 1)
            ]
            return {"type": "struct", "fields": listed}
        case Array(element):
            return {"type": "list", "element-id": number * 100, "element": _iceberg_type(element, number)}
        case Texts():
            return {"type": "map", "key-id": 1, "key": "string", "value-id": 2, "value": "string"}
    return {"bigint": "long", "timestamp": "timestamptz"}.get(ddl_of(kind), ddl_of(kind))
