"""The routes of a whole broker, compared with the description: the same operations and answers."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import nakadi
from nakadi import openapi
from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.http.message import JSON_MEDIA_TYPE, Parameter
from nakadi.http.parameters import (
    ChoiceParameter,
    FlagParameter,
    Header,
    HeaderFamily,
    IntegerParameter,
    ListParameter,
)
from nakadi.http.router import Route

# The application reads this header from every request.
OF_EVERY_REQUEST = ("header", "x-flow-id")

# OpenAPI describes media types elsewhere, and the other headers are not part of the API.
UNDESCRIBED_HEADERS = ("accept", "content-type", "host", "x-forwarded-proto")

PACKAGE = Path(nakadi.__file__).parent

# These routes read the body as JSON with most content types.
REFUSE_SOME_CLOUD_EVENTS = ("publish_events", "delete_events")


@pytest.fixture(scope="module")
def routes() -> Iterator[tuple[Route, ...]]:
    broker = open_broker(Settings())
    yield make_application(broker).router.routes
    broker.close()


def test_routes_and_operations_are_the_same(routes: tuple[Route, ...]) -> None:
    """Every route is in the description, and everything in the description has a route."""
    described = {(each.method, each.path, each.id) for each in openapi.operations().values()}
    assert {(each.method, each.template, each.operation) for each in routes} == described


def test_parameters_are_described_as_declared(routes: tuple[Route, ...]) -> None:
    """The description has exactly the parameters that a route declares, with their types, defaults and choices.
    (R15)"""
    for route in routes:
        # A family of headers is described by examples.
        families = tuple(each.name for each in route.parameters if isinstance(each, HeaderFamily))
        described = {
            (each["in"], each["name"].lower()): each["schema"]
            for each in openapi.operations()[route.operation].parameters
            if each["in"] != "path" and not each["name"].lower().startswith(families)
        }
        assert OF_EVERY_REQUEST in described, route.operation
        single = [each for each in route.parameters if not isinstance(each, HeaderFamily)]
        declared = {_place_and_name(each): each for each in single}
        assert len(declared) == len(single), route.operation
        public = {key for key in declared if key not in {("header", name) for name in UNDESCRIBED_HEADERS}}
        assert public == described.keys() - {OF_EVERY_REQUEST}, route.operation
        for key in public:
            _assert_described_as_declared(declared[key], described[key], f"{route.operation}: {key}")


def _place_and_name(parameter: Parameter) -> tuple[str, str]:
    assert parameter.name == parameter.name.lower()
    return ("header" if isinstance(parameter, Header) else "query", parameter.name)


def _assert_described_as_declared(parameter: Parameter, schema: openapi.Node, what: str) -> None:
    match parameter:
        case IntegerParameter():
            assert (schema["type"], schema["format"]) == ("integer", f"int{parameter.bits}"), what
            assert parameter.default in (None, schema.get("default")), what
        case FlagParameter():
            assert (schema["type"], schema["default"]) == ("boolean", False), what
        case ListParameter():
            assert (schema["type"], schema["items"]["type"]) == ("array", "string"), what
        case ChoiceParameter():
            assert (schema["type"], tuple(schema["enum"])) == ("string", parameter.choices), what
        case _:
            assert (schema["type"], "enum" in schema) == ("string", False), what


@pytest.mark.parametrize(
    "path",
    [*sorted(PACKAGE.glob("http/routes/*.py")), PACKAGE / "http/bodies.py", PACKAGE / "http/drafts.py"],
    ids=lambda path: path.stem,
)
def test_handlers_read_through_declarations_alone(path: Path) -> None:
    """No module of routes reads the query, the headers or the URL of a request without a declaration."""
    raw = [
        f"line {node.lineno}: .{node.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("query", "headers", "target")
    ]
    assert raw == []


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("http/routes/*.py")), ids=lambda path: path.stem)
def test_what_is_declared_is_read(path: Path) -> None:
    """A module of routes uses each of its declarations in a handler, and not only in a route."""
    tree = ast.parse(path.read_text())
    routes = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "parameters"]
    declared = Counter(name for node in routes for name in _constants_read(node.value))
    read = Counter(_constants_read(tree))
    assert sorted(name for name in declared if read[name] == declared[name]) == []


def _constants_read(tree: ast.AST) -> Iterator[str]:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return (node.id for node in names if node.id.isupper())


def test_media_types_are_refused_as_described(routes: tuple[Route, ...]) -> None:
    """Operations that require JSON bodies describe the refusal, and so do those whose answers some `Accept` excludes.
    (R11, R12)"""
    for route in routes:
        described = openapi.operations()[route.operation].responses
        reads_json_only = route.method in ("POST", "PUT", "PATCH") and not route.accepts_any_content_type
        assert ("415" in described) == (reads_json_only or route.operation in REFUSE_SOME_CLOUD_EVENTS), route.operation
        # A Content-Encoding is refused by every operation that is not a POST.
        negotiated = not route.ignores_accept_header and any(_may_have_json(each) for each in described.items())
        assert ("406" in described) == (negotiated or route.method != "POST"), route.operation


def _may_have_json(answer: tuple[str, openapi.Node]) -> bool:
    """Whether the answer is a success with a JSON body, always or sometimes."""
    status, response = answer
    bodies = response.get("content", {}) | response.get("x-optional-body", {})
    return status.startswith("2") and JSON_MEDIA_TYPE in bodies
