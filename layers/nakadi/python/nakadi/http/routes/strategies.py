"""The strategies that event types choose from."""

from __future__ import annotations

from collections.abc import Sequence

from nakadi.http.message import json_response
from nakadi.http.router import Route
from nakadi.model.event_type import EnrichmentStrategy, PartitionStrategy

VALIDATION_STRATEGIES = ("schema-validation",)


def routes() -> list[Route]:
    return [
        _make_strategies_route("partition", tuple(PartitionStrategy)),
        _make_strategies_route("enrichment", tuple(EnrichmentStrategy)),
        _make_strategies_route("validation", VALIDATION_STRATEGIES),
    ]


def _make_strategies_route(kind: str, strategies: Sequence[str]) -> Route:
    return Route(
        method="GET",
        template=f"/registry/{kind}-strategies",
        handler=lambda _: json_response(strategies),
        operation=f"list_{kind}_strategies",
    )
