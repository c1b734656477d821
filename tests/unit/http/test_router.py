"""Finding the handler of a request."""

import pytest

from nakadi.http import router
from nakadi.http.message import empty_response
from nakadi.http.problem import MethodNotAllowed
from nakadi.http.router import Route, Router
from nakadi.model.outcomes import NotFound


def route(method, template):
    return Route(method=method, template=template, handler=lambda _: empty_response(), operation=f"{method} {template}")


ROUTER = Router(
    [
        route("GET", "/event-types"),
        route("POST", "/event-types"),
        route("GET", "/event-types/{name}"),
        route("DELETE", "/event-types/{event_type}"),
        route("GET", "/event-types/{name}/schemas/{version}"),
        route("GET", "/avro-schemas/batch.publishing/versions"),
    ]
)


@pytest.mark.parametrize("name", ["foo.ps", "a.b.json", "1.0.0", "x-y_z"])
def test_dots_belong_to_the_last_segment(name):
    """Dots in the last path segment are part of the name, and never separate a format. (R28)"""
    assert ROUTER.find_route("GET", f"/event-types/{name}")[1] == {"name": name}
    assert ROUTER.find_route("GET", f"/event-types/a/schemas/{name}")[1] == {"name": "a", "version": name}


@pytest.mark.parametrize("path", ["/event-types", "/event-types/"])
def test_a_trailing_slash_says_nothing(path):
    """A trailing slash is tolerated. (R29)"""
    assert ROUTER.find_route("GET", path)[0].operation == "GET /event-types"


def test_an_escaped_name_is_unescaped():
    """A name in a path may be percent-encoded; handlers see the decoded name."""
    assert ROUTER.find_route("GET", "/event-types/gr%C3%BC%20n")[1] == {"name": "grü n"}


def test_each_route_names_its_own_parameters():
    """Routes with the same path and different methods may name its parameters differently."""
    assert ROUTER.find_route("DELETE", "/event-types/a")[1] == {"event_type": "a"}


@pytest.mark.parametrize(
    "path", ["/", "/nothing", "/event-types/a/nothing", "/event-types/a/schemas", "/avro-schemas/x"]
)
def test_an_unknown_path_is_not_found(path):
    """Unknown paths are not found, and neither are paths that are only the beginning of a known path. (R30)"""
    with pytest.raises(NotFound):
        ROUTER.find_route("GET", path)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/event-types", "GET, POST, HEAD, OPTIONS"),
        ("POST", "/event-types/a", "GET, DELETE, HEAD, OPTIONS"),
        ("DELETE", "/event-types/a/schemas/1.0.0", "GET, HEAD, OPTIONS"),
    ],
)
def test_another_method_is_not_allowed(method, path, allowed):
    """A method that a path does not support is refused with a list of those that it supports; this holds for schema
    versions too.

    (R26, R32: a deviation that the contract suggests)
    """
    with pytest.raises(MethodNotAllowed, match=f"Request method '{method}' not supported") as refusal:
        ROUTER.find_route(method, path)

    assert refusal.value.allowed == allowed


def test_head_goes_where_get_goes():
    """`HEAD` works wherever `GET` does. (R27)"""
    assert ROUTER.find_route("HEAD", "/event-types")[0].operation == "GET /event-types"


def test_two_routes_for_one_operation_are_a_mistake():
    """A second route for the same method and path would never be found, so it is refused at once."""
    with pytest.raises(AssertionError, match="two routes"):
        Router([route("GET", "/a/{b}"), route("GET", "/a/{c}")])


def test_paths_of_clients_do_not_fill_the_memory(monkeypatch):
    """The results for the paths that were used last are cached, up to a limit; the results for long paths never are."""
    taken_apart = []
    monkeypatch.setattr(router, "MAX_CACHED_PATHS", 10)
    monkeypatch.setattr(router, "unquote", lambda segment: taken_apart.append(segment) or segment)
    routed = Router([route("GET", "/{name}")])

    def find(name):
        taken_apart.clear()
        assert routed.find_route("GET", f"/{name}")[1] == {"name": name}
        return len(taken_apart)

    assert [find("a"), find("a")] == [1, 0]
    assert [find("x" * 1000), find("x" * 1000)] == [1, 1]
    assert [find(f"n{number}") for number in range(20)] == [1] * 20
    assert find("a") == 1
