"""Media types."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from nakadi.http.application import Application
from nakadi.http.message import Request, Response, StreamingResponse, empty_response, json_response
from nakadi.http.negotiation import json_media_type_for, with_preferred_problem_media_type
from nakadi.http.problem import problem_of_error
from nakadi.http.router import Route
from nakadi.model.outcomes import NotFound
from tests.support.everything import choose_by_suite
from tests.support.patience import measure_cpu


def a_route(**changes):
    return Route(
        **{"method": "POST", "template": "/x", "handler": lambda _: empty_response(), "operation": "x"} | changes
    )


def a_request(method="POST", body=b"{}", **headers):
    return Request(
        method=method, path="/x", target="/x", body=body, headers={n.replace("_", "-"): v for n, v in headers.items()}
    )


SUCCESS = json_response({"a": 1}, 201, {"location": "/x/1"})


def route_answer(request, **route):
    """The answer of an application with only this route, without the headers that every answer has."""
    answer = Application([a_route(method=request.method, **route)]).answer(request)
    return replace(answer, headers={n: v for n, v in answer.headers.items() if n not in ("x-flow-id", "span_ctx")})


def negotiate(accept, answer=SUCCESS, **route):
    headers = {} if accept is None else {"accept": accept}
    request = Request(method="GET", path="/x", target="/x", headers=headers)
    return route_answer(request, handler=lambda _: answer, **route)


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "",
        "*/*",
        "*",
        "application/json",
        "application/*",
        "application/*+json",
        "APPLICATION/JSON",
        "application/json;",
        "application/json,",
        "application/json;q=0.5",
        "*/*;charset=iso-8859-1",
        "text/html, image/gif, image/jpeg, */*; q=0.2",
        "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
        "text/plain, application/json;q=0.1",
        "application/x-json-stream, application/json",
        "application/vnd.a+json;q=0.3, application/json;q=0.9",
        "application/vnd.a+json;q=0, */*",
        "application/json, application/problem+json",
        'text/plain;x="a,application/xml", application/json',
    ],
)
def test_clients_that_can_read_json_get_it(accept):
    """Without `Accept`, or if it includes JSON, an answer is unchanged JSON. (R12, R13)"""
    assert negotiate(accept) == SUCCESS


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/problem+json", "application/problem+json"),
        ("application/x.problem+json", "application/x.problem+json"),
        ("application/vnd.x+JSON", "application/vnd.x+json"),
        ("application/x-json-stream, application/problem+json", "application/problem+json"),
        ("application/problem+json, application/json", "application/problem+json"),
        ("application/problem+json;q=0.5, application/vnd.x+json", "application/vnd.x+json"),
        ("application/json;charset=utf-8", "application/json;charset=utf-8"),
        ("application/json; charset=UTF-8", "application/json;charset=UTF-8"),
        ('application/json;charset="utf-8"', 'application/json;charset="utf-8"'),
        ("application/x+json;v=1", "application/x+json;v=1"),
        ("application/json;q=0.9;v=1", "application/json;v=1"),
        ('application/json;v="a,b;c";w', 'application/json;v="a,b;c"'),
    ],
)
def test_json_comes_under_the_name_that_is_asked_for(accept, content_type):
    """A client that asks for `application/*+json` gets JSON under that name, and the name's parameters are returned.
    (R12)"""
    answer = negotiate(accept)
    assert answer.headers == {"content-type": content_type, "location": "/x/1"}
    assert (answer.status, answer.body) == (SUCCESS.status, SUCCESS.body)


@pytest.mark.parametrize(
    "accept",
    [
        "text/html",
        "text/plain",
        "text/event-stream",
        "application/x-json-stream",
        "application/xml, text/*",
        "application/json;q=0",
        "application/json; q=0.000, */*",
        "application/*;q=0, */*",
        "application/json;charset=iso-8859-1",
        "application/json;q=2",
        "application/json;q=x",
        'application/json;v="unterminated',
        "application/jsonx",
        "application/+json/x",
        "*/json",
        "garbage",
        "a/b/c",
        ",;,",
    ],
)
def test_success_that_the_client_cannot_read_is_not_acceptable(accept):
    """A success with a body is answered with 406 if `Accept` excludes JSON; a range that names JSON outweighs `*/*`.
    (R12)"""
    assert negotiate(accept).status == 406


async def serve_nothing(_outlet):
    """A stream that ends at once."""


@pytest.mark.parametrize(
    "answer",
    [
        empty_response(201, {"warning": "299"}),
        empty_response(204),
        StreamingResponse(serve_nothing, {"content-type": "application/x-json-stream"}),
        Response(200, {"content-type": "text/plain"}, b"OK"),
        json_response([{"publishing_status": "failed"}], 422),
        problem_of_error(NotFound("no")),
    ],
)
@pytest.mark.parametrize("accept", ["text/html", "application/problem+json", "garbage"])
def test_other_answers_do_not_depend_on_accept(answer, accept):
    """Answers without a body, streams, and failures are sent unchanged. (R12, R25, L37, R244)"""
    assert negotiate(accept, answer) == answer


def test_some_routes_answer_whatever_is_accepted():
    """A route may send its JSON even to clients that do not accept it, as publishing does with 207. (P1)"""
    assert negotiate("text/html", ignores_accept_header=True) == SUCCESS


PIECES = [
    "application/json",
    "application/",
    "+json",
    "*/*",
    "*",
    "a",
    "é",
    ";",
    ",",
    "=",
    "q=",
    "0",
    ".5",
    '"',
    "\\",
    " ",
    "\0",
    "\u017f",
]


@settings(max_examples=choose_by_suite(100, 300))
@given(some.lists(some.sampled_from(PIECES), max_size=12).map("".join))
def test_no_accept_header_does_harm(accept):
    """For any `Accept`, there is a refusal or an answer whose content type is one line of ASCII. (R12)"""
    answer = negotiate(accept)
    content_type = answer.headers["content-type"]
    assert answer.status == 406 or (content_type.isascii() and content_type.isprintable())


@pytest.mark.parametrize("header", ['"' * 60_000, '"\\' * 30_000, "a/b;" * 15_000, "a/b," * 15_000, 'x="' * 20_000])
def test_long_accept_headers_are_read_in_one_pass(header):
    """The cost of a header, up to the maximum length of a head, is proportional to its length. (R12)"""
    part, whole = (
        measure_cpu(lambda text=text: json_media_type_for(text)) for text in (header[: len(header) // 32], header)
    )
    assert whole < 32 * 6 * part + 100  # with a search for each quotation: 1024 times as much


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
    """Bodies may be `application/json` or `application/*+json`, with any charset. (R11)"""
    assert route_answer(a_request(method=method, content_type=content_type)).status == 200


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
def test_other_bodies_are_not_read(content_type):
    """A body of another type, or without a type, is unsupported, and the answer names the supported types. (R11)"""
    headers = {} if content_type is None else {"content_type": content_type}
    refusal = route_answer(a_request(**headers))

    assert refusal.status == 415
    assert refusal.headers["accept"] == "application/json, application/*+json"


def test_a_route_may_read_every_body():
    """A route that reads the raw body accepts every content type. (R11)"""
    assert route_answer(a_request(content_type="text/plain"), accepts_any_content_type=True).status == 200


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_bodies_without_a_meaning_are_passed_over(method):
    """The body of a `GET` or `DELETE` has no meaning, so its type does not matter; a missing body needs no type."""
    assert route_answer(a_request(method=method, content_type="text/plain")).status == 200
    assert route_answer(a_request(body=b"")).status == 200


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/x-json-stream", "application/problem+json"),
        ("text/html", "application/problem+json"),
        ("garbage", "application/problem+json"),
        ("application/json, application/x.problem+json", "application/problem+json"),
        ("application/x.problem+json;q=0.5, application/problem+json", "application/problem+json"),
        ("application/x.problem+json, */*", "application/x.problem+json"),
        ("application/x.problem+json;charset=utf-8", "application/x.problem+json"),
        ("application/x.problem+json", "application/x.problem+json"),
    ],
)
def test_problems_are_sent_whatever_is_accepted(accept, content_type):
    """An error is answered with a Problem whatever `Accept` contains; a client that prefers the Problem's old media
    type gets that type. (R25)
    """
    assert (
        with_preferred_problem_media_type(a_request(accept=accept), problem_of_error(NotFound("no"))).headers[
            "content-type"
        ]
        == content_type
    )
