"""Checks a query before it runs: it only reads, and only from event types.

DuckDB itself parses the query. This check is the first of two barriers, and its messages name the refused part. The
second is the locked database, which refuses access to files, the network and settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from nakadi_sql.errors import BadQuery

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_QUERY_LENGTH = 100_000

TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"})
"""The functions that may be used in FROM. Others could read files or the network, or change something."""


class TableNames(Struct, frozen=True):
    """The names of the tables that a query reads, in the spelling of the query.

    `shadowed` are the names that the query also defines with WITH. Within its own definition, such a name may mean an
    event type. `needed` are all other names.
    """

    needed: frozenset[str]
    shadowed: frozenset[str]


def table_names(database: DuckDBPyConnection, query: str) -> TableNames:
    """The names of the tables that a query reads. Raises `BadQuery`."""
    tree = _parse(database, query)
    tables: set[str] = set()
    defined: set[str] = set()
    for node in _nodes(tree):
        match node:
            case {"type": "TABLE_FUNCTION", "function": {"function_name": str(name)}}:
                if name.lower() not in TABLE_FUNCTIONS:
                    raise BadQuery(f"The function {name} cannot be used in FROM: a query reads event types.")
            case {"type": "BASE_TABLE", "table_name": str(name)}:
                if node.get("schema_name") or node.get("catalog_name"):
                    parts = [node.get("catalog_name"), node.get("schema_name"), name]
                    said = ".".join(part for part in parts if part)
                    raise BadQuery(f'Write the event type as one name in quotes: "{said}".')
                if node.get("at_clause"):
                    raise BadQuery("AT is not supported: a query reads what is there now.")
                tables.add(name)
            case {"type": "SHOW_REF", "query": None}:
                raise BadQuery("SHOW is not supported; DESCRIBE shows the columns of an event type.")
            case {"cte_map": {"map": [*entries]}}:
                defined.update(entry["key"].lower() for entry in entries)
    shadowed = frozenset(name for name in tables if name.lower() in defined)
    return TableNames(frozenset(tables) - shadowed, shadowed)


def _parse(database: DuckDBPyConnection, query: str) -> Any:
    if len(query) > MAX_QUERY_LENGTH:
        raise BadQuery(f"The query is longer than {MAX_QUERY_LENGTH} characters.")
    found = database.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
    assert found is not None
    try:
        tree = json.loads(found[0])
    except RecursionError:
        raise BadQuery("The query is nested too deeply.") from None
    if tree["error"]:
        if tree["error_type"] == "not implemented":
            raise BadQuery("Only a single SELECT is allowed, with anything that belongs to it, such as WITH.")
        raise BadQuery(f"The query cannot be parsed: {tree['error_message']}")
    if len(tree["statements"]) != 1:
        raise BadQuery("There must be exactly one query.")
    return tree


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Every JSON object in the tree, at any depth."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
