"""Makes the part that runs queries: for a broker on a server, and for the function that answers queries on AWS."""

from __future__ import annotations

import os

from nakadi.app.settings import Settings
from nakadi.queries.processes import MAX_ANSWER_BYTES, QueryLimits, QueryProcesses, TablesPlace


def make_query_processes(
    settings: Settings,
    broker_url: str,
    *,
    at_once: int,
    child_seconds: float | None = None,
    answer_bytes: int = MAX_ANSWER_BYTES,
) -> QueryProcesses:
    """The child processes of queries, which reach the broker at this URL. The other arguments are as in
    `QueryLimits`.
    """
    limits = QueryLimits(
        at_once=at_once,
        seconds=settings.query_seconds,
        megabytes=settings.query_megabytes,
        rows=settings.query_rows,
        child_seconds=child_seconds,
        answer_bytes=answer_bytes,
    )
    tables = TablesPlace(settings.tables, settings.tables_database)
    return QueryProcesses(limits, broker_url=broker_url, tables=tables, environ=os.environ)
