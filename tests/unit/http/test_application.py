"""The steps of every request and their order."""

import gzip
import json
import logging

import pytest

from nakadi.http.application import Application
from nakadi.http.message import Request, Response, StreamingResponse, json_response
from nakadi.http.router import Route
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import Conflict, NotAuthenticated, NotFound, NotPermitted, TooLarge
from tests.support.logs import records_of_this_thread

ANN = Subject(name="ann")


def raising_handler(error):
    def handler(_request):
        raise error

    return handler


async def serve_nothing(_outlet):
    pass


ROUTES = [
    Route(method="GET", template="/things", handler=lambda _: json_response({"things": []}), operation="list"),
    Route(
        method="POST", template="/things", handler=lambda r: json_response({"body": r.body.decode()}), operation="add"
    ),
    Route(method="GET", template="/things/{name}", handler=lambda r: json_response(r.path_parameters), operation="get"),
    Route(method="GET", template="/me", handler=lambda r: json_response({"me": r.subject.name}), operation="me"),
    Route(method="GET", template="/flow", handler=lambda r: json_response({"flow": r.flow_id}), operation="flow"),
    Route(method="GET", template="/conflict", handler=raising_handler(Conflict("Taken.")), operation="conflict"),
    Route(method="GET", template="/bug", handler=raising_handler(RuntimeError("secret")), operation="bug"),
    Route(
        method="GET",
        template="/stream",
        handler=lambda _: StreamingResponse(serve_nothing, {"content-type": "application/x-json-stream"}),
        operation="stream",
    ),
]


def authenticate(request):
    match request.headers.get("authorization"):
        case "Bearer bad":
            raise NotAuthenticated("Not a token")
        case "Bearer weak":
            raise NotPermitted("Insufficient scope for this resource")
        case _:
            return ANN


APPLICATION = Application(ROUTES, authenticate)


def ask(method, target, body=b"", application=APPLICATION, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    path = target.partition("?")[0]
    return application.answer(Request(method=method, path=path, target=target, headers=named, body=body))


def problem(answer):
    assert answer.headers["content-type"] == "application/problem+json"
    found = json.loads(answer.body)
    assert found["status"] == answer.status
    return found


def test_a_good_request_is_answered():
    """A successful answer is JSON. (R13)"""
    answer = ask("GET", "/things/a.b?unknown=parameter")

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body) == {"name": "a.b"}


def test_unknown_parameters_are_passed_over():
    """Unknown query parameters are ignored. (R15)"""
    assert ask("GET", "/things?nonsense=1&x").body == ask("GET", "/things").body


@pytest.mark.parametrize(
    ("method", "target", "headers", "status"),
    [
        ("GET", "//nothing", {"authorization": "Bearer bad", "content_encoding": "br"}, 400),
        ("GET", "/nothing", {"authorization": "Bearer bad", "content_encoding": "br"}, 401),
        ("GET", "/nothing", {"authorization": "Bearer weak", "content_encoding": "br"}, 403),
        ("GET", "/nothing", {"content_encoding": "br"}, 406),
        ("POST", "/nothing", {"content_encoding": "gzip", "accept": "text/html"}, 404),
        ("GET", "/nothing", {"accept": "text/html"}, 404),
        ("PATCH", "/things", {"accept": "text/html"}, 405),
        ("POST", "/things", {"content_encoding": "gzip", "accept": "text/html"}, 400),
        ("POST", "/things", {"accept": "text/html"}, 415),
    ],
)
def test_the_outer_checks_have_an_order(method, target, headers, status):
    """URL, token, route, and the body's encoding and media type: the first check that fails is reported. (R48, P14,
    P47)"""
    assert ask(method, target, b"not json", **headers).status == status


@pytest.mark.parametrize("header", ["no-such-token", "Bearer bad", "Bearer weak"])
def test_a_suspicious_url_is_refused_for_all_clients(header):
    """A suspicious URL is refused before authentication. (R31, R48)"""
    answer = ask("GET", "/event-types//events", authorization=header)

    assert problem(answer)["title"] == "Bad Request"


@pytest.mark.parametrize(
    "target",
    [
        "//things",
        "/things//a",
        "/things/a;b=c",
        "/things/a%2Fb",
        "/things/a%2fb",
        "/things/%3Ba",
        "/things\\a",
        "/things/%5ca",
        "/things/../me",
        "/things/./me",
        "/things/..",
        "/things/%2e%2e/me",
        "/things/a%00",
        "/things/a%0d%0aX:y",
        "/things/%252e",
        "/things/%",
        "/things/%zz",
        "/things/%4",
        "/things/%ff",
        "/things/%c3%28",
        "/things?x=%ff",
        "/things?x=%zz",
        "/things?x=\xfc",
        "/th\xfcngs",
    ],
)
def test_urls_that_two_readers_could_read_differently_are_refused(target):
    """Double and encoded slashes, semicolons, dot segments, control characters, and broken escapes are refused.
    (R31)"""
    assert problem(ask("GET", target))["status"] == 400


