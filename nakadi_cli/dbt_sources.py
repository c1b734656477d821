"""The tables of event types as sources of dbt, in the form of its versions from 1.10.

`write_sources` takes the answers of the broker, and returns the document that dbt reads, as plain values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nakadi.event_types.personal_data import BadPersonalData, personal_data_paths
from nakadi.model.event_type import Category
from nakadi_jobs.columns import Struct as Columns
from nakadi_jobs.columns import ddl_of, derive_columns, whole_event_schema
from nakadi_jobs.descriptions import column_descriptions, schema_description
from nakadi_jobs.places import PLACES

DBT_VERSION = 2
"""The version of the file's format."""


class _EventType(Struct, frozen=True):
    """The parts of an event type that its columns depend on."""

    name: str
    category: Category


class TableSource(Struct, frozen=True):
    """An event type with a table, as the broker describes it, and all versions of its schema, newest first."""

    definition: Mapping[str, Any]
    schemas: Sequence[Mapping[str, Any]]


def write_sources(tables: Iterable[TableSource], source: str, database: str) -> Mapping[str, Any]:
    """The document for dbt. `source` is the name by which models refer to the tables; `database` is their database,
    which dbt calls schema.
    """
    return {
        "version": DBT_VERSION,
        "sources": [
            {
                "name": source,
                "description": "The tables that the jobs of the event broker write from events, each event once.",
                "schema": database,
                "config": {"loaded_at_field": "nakadi_time"},
                "tables": [_dbt_table(each) for each in tables],
            }
        ],
    }


def _dbt_table(found: TableSource) -> Mapping[str, Any]:
    definition, newest = found.definition, found.schemas[0]
    event_type = _EventType(definition["name"], Category(definition["category"]))
    columns = derive_columns(event_type, reversed(found.schemas))
    comments = column_descriptions(columns, whole_event_schema(event_type, newest))
    personal = _personal_data(definition)
    return {
        "name": definition["table"]["name"],
        "description": schema_description(newest) or f"Events of the type {event_type.name}",
        "config": {
            "meta": {
                "event_type": event_type.name,
                "owner": definition["owning_application"],
                **({"personal_data": list(personal)} if personal else {}),
            }
        },
        "columns": [
            *({"name": name, "description": meaning, "data_type": kind} for name, kind, meaning in PLACES),
            *_dbt_columns(columns, comments, personal),
        ],
    }


def _dbt_columns(columns: Columns, comments: Mapping[str, str], personal: Sequence[str]) -> Iterable[Mapping[str, Any]]:
    for each in columns.fields:
        name = each.source or each.name
        paths = [path for path in personal if path.split(".")[0] == name]
        comment = comments.get(each.name)
        yield {
            "name": each.name,
            **({"description": comment} if comment else {}),
            "data_type": ddl_of(each.kind).replace("`", ""),
            **({"config": {"meta": {"personal_data": paths}}} if paths else {}),
        }


def _personal_data(definition: Mapping[str, Any]) -> Sequence[str]:
    try:
        return personal_data_paths(definition.get("annotations") or {})
    except BadPersonalData:
        return ()


def parse_schemas(versions: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The JSON schemas of an event type; empty if a version has another type."""
    found = list(versions)
    if any(each["type"] != "json_schema" for each in found):
        return ()
    return [json.loads(each["schema"]) for each in found]
