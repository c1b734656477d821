"""The lists of strategies that event types choose from."""

from __future__ import annotations

from collections.abc import Sequence

from nakadi.http.message import Request, Response, json_response
from nakadi.http.routing import Handler, Route
from nakadi.model.event_type import EnrichmentStrategy, PartitionStrategy

VALIDATION_STRATEGIES = ("schema-validation",)


def routes() -> list[Route]:
    return [
        _list("partition", tuple(PartitionStrategy)),
        _list("enrichment", tuple(EnrichmentStrategy)),
        _list("validation", VALIDATION_STRATEGIES),
    ]


def _list(kind: str, strategies: Sequence[str]) -> Route:
    return Route(
        method="GET",
        template=f"/registry/{kind}-strategies",
        handler=_answering(strategies),
        operation=f"list_{kind}_strategies",
    )


def _answering(strategies: Sequence[str]) -> Handler:
    def answer(_: Request) -> Response:
        return json_response(strategies)

    return answer
