"""The edge to API Gateway, tested with recorded invocations."""

import base64
import gzip
import json
from pathlib import Path

import pytest

from nakadi.http.api_gateway import (
    authorizer_context_from_subject,
    handle_gateway_event,
    request_from_event,
    subject_from_context,
)
from nakadi.http.application import Application
from nakadi.http.message import Response, StreamingResponse, json_response
from nakadi.http.router import Route
from nakadi.model.authorization import UNAUTHENTICATED, Attribute, Subject

EVENTS = Path(__file__).parents[3] / "events" / "apigateway"


def load_event(name):
    return json.loads((EVENTS / f"{name}.json").read_text())


async def serve_nothing(_outlet):
    pass


def publish(request):
    return json_response(
        {"events": json.loads(request.body), "to": request.path_parameters["name"], "by": request.subject.name}
    )


APPLICATION = Application(
    [
        Route(method="POST", template="/event-types/{name}/events", handler=publish, operation="publish"),
        Route(
            method="GET",
            template="/event-types/{name}/events",
            handler=lambda _: StreamingResponse(serve_nothing),
            operation="stream",
        ),
        Route(method="GET", template="/event-types", handler=lambda _: json_response([]), operation="list"),
        Route(
            method="GET",
            template="/event-types/{name}",
            handler=lambda r: json_response(r.path_parameters),
            operation="get",
        ),
        Route(method="GET", template="/health", handler=lambda _: Response(200, {}, b"OK"), operation="health"),
        Route(method="GET", template="/long", handler=lambda _: json_response(["a"] * 10_000), operation="long"),
        Route(method="GET", template="/huge", handler=lambda _: json_response(["a"] * 2_000_000), operation="huge"),
        Route(method="DELETE", template="/event-types", handler=lambda _: Response(204, {}, b"x"), operation="none"),
        Route(
            method="POST", template="/event-types", handler=lambda _: Response(200, {}, b"\xff\x00"), operation="bin"
        ),
    ],
    lambda request: request.subject,
)


def invoke(event):
    answer = handle_gateway_event(APPLICATION, event, None)
    assert set(answer) == {"statusCode", "multiValueHeaders", "body", "isBase64Encoded"}
    json.dumps(answer)
    return answer


