"""The description of the API, open to all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nakadi import openapi
from nakadi.http import docs_page
from nakadi.http.message import JSON_MEDIA_TYPE, Request, Response
from nakadi.http.parameters import Header
from nakadi.http.router import Route

if TYPE_CHECKING:
    pass


HTML_MEDIA_TYPE = "text/html"

# Clients may write anything into their headers, so only a plausible address appears in the page.
HOST_PATTERN = re.compile(r"[a-zA-Z0-9._-]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?")
DEFAULT_HOST = "localhost:8080"

HOST, FORWARDED_PROTO = Header("host"), Header("x-forwarded-proto")


def routes() -> list[Route]:
    return [
        Route(method="GET", template="/openapi.json", handler=_answer_openapi, operation="get_openapi"),
        Route(
            method="GET",
            template="/docs",
            handler=_answer_docs_page,
            operation="get_docs",
            parameters=(HOST, FORWARDED_PROTO),
        ),
    ]


def _answer_openapi(_: Request) -> Response:
    return Response(200, {"content-type": JSON_MEDIA_TYPE}, openapi.document_json())


def _answer_docs_page(request: Request) -> Response:
    headers = {
        "content-type": f"{HTML_MEDIA_TYPE}; charset=utf-8",
        "content-security-policy": docs_page.content_security_policy(),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return Response(200, headers, docs_page.page_html(_broker_address(request)).encode())


def _broker_address(request: Request) -> str:
    """The address at which the browser reached the broker, as far as the headers show it."""
    host = HOST.read(request) or ""
    scheme = (FORWARDED_PROTO.read(request) or "").partition(",")[0].strip().lower()
    return f"{'https' if scheme == 'https' else 'http'}://{host if HOST_PATTERN.fullmatch(host) else DEFAULT_HOST}"
