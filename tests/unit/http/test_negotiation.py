"""Media types."""

import pytest

from nakadi.http.message import Request, empty_response
from nakadi.http.negotiation import adapted, check
from nakadi.http.problem import NotAcceptable, UnsupportedMediaType, problem_of
from nakadi.http.routing import Route
from nakadi.model.outcomes import NotFound


def a_route(**changes):
    return Route(
        **{"method": "POST", "template": "/x", "handler": lambda _: empty_response(), "operation": "x"} | changes
    )


def a_request(method="POST", body=b"{}", **headers):
    return Request(method=method, path="/x", body=body, headers={n.replace("_", "-"): v for n, v in headers.items()})


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "",
        "*/*",
        "application/json",
        "application/*",
        "APPLICATION/JSON",
        "application/json;charset=UTF-8",
        "text/html, image/gif, image/jpeg, */*; q=0.2",
        "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
        "text/plain, application/json;q=0.1",
    ],
)
def test_clients_that_can_read_json_get_it(accept):
    """No `Accept`, `*/*`, `application/json` and `application/*` are fine, alone or among others. (R12)"""
    headers = {} if accept is None else {"accept": accept}
    check(Request(method="GET", path="/x", headers=headers), a_route(method="GET"))


@pytest.mark.parametrize(
    "accept", ["text/html", "application/xml, text/*", "application/json;q=0", "application/json; q=0.000, */*"]
)
def test_clients_that_cannot_read_json_are_told(accept):
    """An `Accept` that excludes JSON is not acceptable; what names JSON outweighs what names everything. (R12)"""
    with pytest.raises(NotAcceptable):
        check(a_request(method="GET", body=b"", accept=accept), a_route(method="GET"))


def test_some_routes_do_not_look_at_accept():
    """A route may answer whatever is accepted, as streams and the health check do. (L37, R244)"""
    check(a_request(method="GET", body=b"", accept="image/png"), a_route(method="GET", produces=None))


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json;charset=UTF-8",
        "Application/JSON ; charset=latin1",
        "application/merge-patch+json",
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_json_bodies_are_read(method, content_type):
    """Bodies are `application/json` or `application/*+json`, with any charset. (R11)"""
    check(a_request(method=method, content_type=content_type), a_route())


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
def test_other_bodies_are_not_read(content_type):
    """A body of another type, or of none, is unsupported, and the answer says what is supported. (R11)"""
    headers = {} if content_type is None else {"content_type": content_type}
    with pytest.raises(UnsupportedMediaType) as refusal:
        check(a_request(**headers), a_route())

    assert problem_of(refusal.value).status == 415
    assert problem_of(refusal.value).headers["accept"] == "application/json, application/*+json"


def test_a_route_may_read_every_body():
    """A route that reads the raw body takes every content type. (R11)"""
    check(a_request(content_type="text/plain"), a_route(any_body=True))


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_bodies_without_a_meaning_are_passed_over(method):
    """A body of a `GET` or `DELETE` has no meaning, so its type has none either; a missing body needs no type."""
    check(a_request(method=method, content_type="text/plain"), a_route())
    check(a_request(body=b""), a_route())


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/x-json-stream", "application/problem+json"),
        ("text/html", "application/problem+json"),
        ("application/x.problem+json, */*", "application/problem+json"),
        ("application/x.problem+json", "application/x.problem+json"),
    ],
)
def test_problems_are_sent_whatever_is_accepted(accept, content_type):
    """Negotiation never turns an error into something else; only the old media type, asked for alone, is used. (R25)"""
    assert adapted(a_request(accept=accept), problem_of(NotFound("no"))).headers["content-type"] == content_type
