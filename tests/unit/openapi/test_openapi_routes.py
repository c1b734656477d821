"""The routes of a wired broker, held against the description: the same operations, answering what they can answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nakadi import openapi
from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.http.application import Route
from nakadi.http.message import JSON_MEDIA_TYPE

# These read a body of any other content type as JSON.
REFUSE_AVRO = ("publish_events", "delete_events")


@pytest.fixture(scope="module")
def routes() -> Iterator[tuple[Route, ...]]:
    broker = open_broker(Settings())
    yield broker.application.router.routes
    broker.close()


def test_routes_and_operations_are_the_same(routes: tuple[Route, ...]) -> None:
    """Every route stands in the description, and everything in the description has a route."""
    described = {(each.method, each.path, each.id) for each in openapi.operations().values()}
    assert {(each.method, each.template, each.operation) for each in routes} == described


def test_media_types_are_refused_as_described(routes: tuple[Route, ...]) -> None:
    """Operations that insist on JSON bodies say so, and so do those that some `Accept` has no room for. (R11, R12)"""
    for route in routes:
        described = openapi.operations()[route.operation].responses
        reads_json_only = route.method in ("POST", "PUT", "PATCH") and not route.accepts_any_content_type
        assert ("415" in described) == (reads_json_only or route.operation in REFUSE_AVRO), route.operation
        # A Content-Encoding is refused whatever the operation answers, unless it is a POST.
        negotiated = not route.ignores_accept_header and any(_may_have_json(each) for each in described.items())
        assert ("406" in described) == (negotiated or route.method != "POST"), route.operation


def _may_have_json(answer: tuple[str, openapi.Node]) -> bool:
    """Whether it is a success with a body in JSON, always or sometimes."""
    status, response = answer
    bodies = response.get("content", {}) | response.get("x-optional-body", {})
    return status.startswith("2") and JSON_MEDIA_TYPE in bodies
