"""The edge to API Gateway: a REST API's proxy event becomes our Request, our Response its proxy response.

The API takes every body for binary: bodies come as they were sent, in base64, and so do those that are packed in ways
that the gateway does not know. It packs no answers then, so they are packed here for those who want it. The gateway
turns base64 into bytes only for a request with an `Accept` header, so an answer to one without is never packed.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from nakadi.http import negotiation
from nakadi.http.application import Application
from nakadi.http.message import Request, Response, StreamingResponse, headers_of
from nakadi.http.problem import NotAcceptable
from nakadi.model.authorization import UNAUTHENTICATED, Attribute, Subject
from nakadi.model.outcomes import FeatureSwitchedOff, NotAuthenticated

if TYPE_CHECKING:
    from nakadi.auth.tokens import Tokens

log = logging.getLogger(__name__)

# What Lambda hands on of an answer, written as JSON; one below the other figure cannot grow so large.
MAX_ANSWER_BYTES = 6_291_556
MIN_BYTES_TO_MEASURE = 1_000_000
ANSWER_TOO_LARGE_MESSAGE = (
    "The answer would have {size} bytes, and {most} can be sent. Ask for it packed, with the headers Accept and "
    "Accept-Encoding: gzip, or for less at once, with limit where it is known"
)


def handle_gateway_event(application: Application, event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Answer an invocation; the two arguments behind the first are those of a Lambda handler."""
    request = request_from_event(event)
    answer = application.answer(request)
    if isinstance(answer, StreamingResponse):
        answer = application.refusal(request, FeatureSwitchedOff("Streams of events are not served by this function"))
    assert isinstance(answer, Response)
    proxied = _proxy_response(_pack_response(request, answer))
    if len(answer.body) > MIN_BYTES_TO_MEASURE and (size := len(json.dumps(proxied))) > MAX_ANSWER_BYTES:
        refusal = application.refusal(
            request, NotAcceptable(ANSWER_TOO_LARGE_MESSAGE.format(size=size, most=MAX_ANSWER_BYTES))
        )
        assert isinstance(refusal, Response)
        return _proxy_response(refusal)
    return proxied


def request_from_event(event: Mapping[str, Any]) -> Request:
    """The request as the client sent it. The name of the stage is no part of it, and a missing member is empty."""
    # The gateway escapes paths differently from one kind of endpoint to the other; what is escaped already stays.
    raw_path = quote(event["path"], safe="/%:@!$&'()*+,;=~")
    query = event.get("multiValueQueryStringParameters") or {}
    body = event.get("body") or ""
    return Request(
        method=event["httpMethod"],
        path=unquote(raw_path),
        target=f"{raw_path}?{urlencode(query, doseq=True)}" if query else raw_path,
        query={name: tuple(values) for name, values in query.items()},
        headers=headers_of(_header_pairs(event)),
        body=base64.b64decode(body) if event.get("isBase64Encoded") else body.encode(),
        subject=subject_from_context((event.get("requestContext") or {}).get("authorizer") or {}),
    )


def authorizer_context_from_subject(subject: Subject) -> dict[str, str]:
    """A subject as an authorizer hands it to the integration: texts, for nothing else survives."""
    attributes = sorted((each.data_type, each.value) for each in subject.attributes)
    return {
        "subject": subject.name,
        "attributes": json.dumps(attributes),
        "scopes": " ".join(sorted(subject.scopes)),
        "realm": subject.realm,
    }


def subject_from_context(context: Mapping[str, Any]) -> Subject:
    """The subject that the authorizer found. Without an authorizer it is unauthenticated."""
    if "subject" not in context:
        return UNAUTHENTICATED
    return Subject(
        name=context["subject"],
        attributes=frozenset(Attribute(data_type, value) for data_type, value in json.loads(context["attributes"])),
        scopes=frozenset(context["scopes"].split()),
        realm=context["realm"],
    )


def _header_pairs(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, values in (event.get("multiValueHeaders") or {}).items():
        for value in values:
            yield name, value


def _pack_response(request: Request, answer: Response) -> Response:
    return negotiation.pack_body(request, answer) if request.headers.get("accept") else answer


def _proxy_response(response: Response) -> dict[str, Any]:
    bodiless = response.status in (204, 304)
    text, is_base64 = _text_or_base64(b"" if bodiless else response.body)
    return {
        "statusCode": response.status,
        "multiValueHeaders": {name: [value] for name, value in response.headers.items()},
        "body": text,
        "isBase64Encoded": is_base64,
    }


def _text_or_base64(body: bytes) -> tuple[str, bool]:
    try:
        return body.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), True


# The authorizer: whose token it is, and a policy that may be kept for every request with the same token ---------------


class Unauthorized(Exception):
    """Raised for a token that is not good: API Gateway answers 401 when it reads this very word."""

    def __init__(self) -> None:
        super().__init__("Unauthorized")


def authorizer_decision(tokens: Tokens, event: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return policy_allowing(tokens.subject(event.get("authorizationToken")), event["methodArn"])
    except NotAuthenticated as error:
        # One log line instead of the traceback that Lambda writes for every exception.
        log.info("Refused: %s", error.detail)
        raise Unauthorized from None


def policy_allowing(subject: Subject, method_arn: str) -> dict[str, Any]:
    """The whole API is open to the subject; what it may do is decided behind, where the request is understood."""
    api, stage, *_ = method_arn.split("/")
    statement = {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": f"{api}/{stage}/*"}
    return {
        "principalId": subject.name,
        "policyDocument": {"Version": "2012-10-17", "Statement": [statement]},
        "context": authorizer_context_from_subject(subject),
    }
