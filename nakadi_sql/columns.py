"""The types of columns, for DuckDB and for Arrow. The columns themselves are the same as in the jobs' tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa

from nakadi_jobs.columns import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    MAX_DIGITS,
    STRING,
    TIMESTAMP,
    Array,
    Field,
    Json,
    Kind,
    Scalar,
    Struct,
    Texts,
    decimal_scale,
)
from nakadi_jobs.places import PLACES

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

INTEGER = Scalar("int")

DATABASE_TYPES = {
    "int": "INTEGER",
    "bigint": "BIGINT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}

ARROW_TYPES = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}

_KINDS_OF_DATABASE: dict[str, Kind] = {
    "integer": INTEGER,
    "bigint": BIGINT,
    "double": DOUBLE,
    "boolean": BOOLEAN,
    "varchar": STRING,
    "timestamp with time zone": TIMESTAMP,
}

OWNER = Struct((Field("data_type", STRING), Field("value", STRING)))

UNDELIVERED = frozenset({"nakadi_directed_to", "nakadi_tombstone"})
"""Columns of tables that queries do not see. They mark rows that queries leave out, as streams of event types do."""

PLACE_COLUMNS = Struct(
    tuple(
        Field(name, OWNER if name == "nakadi_owner" else Scalar(kind))
        for name, kind, _ in PLACES
        if name not in UNDELIVERED
    )
)
"""The columns of a query that the broker or the jobs add: the place of an event, its time, its key and others."""


def database_type(kind: Kind) -> str:
    """The name of a type in DuckDB."""
    match kind:
        case Scalar(name) if name.startswith("decimal"):
            return f"DECIMAL({MAX_DIGITS},{decimal_scale(name)})"
        case Scalar(name):
            return DATABASE_TYPES[name]
        case Json():
            return "VARCHAR"
        case Texts():
            return "MAP(VARCHAR, VARCHAR)"
        case Array(element):
            return f"{database_type(element)}[]"
        case Struct(fields):
            return f"STRUCT({', '.join(f'{quoted(each.name)} {database_type(each.kind)}' for each in fields)})"


def arrow_type(kind: Kind) -> pa.DataType:
    match kind:
        case Scalar(name) if name.startswith("decimal"):
            return pa.decimal128(MAX_DIGITS, decimal_scale(name))
        case Scalar(name):
            return ARROW_TYPES[name]
        case Json():
            return pa.string()
        case Texts():
            return pa.map_(pa.string(), pa.string())
        case Array(element):
            return pa.list_(arrow_type(element))
        case Struct(fields):
            return pa.struct([(each.name, arrow_type(each.kind)) for each in fields])


def kind_of_database(found: DuckDBPyType) -> Kind:
    """The kind of a column, from its type in DuckDB. What the texts of a text column contain is unknown."""
    match found.id:
        case "struct":
            return Struct(tuple(Field(name, kind_of_database(inner)) for name, inner in _inner_types(found)))
        case "list":
            [(_, element)] = _inner_types(found)
            return Array(kind_of_database(element))
        case "map":
            return Texts()
        case "decimal":
            (_, precision), (_, scale) = found.children
            return Scalar(f"decimal({precision},{scale})")
    return _KINDS_OF_DATABASE[found.id]


def _inner_types(found: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    return cast("list[tuple[str, DuckDBPyType]]", found.children)


def quoted(name: str) -> str:
    """Quote a name, which may contain any characters, for SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(value: str) -> str:
    """Quote a text for SQL."""
    return "'" + value.replace("'", "''") + "'"