@pytest.mark.parametrize("target", ["/things/a..b", "/things/a.b", "/things?x=//&y=;&z=%2F%25", "/things/%C3%BC"])
def test_normal_urls_are_not(target):
    """Unusual characters are allowed: dots within names, and any escapes in a query. (R28)"""
    assert ask("GET", target).status == 200


def test_an_unknown_path_is_a_problem():
    """An unknown path is answered with 404 and a Problem. (R30)"""
    assert problem(ask("GET", "/nothing/here"))["title"] == "Not Found"


def test_another_method_is_a_problem_with_the_allowed_ones():
    """An unsupported method of an existing path is answered with 405 and `Allow`. (R26, P11)"""
    answer = ask("DELETE", "/things")

    assert problem(answer)["detail"] == "Request method 'DELETE' not supported"
    assert answer.headers["allow"] == "GET, POST, HEAD, OPTIONS"


@pytest.mark.parametrize(
    ("target", "allowed"), [("/things", "GET, POST, HEAD, OPTIONS"), ("/me/", "GET, HEAD, OPTIONS")]
)
def test_options_reports_the_methods(target, allowed):
    """`OPTIONS` is answered with 200 and `Allow`, and with 404 for an unknown path. (R27)"""
    answer = ask("OPTIONS", target)

    assert (answer.status, answer.headers["allow"], answer.body) == (200, allowed, b"")
    assert ask("OPTIONS", "/nothing").status == 404


def test_head_is_get_without_the_body():
    """`HEAD` is answered like `GET`, including the length, but without a body. (R27)"""
    head, get = ask("HEAD", "/things"), ask("GET", "/things")

    assert head.status == 200
    assert head.body == b""
    assert head.headers["content-length"] == str(len(get.body))
    assert head.headers["content-type"] == get.headers["content-type"]


def test_head_of_a_stream_opens_none():
    """`HEAD` of a stream has the stream's headers, and nothing is streamed. (R27)"""
    answer = ask("HEAD", "/stream")

    assert isinstance(answer, Response)
    assert answer.headers["content-type"] == "application/x-json-stream"
    assert isinstance(ask("GET", "/stream"), StreamingResponse)


@pytest.mark.parametrize("target", ["/things", "/things/", "/things/?limit=20"])
def test_a_trailing_slash_is_answered_not_redirected(target):
    """A path with a slash at its end is the same as the path without it. (R29)"""
    assert ask("GET", target).status == 200


@pytest.mark.parametrize("target", ["/things", "/nothing", "//", "/bug", "/conflict", "/stream"])
def test_every_answer_has_the_flow_id_of_its_request(target):
    """Every response carries the request's flow id unchanged, including errors and streams. (R38)"""
    assert ask("GET", target, x_flow_id="ticket 4711/ä").headers["x-flow-id"] == "ticket 4711/ä"
    assert ask("GET", target, authorization="Bearer bad", x_flow_id="f").headers["x-flow-id"] == "f"


def test_a_flow_id_is_made_up_where_there_is_none():
    """If the request has no flow id, one of 24 letters and digits is generated, and the handler sees the same one.
    (R38, R39)"""
    first, second = ask("GET", "/flow"), ask("GET", "/flow", x_flow_id="")

    assert len(first.headers["x-flow-id"]) == 24
    assert first.headers["x-flow-id"].isalnum()
    assert first.headers["x-flow-id"] != second.headers["x-flow-id"]
    assert json.loads(first.body) == {"flow": first.headers["x-flow-id"]}


def test_a_path_in_the_log_is_cut(caplog):
    """A long path is cut in the log, so a client cannot make log lines arbitrarily long."""
    with caplog.at_level(logging.INFO, "nakadi.access"):
        ask("GET", "/things/" + "x" * 5_000)

    [record] = records_of_this_thread(caplog)
    assert len(record.getMessage()) < 1_150


def test_a_body_is_as_long_as_its_route_reads():
    """A body that is longer than its route reads, as sent or decompressed, is answered with 413."""
    small = Route(
        method="POST",
        template="/x",
        handler=lambda _: json_response({}),
        operation="x",
        accepts_any_content_type=True,
        max_body_bytes=99,
    )
    application = Application([small], authenticate)

    assert ask("POST", "/x", b"x" * 99, application=application).status == 200
    assert ask("POST", "/x", b"x" * 100, application=application).status == 413
    packed = ask("POST", "/x", gzip.compress(b"x" * 100), application=application, content_encoding="gzip")
    assert problem(packed)["detail"] == "The body decompresses to more than 99 bytes"


def test_a_body_has_as_many_values_as_its_route_reads():
    """A body whose values would take more memory than the route allows is not parsed; a string is one value."""
    small = Route(
        method="POST",
        template="/x",
        handler=lambda _: json_response({}),
        operation="x",
        accepts_any_content_type=True,
        max_parsed_bytes=900,
    )
    application = Application([small], authenticate)

    assert ask("POST", "/x", b'["[[[[[[[[[[{{{{{{,,,,,,,"]', application=application).status == 200
    assert ask("POST", "/x", b"[[[[[[[[[[]]]]]]]]]]", application=application).status == 200
    assert problem(ask("POST", "/x", b"[[[[[[[[[[[]]]]]]]]]]]", application=application))["status"] == 413


