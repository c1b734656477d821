"""The gateway's own error responses in the broker's format, so clients need not know which of the two refused them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson

from nakadi.http.message import PROBLEM_MEDIA_TYPE
from nakadi.http.problem import RETRY_AFTER_SECONDS, plain_problem_members, token_problem
from nakadi.model.outcomes import NotAuthenticated

NOT_AUTHENTICATED_DETAIL = "Full authentication is required to access this resource"

# The gateway replaces this variable by its own message in quotes.
GATEWAY_MESSAGE = "$context.error.messageString"

# Every response type of API Gateway: for a missing one it would use its own format.
REFUSALS: Mapping[str, tuple[HTTPStatus, str]] = {
    "ACCESS_DENIED": (HTTPStatus.FORBIDDEN, GATEWAY_MESSAGE),
    "INVALID_API_KEY": (HTTPStatus.FORBIDDEN, GATEWAY_MESSAGE),
    "WAF_FILTERED": (HTTPStatus.FORBIDDEN, GATEWAY_MESSAGE),
    "BAD_REQUEST_BODY": (HTTPStatus.BAD_REQUEST, GATEWAY_MESSAGE),
    "BAD_REQUEST_PARAMETERS": (HTTPStatus.BAD_REQUEST, GATEWAY_MESSAGE),
    "DEFAULT_4XX": (HTTPStatus.BAD_REQUEST, GATEWAY_MESSAGE),
    # The gateway uses this type for unknown paths and methods.
    "MISSING_AUTHENTICATION_TOKEN": (HTTPStatus.NOT_FOUND, "There is nothing at this path"),
    "RESOURCE_NOT_FOUND": (HTTPStatus.NOT_FOUND, "There is nothing at this path"),
    "REQUEST_TOO_LARGE": (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is larger than the gateway accepts"),
    "UNSUPPORTED_MEDIA_TYPE": (
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "The body has a Content-Encoding other than gzip and deflate",
    ),
    "QUOTA_EXCEEDED": (HTTPStatus.TOO_MANY_REQUESTS, GATEWAY_MESSAGE),
    "THROTTLED": (HTTPStatus.TOO_MANY_REQUESTS, "Too many requests at once"),
    "AUTHORIZER_CONFIGURATION_ERROR": (HTTPStatus.SERVICE_UNAVAILABLE, "Tokens cannot be checked at the moment"),
    "AUTHORIZER_FAILURE": (HTTPStatus.SERVICE_UNAVAILABLE, "Tokens cannot be checked at the moment"),
    "INTEGRATION_FAILURE": (HTTPStatus.SERVICE_UNAVAILABLE, "The broker did not answer"),
    "INTEGRATION_TIMEOUT": (HTTPStatus.GATEWAY_TIMEOUT, "The broker did not answer in time"),
    "API_CONFIGURATION_ERROR": (HTTPStatus.INTERNAL_SERVER_ERROR, GATEWAY_MESSAGE),
    "DEFAULT_5XX": (HTTPStatus.INTERNAL_SERVER_ERROR, GATEWAY_MESSAGE),
}

# The API accepts bearer tokens only, so a signature is no valid token either.
TOKEN_ERRORS = ("UNAUTHORIZED", "EXPIRED_TOKEN", "INVALID_SIGNATURE")

ASLEEP_DETAIL = "Streams are asleep. The broker keeps published events for streams after a deployment without `asleep`."
ASLEEP_RETRY_AFTER = "600"

RETRYABLE_STATUSES = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}

# API Gateway selects a mock's template by the request's content type, even without a body.
BODY_MEDIA_TYPES = (
    "application/json",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
    "application/problem+json",
    "text/html",
    "text/plain",
)


def gateway_responses() -> Mapping[str, Any]:
    """The value of `x-amazon-apigateway-gateway-responses`."""
    return {**dict(_token_responses()), **{kind: _problem(*answer) for kind, answer in REFUSALS.items()}}


def asleep_integration() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The integration that answers stream requests while a stage is asleep, and its declared responses."""
    status = HTTPStatus.SERVICE_UNAVAILABLE
    headers = {"content-type": PROBLEM_MEDIA_TYPE, "retry-after": ASLEEP_RETRY_AFTER}
    body = orjson.dumps(plain_problem_members(status, ASLEEP_DETAIL)).decode()
    integration = {
        "type": "mock",
        # Bodies are binary in this API, but a mock understands text only.
        "contentHandling": "CONVERT_TO_TEXT",
        "passthroughBehavior": "never",
        "requestTemplates": dict.fromkeys(BODY_MEDIA_TYPES, orjson.dumps({"statusCode": status.value}).decode()),
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


def _token_responses() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Responses to invalid tokens: plain JSON with its own content type."""
    answer = token_problem(NotAuthenticated(NOT_AUTHENTICATED_DETAIL))
    for kind in TOKEN_ERRORS:
        yield kind, _response(answer.status, answer.body.decode(), answer.headers)


def _problem(status: HTTPStatus, detail: str) -> Mapping[str, Any]:
    body = orjson.dumps(plain_problem_members(status, detail)).decode().replace(f'"{GATEWAY_MESSAGE}"', GATEWAY_MESSAGE)
    retry = {"retry-after": RETRY_AFTER_SECONDS} if status in RETRYABLE_STATUSES else {}
    return _response(status.value, body, {"content-type": PROBLEM_MEDIA_TYPE, **retry})


def _response(status: int, body: str, headers: Mapping[str, str]) -> Mapping[str, Any]:
    parameters = {f"gatewayresponse.header.{name}": f"'{value}'" for name, value in headers.items()}
    return {
        "statusCode": str(status),
        "responseParameters": {
            **parameters,
            # The access log has the same id; the client may not have sent one.
            "gatewayresponse.header.x-flow-id": "context.requestId",
        },
        "responseTemplates": {"application/json": body},
    }
