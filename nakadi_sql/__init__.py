"""SQL over events: each event type is one table, of the events in the jobs' tables and the newer events in the log.

    with HttpSource(Connection("http://localhost:8080"), print) as source:
        with ask("select count(*) from order_placed", source, FolderTables("data/tables"), Limits()) as answer:
            for row in answer.rows():
                print(row)

Begin with `queries.py`: it checks the query, opens an empty database for it, and locks it. `http_source.py` reads the
log, `rows.py` makes rows of events, and `tables.py` finds tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nakadi_sql.errors import BadQuery, QueryStopped
from nakadi_sql.http_source import HttpSource
from nakadi_sql.tables import FolderTables, GlueTables, RestTables, Tables, open_tables

if TYPE_CHECKING:
    from nakadi_sql.queries import Answer, Limits, ask

__all__ = [
    "Answer",
    "BadQuery",
    "FolderTables",
    "GlueTables",
    "HttpSource",
    "Limits",
    "QueryStopped",
    "RestTables",
    "Tables",
    "ask",
    "open_tables",
]


def __getattr__(name: str) -> Any:
    # Imported only when used, because `nakadi_spark` needs the rest of this package, but not DuckDB.
    if name in ("Answer", "Limits", "ask"):
        from nakadi_sql import queries  # noqa: PLC0415  # the reason stands above

        return getattr(queries, name)
    raise AttributeError(name)
