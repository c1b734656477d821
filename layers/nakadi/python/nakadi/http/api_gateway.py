"""The edge to API Gateway: turns a proxy event of a REST API into a `Request`, and a `Response` into a proxy response.

API Gateway treats every body as binary, so bodies arrive in base64, exactly as clients sent them, even in encodings
that the gateway does not know. The gateway then does not compress answers, so this edge compresses them for clients
that accept that. The gateway decodes base64 only for a request with an `Accept` header; so answers to requests without
this header are never compressed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode

from nakadi.http import compression
from nakadi.http.application import Application
from nakadi.http.message import Request, Response, StreamingResponse, joined_headers
from nakadi.http.problem import NotAcceptable
from nakadi.model.authorization import UNAUTHENTICATED, Attribute, Subject
from nakadi.model.outcomes import FeatureSwitchedOff

MAX_ANSWER_BYTES = 6_291_556
"""The longest proxy response, as JSON, that Lambda delivers."""

MIN_BYTES_TO_MEASURE_ANSWER = 1_000_000
"""Only the JSON of longer bodies is measured, because a shorter body cannot grow to `MAX_ANSWER_BYTES`."""

ANSWER_TOO_LARGE_MESSAGE = (
    "The response would have {size} bytes, but at most {most} can be sent. Request it compressed, with the "
    "headers Accept and Accept-Encoding: gzip, or request less at once, with limit if the operation has it"
)


def handle_gateway_event(application: Application, event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    request = request_from_event(event)
    answer = application.answer(request)
    if isinstance(answer, StreamingResponse):
        answer = application.refuse(request, FeatureSwitchedOff("Streams of events are not served by this function"))
    assert isinstance(answer, Response)
    proxied = _proxy_response(_compressed_response(request, answer))
    if len(answer.body) > MIN_BYTES_TO_MEASURE_ANSWER and (size := len(json.dumps(proxied))) > MAX_ANSWER_BYTES:
        refusal = application.refuse(
            request, NotAcceptable(ANSWER_TOO_LARGE_MESSAGE.format(size=size, most=MAX_ANSWER_BYTES))
        )
        assert isinstance(refusal, Response)
        return _proxy_response(refusal)
    return proxied


def request_from_event(event: Mapping[str, Any]) -> Request:
    """The request as the client sent it, without the name of the stage. Missing members are empty."""
    # The gateway escapes paths differently for each kind of endpoint; escaped characters stay escaped.
    raw_path = quote(event["path"], safe="/%:@!$&'()*+,;=~")
    query = event.get("multiValueQueryStringParameters") or {}
    body = event.get("body") or ""
    return Request(
        method=event["httpMethod"],
        path=unquote(raw_path),
        target=f"{raw_path}?{urlencode(query, doseq=True)}" if query else raw_path,
        query={name: tuple(values) for name, values in query.items()},
        headers=joined_headers(_header_pairs(event)),
        body=base64.b64decode(body) if event.get("isBase64Encoded") else body.encode(),
        subject=subject_from_context((event.get("requestContext") or {}).get("authorizer") or {}),
    )


def authorizer_context_from_subject(subject: Subject) -> dict[str, str]:
    """A subject in the form in which an authorizer passes it to functions. The form has only texts, because API Gateway
    passes neither lists nor objects on.
    """
    attributes = sorted((each.data_type, each.value) for each in subject.attributes)
    return {
        "subject": subject.name,
        "attributes": json.dumps(attributes),
        "scopes": " ".join(sorted(subject.scopes)),
        "realm": subject.realm,
    }


def subject_from_context(context: Mapping[str, Any]) -> Subject:
    """The subject that the authorizer found; unauthenticated if there is no authorizer."""
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


def _compressed_response(request: Request, answer: Response) -> Response:
    return compression.compress_body(request, answer) if request.headers.get("accept") else answer


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