@pytest.mark.parametrize("path", sorted(EVENTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_recorded_invocation_is_answered(path):
    """Any invocation by the gateway gets an answer in the gateway's format, with a flow id. (R38)"""
    answer = invoke(json.loads(path.read_text()))

    assert answer["multiValueHeaders"]["x-flow-id"]


def test_a_publish_arrives_as_it_was_sent():
    """The body, headers and path of an invocation become the request's, and the authorizer's subject becomes its
    subject."""
    answer = invoke(load_event("publish_batch"))

    body = json.loads(answer["body"])
    assert answer["statusCode"] == 200
    assert answer["multiValueHeaders"]["x-flow-id"] == ["checkout-4711"]
    assert (body["to"], body["by"], body["events"][1]["note"]) == ("shop.order-placed", "ann", "Grüße")


def test_a_packed_body_arrives_unpacked():
    """A body in base64 is decoded, and decompressed like any other. (R33)"""
    answer = invoke(load_event("publish_gzip_batch"))

    assert [event["order"] for event in json.loads(answer["body"])["events"]] == ["4711", "4712"]


def test_queries_keep_every_value():
    """A repeated parameter keeps all its values, including blank ones and unusual characters."""
    request = request_from_event(load_event("list_subscriptions_by_event_types"))

    assert request.query == {
        "event_type": ("shop.order-placed", "shop.order-paid"),
        "limit": ("20",),
        "owning_application": ("büro & co",),
        "offset": ("",),
    }
    assert request.target.startswith("/subscriptions?event_type=shop.order-placed&event_type=shop.order-paid&limit=20&")
    assert request.target.isascii()


def test_headers_in_several_spellings_are_one():
    """Header names may be in any case; headers with the same name are joined."""
    headers = request_from_event(load_event("read_event_type_without_token")).headers

    assert headers["accept"] == "application/json, text/html"
    assert headers["user-agent"] == "curl/8.10.1"


def test_a_trailing_slash_says_nothing_here_either():
    """A path with a slash at its end is the same as the path without it. (R29)"""
    assert invoke(load_event("list_with_trailing_slash"))["statusCode"] == 200


@pytest.mark.parametrize("path", ["/event-types/gr%C3%BC%C3%9Fe", "/event-types/grüße"])
def test_paths_may_be_escaped_or_not(path):
    """A path is understood whether the gateway has already undone its escapes or not."""
    answer = invoke(load_event("escaped_path") | {"path": path})

    assert json.loads(answer["body"]) == {"name": "grüße"}


def test_the_stage_is_no_part_of_the_path():
    """The name of the stage comes separately from the path, and is ignored."""
    event = load_event("publish_batch")
    event["requestContext"]["path"] = "/live/event-types/shop.order-placed/events"

    assert invoke(event)["statusCode"] == 200


def test_a_stream_is_not_opened_here():
    """A request for a stream through a function is answered with 501 and a Problem with the reason."""
    answer = invoke(load_event("open_stream"))

    assert answer["statusCode"] == 501
    assert answer["multiValueHeaders"]["content-type"] == ["application/problem+json"]
    assert json.loads(answer["body"])["detail"] == "Streams of events are not served by this function"


def test_an_invocation_from_the_console_is_answered():
    """An invocation from the AWS console, which has null in place of headers, is answered."""
    assert invoke(load_event("console_test_invocation"))["body"] == "OK"


def test_a_long_answer_is_packed_for_who_wants_it():
    """The gateway treats every body as binary and compresses none, so compressed answers are sent as base64. (R37)"""
    asked = load_event("publish_batch")
    headers = asked["multiValueHeaders"] | {"Accept": ["*/*"]}
    long = asked | {"body": json.dumps([{"n": 1}] * 1000), "multiValueHeaders": headers}
    answer = invoke(long)

    assert answer["multiValueHeaders"]["content-encoding"] == ["gzip"]
    assert answer["isBase64Encoded"] is True
    assert json.loads(gzip.decompress(base64.b64decode(answer["body"])))["events"] == [{"n": 1}] * 1000


def test_an_answer_is_not_packed_for_a_request_without_accept():
    """The answer to a request without `Accept`, such as one from Go's client, is not compressed, because the gateway
    would pass on the text of the base64.
    """
    answer = handle_gateway_event(APPLICATION, asking_for("/long", accept=None, packed=True), None)

    assert not answer["isBase64Encoded"]
    assert "content-encoding" not in answer["multiValueHeaders"]
    assert json.loads(answer["body"])


def test_an_answer_that_lambda_would_refuse_is_a_problem_that_says_what_to_do():
    """An answer of more than six megabytes becomes a Problem that advises the client to accept gzip; compressed, the
    same answer is small enough.
    """
    refused = handle_gateway_event(APPLICATION, asking_for("/huge", accept="*/*", packed=False), None)
    problem = json.loads(refused["body"])
    packed = handle_gateway_event(APPLICATION, asking_for("/huge", accept="*/*", packed=True), None)

    assert (refused["statusCode"], problem["status"]) == (406, 406)
    assert "Accept-Encoding: gzip" in problem["detail"]
    assert packed["statusCode"] == 200
    assert len(gzip.decompress(base64.b64decode(packed["body"]))) > 7_000_000


def asking_for(path, *, accept, packed):
    headers = {"Accept": [accept]} if accept else {}
    if packed:
        headers["Accept-Encoding"] = ["gzip"]
    return {**load_event("console_test_invocation"), "path": path, "httpMethod": "GET", "multiValueHeaders": headers}


def test_a_short_answer_is_text():
    """An answer that compression would hardly shorten stays unchanged. (R37)"""
    answer = invoke(load_event("publish_batch"))

    assert "content-encoding" not in answer["multiValueHeaders"]
    assert answer["isBase64Encoded"] is False


def test_an_answer_that_is_no_text_travels_as_base64():
    """Bytes that are not text are sent as base64, and marked as such."""
    answer = invoke(load_event("list_with_trailing_slash") | {"httpMethod": "POST"})

    assert answer["isBase64Encoded"] is True
    assert base64.b64decode(answer["body"]) == b"\xff\x00"


def test_no_content_is_no_content():
    """A 204 answer has no body."""
    assert invoke(load_event("list_with_trailing_slash") | {"httpMethod": "DELETE"})["body"] == ""


def test_a_subject_survives_the_way_from_the_authorizer():
    """The members of the authorizer's result are sent as strings, and arrive unchanged."""
    subject = Subject(
        name="ann",
        attributes=frozenset({Attribute("team", "a,b c"), Attribute("user", "ann")}),
        scopes=frozenset({"uid", "nakadi.config.write"}),
        realm="/employees",
    )

    assert all(isinstance(value, str) for value in authorizer_context_from_subject(subject).values())
    assert subject_from_context(authorizer_context_from_subject(subject)) == subject
    assert subject_from_context({"principalId": "x"}) == UNAUTHENTICATED
