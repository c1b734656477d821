"""Reads tables with Spark, DuckDB and pyiceberg, and compares what they see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row

Rows = list[dict[str, Any]]


def read_with_spark(table: DataFrame) -> Rows:
    """The rows as dictionaries; timestamps have a time zone."""
    return [_plain(row) for row in table.collect()]


def read_with_duckdb(folder: Path) -> Rows:
    import duckdb  # noqa: PLC0415  # every process of the tests imports this module, and few read a table

    with duckdb.connect() as database:
        for name in ("avro", "iceberg"):
            [extension] = files(f"duckdb_extension_{name}").joinpath("extensions").glob(f"*/{name}.duckdb_extension*")
            database.load_extension(str(extension))
        found = database.sql(f"SELECT * FROM iceberg_scan('{folder}')")
        return [_plain(dict(zip(found.columns, row, strict=True))) for row in found.fetchall()]


def read_with_pyiceberg(folder: Path) -> Rows:
    from pyiceberg.table import StaticTable  # noqa: PLC0415  # as above

    found = StaticTable.from_metadata(str(folder)).scan().to_arrow()
    return [_plain(row) for row in found.to_pylist(maps_as_pydicts="strict")]


def assert_read_alike(table: DataFrame, folder: Path) -> Rows:
    """Return the rows of a table in the order of their positions, after checking that all readers see the same."""
    rows = _sort_rows(read_with_spark(table))
    assert _sort_rows(read_with_duckdb(folder)) == rows
    others = _sort_rows(read_with_pyiceberg(folder))
    assert len(others) == len(rows)
    for found, row in zip(others, rows, strict=True):
        assert _matches_pyiceberg(found, row), (found, row)
    return rows


def _matches_pyiceberg(found: Any, read: Any) -> bool:
    """Whether the value that pyiceberg has read equals the one that Spark has read. Version 0.12 reads a list of
    objects that is NULL as an empty list.
    """
    match read:
        case None:
            return found in (None, [])
        case dict():
            return (
                isinstance(found, dict)
                and found.keys() == read.keys()
                and all(_matches_pyiceberg(found[name], read[name]) for name in read)
            )
        case list():
            return isinstance(found, list) and len(found) == len(read) and all(map(_matches_pyiceberg, found, read))
    return bool(found == read)


def _sort_rows(rows: Rows) -> Rows:
    places = ("nakadi_timeline", "nakadi_partition", "nakadi_offset")
    return sorted(rows, key=lambda row: tuple(row[name] for name in places))


def _plain(found: Any) -> Any:
    match found:
        case Row():
            return {name: _plain(value) for name, value in found.asDict().items()}
        case Mapping():
            return {name: _plain(value) for name, value in found.items()}
        case list():
            return [_plain(each) for each in found]
        case datetime():
            return found.astimezone(UTC)
    return found
