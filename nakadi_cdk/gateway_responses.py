"""What the gateway says by itself, in the words and the form of the broker: clients cannot tell who refused them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson

from nakadi.http.message import PROBLEM_MEDIA_TYPE
from nakadi.http.problem import RETRY_AFTER_SECONDS, plain_problem_members, token_problem
from nakadi.model.outcomes import NotAuthenticated

NOT_AUTHENTICATED = "Full authentication is required to access this resource"

# The gateway puts its own words here, with quotes around them.
SAID = "$context.error.messageString"

# Every kind that there is: what is not listed would be answered in the gateway's own form.
REFUSED: Mapping[str, tuple[HTTPStatus, str]] = {
    "ACCESS_DENIED": (HTTPStatus.FORBIDDEN, SAID),
    "INVALID_API_KEY": (HTTPStatus.FORBIDDEN, SAID),
    "WAF_FILTERED": (HTTPStatus.FORBIDDEN, SAID),
    "BAD_REQUEST_BODY": (HTTPStatus.BAD_REQUEST, SAID),
    "BAD_REQUEST_PARAMETERS": (HTTPStatus.BAD_REQUEST, SAID),
    "DEFAULT_4XX": (HTTPStatus.BAD_REQUEST, SAID),
    # The gateway's name for a path, or a method of it, that it does not know.
    "MISSING_AUTHENTICATION_TOKEN": (HTTPStatus.NOT_FOUND, "There is nothing at this path"),
    "RESOURCE_NOT_FOUND": (HTTPStatus.NOT_FOUND, "There is nothing at this path"),
    "REQUEST_TOO_LARGE": (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is larger than the gateway takes in"),
    "UNSUPPORTED_MEDIA_TYPE": (
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "The body is not packed with gzip or deflate, as its Content-Encoding would have to say",
    ),
    "QUOTA_EXCEEDED": (HTTPStatus.TOO_MANY_REQUESTS, SAID),
    "THROTTLED": (HTTPStatus.TOO_MANY_REQUESTS, "Too many requests at once"),
    "AUTHORIZER_CONFIGURATION_ERROR": (HTTPStatus.SERVICE_UNAVAILABLE, "Tokens cannot be checked at the moment"),
    "AUTHORIZER_FAILURE": (HTTPStatus.SERVICE_UNAVAILABLE, "Tokens cannot be checked at the moment"),
    "INTEGRATION_FAILURE": (HTTPStatus.SERVICE_UNAVAILABLE, "The broker did not answer"),
    "INTEGRATION_TIMEOUT": (HTTPStatus.GATEWAY_TIMEOUT, "The broker did not answer in time"),
    "API_CONFIGURATION_ERROR": (HTTPStatus.INTERNAL_SERVER_ERROR, SAID),
    "DEFAULT_5XX": (HTTPStatus.INTERNAL_SERVER_ERROR, SAID),
}

# Signatures are of no use here: there are only bearer tokens.
NOT_A_TOKEN = ("UNAUTHORIZED", "EXPIRED_TOKEN", "INVALID_SIGNATURE")

ASLEEP = "Streams are asleep. What is published is kept, and can be read when this stage is deployed awake again."
AWAKE_AFTER = "600"

NOT_HERE = "Only events and commits are served at this host: everything else is at the address of the API"

WORTH_ANOTHER_TRY = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}

# A mock is chosen by a template for what the request says of its body, even where there is none.
SAID_OF_BODIES = (
    "application/json",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
    "application/problem+json",
    "text/html",
    "text/plain",
)


def gateway_responses() -> Mapping[str, Any]:
    """For `x-amazon-apigateway-gateway-responses`."""
    return {**dict(_token_responses()), **{kind: _problem(*answer) for kind, answer in REFUSED.items()}}


def asleep() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """An integration that answers streams while nothing serves them, and the responses that it has."""
    status = HTTPStatus.SERVICE_UNAVAILABLE
    headers = {"content-type": PROBLEM_MEDIA_TYPE, "retry-after": AWAKE_AFTER}
    body = orjson.dumps(plain_problem_members(status, ASLEEP)).decode()
    integration = {
        "type": "mock",
        # Bodies are binary in this API, and a mock understands texts only.
        "contentHandling": "CONVERT_TO_TEXT",
        "passthroughBehavior": "never",
        "requestTemplates": dict.fromkeys(SAID_OF_BODIES, orjson.dumps({"statusCode": status.value}).decode()),
        "responses": {
            "default": {
                "statusCode": str(status.value),
                "responseParameters": {
                    f"method.response.header.{name}": f"'{value}'" for name, value in headers.items()
                },
                "responseTemplates": {"application/json": body},
            }
        },
    }
    described = {name: {"schema": {"type": "string"}} for name in headers}
    return integration, {str(status.value): {"description": "Asleep", "headers": described}}


def elsewhere() -> tuple[int, str, str]:
    """What a load balancer answers that serves some paths only: status, media type and body."""
    status = HTTPStatus.NOT_FOUND
    return status.value, "application/json", orjson.dumps(plain_problem_members(status, NOT_HERE)).decode()


def _token_responses() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The token layer's: plain JSON, of a type of its own."""
    answer = token_problem(NotAuthenticated(NOT_AUTHENTICATED))
    for kind in NOT_A_TOKEN:
        yield kind, _response(answer.status, answer.body.decode(), answer.headers)


def _problem(status: HTTPStatus, detail: str) -> Mapping[str, Any]:
    body = orjson.dumps(plain_problem_members(status, detail)).decode().replace(f'"{SAID}"', SAID)
    retry = {"retry-after": RETRY_AFTER_SECONDS} if status in WORTH_ANOTHER_TRY else {}
    return _response(status.value, body, {"content-type": PROBLEM_MEDIA_TYPE, **retry})


def _response(status: int, body: str, headers: Mapping[str, str]) -> Mapping[str, Any]:
    parameters = {f"gatewayresponse.header.{name}": f"'{value}'" for name, value in headers.items()}
    return {
        "statusCode": str(status),
        "responseParameters": {
            **parameters,
            # The one that the access log has: a client may have sent none of its own.
            "gatewayresponse.header.x-flow-id": "context.requestId",
        },
        "responseTemplates": {"application/json": body},
    }