def test_streams_and_answers_without_a_body_have_a_span_context():
    """Streams and answers without a body carry `span_ctx`, which is empty without a tracer; answers with JSON do not.
    (R40)"""
    assert ask("GET", "/stream").headers["span_ctx"] == "{}"
    assert ask("OPTIONS", "/things").headers["span_ctx"] == "{}"
    for method, target in (("GET", "/things"), ("HEAD", "/things"), ("GET", "/conflict")):
        assert "span_ctx" not in ask(method, target).headers


def test_accept_is_looked_at_once_the_work_is_done():
    """A success that the client cannot read is answered with 406, although the request has been carried out. (R12,
    R48)"""
    done = []
    route = Route(method="POST", template="/things", handler=lambda _: json_response(done.append(1)), operation="add")
    application = Application([route], authenticate)

    answer = ask("POST", "/things", application=application, accept="text/html")

    assert problem(answer)["detail"] == "Could not find acceptable representation"
    assert (answer.status, done) == (406, [1])


@pytest.mark.parametrize("accept", ["text/html", "application/problem+json", "application/x-json-stream", "garbage"])
def test_errors_are_problems_whatever_is_accepted(accept):
    """No value of `Accept` changes the status of an error. (R12, R25)"""
    assert problem(ask("GET", "/conflict", accept=accept))["detail"] == "Taken."
    assert problem(ask("GET", "/nothing", accept=accept))["title"] == "Not Found"


def test_packed_bodies_reach_the_handler_unpacked():
    """The body of every POST may be compressed. (R33)"""
    answer = ask("POST", "/things", gzip.compress(b'"x"'), content_type="application/json", content_encoding="gzip")

    assert json.loads(answer.body) == {"body": '"x"'}


@pytest.mark.parametrize(
    ("method", "headers", "status", "detail"),
    [
        ("GET", {"content_encoding": "gzip"}, 406, "GET method doesn't support gzip content encoding"),
        ("PUT", {"content_encoding": "identity"}, 406, "PUT method doesn't support gzip content encoding"),
        ("POST", {"content_encoding": "gzip"}, 400, "Not in GZIP format"),
    ],
)
def test_encoding_errors_are_problems(method, headers, status, detail):
    """Errors of the content encoding have the content type of a Problem, like all others. (P46, R34, R35)"""
    answer = ask(method, "/things", b"plain", **headers)

    assert (answer.status, problem(answer)["detail"]) == (status, detail)


def test_the_handler_knows_who_asks():
    """The handler gets the subject that authentication has found."""
    assert json.loads(ask("GET", "/me", authorization="Bearer good").body) == {"me": "ann"}


@pytest.mark.parametrize(("token", "status"), [("Bearer bad", 401), ("Bearer weak", 403)])
def test_the_token_layer_answers_plain_json(token, status):
    """Errors of the token layer are plain JSON, not Problems. (R23)"""
    answer = ask("GET", "/things", authorization=token)

    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")


def test_a_bug_is_kept_apart_and_logged_with_its_flow_id(caplog):
    """An internal error is answered with 500 and a ticket; the log has the ticket and the traceback, and the client
    learns nothing else. (R24)"""
    answer = ask("GET", "/bug?token=abc", x_flow_id="f-1")

    ticket = problem(answer)["detail"].partition("(")[2].rstrip(")")
    assert b"secret" not in answer.body
    assert ticket in caplog.text
    assert "RuntimeError: secret" in caplog.text
    assert "token=abc" not in caplog.text


def test_an_outcome_is_not_logged(caplog):
    """An expected failure is an answer like any other: it is not logged."""
    assert problem(ask("GET", "/conflict"))["detail"] == "Taken."
    assert records_of_this_thread(caplog) == []


def test_an_old_media_type_is_honoured():
    """A client that prefers `application/x.problem+json` gets its Problems under that name. (R25)"""
    answer = ask("GET", "/conflict", accept="application/x.problem+json")

    assert answer.status == 409
    assert answer.headers["content-type"] == "application/x.problem+json"


def test_requests_are_logged_on_demand(caplog):
    """With the access log on, a request leaves a line with its method, path, status and time, but never its query."""
    with caplog.at_level(logging.INFO, logger="nakadi.access"):
        ask("GET", "/things/a?secret=1", authorization="Bearer hush")

    (record,) = records_of_this_thread(caplog)
    assert record.getMessage().startswith("GET /things/a 200 ")
    assert "secret" not in caplog.text
    assert "hush" not in caplog.text


def test_an_edge_can_refuse():
    """A request that an edge could not read is answered like all others, with a flow id. (R38)"""
    request = Request(method="POST", path="/things", target="/things", headers={"x-flow-id": "f"})

    answer = APPLICATION.refuse(request, TooLarge("The body is longer than 10 bytes"))

    assert problem(answer)["status"] == 413
    assert answer.headers["x-flow-id"] == "f"


def test_nothing_raises():
    """Whatever authentication or a handler raises, there is an answer."""

    def odd_handler(_request):
        raise NotFound("odd, and still an answer")

    assert ask("GET", "/things", application=Application(ROUTES, odd_handler)).status == 404
