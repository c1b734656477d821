"""Queries with SQL. Each runs in a child of the process that received the request, so they have their own area."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from nakadi.http.bodies import object_body
from nakadi.http.message import JSON_MEDIA_TYPE, Request, Response
from nakadi.http.router import Route
from nakadi.model.outcomes import FeatureSwitchedOff, Violation, Violations
from nakadi.queries.processes import SWITCHED_OFF_MESSAGE, QueryProcesses

# The size of a body with the longest query, each of whose characters is escaped.
MAX_BODY_BYTES = 1_000_000


class QueryHandlers(Struct, frozen=True):
    """`find_processes` returns None if child processes could not reach this broker."""

    find_processes: Callable[[], QueryProcesses | None]

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                template="/queries",
                handler=self.run,
                operation="run_query",
                max_body_bytes=MAX_BODY_BYTES,
            )
        ]

    async def run(self, request: Request) -> Response:
        sql = object_body(request).text("sql")
        if not sql:
            raise Violations((Violation("sql", "must not be null" if sql is None else "must not be empty"),))
        processes = self.find_processes()
        if processes is None:
            raise FeatureSwitchedOff(SWITCHED_OFF_MESSAGE)
        body = await processes.answer(sql, request.bearer_token, request.is_client_gone)
        return Response(200, {"content-type": JSON_MEDIA_TYPE}, body)
