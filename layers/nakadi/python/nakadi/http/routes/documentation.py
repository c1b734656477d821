"""The description of the API, for programs and for people. Anybody may read it."""

from __future__ import annotations

import re

from nakadi.http import docs_page, openapi
from nakadi.http.message import JSON, Request, Response
from nakadi.http.routing import Route

HTML = "text/html"

# Whatever a client writes into its headers, only what can be an address comes back in the page.
HOST = re.compile(r"[a-zA-Z0-9._-]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?")
UNKNOWN_HOST = "localhost:8080"


def routes() -> list[Route]:
    return [
        Route(method="GET", template="/openapi.json", handler=_openapi, operation="get_openapi"),
        Route(method="GET", template="/docs", handler=_docs, operation="get_docs"),
    ]


def _openapi(_: Request) -> Response:
    return Response(200, {"content-type": JSON}, openapi.as_json())


def _docs(request: Request) -> Response:
    headers = {
        "content-type": f"{HTML}; charset=utf-8",
        "content-security-policy": docs_page.content_security_policy(),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return Response(200, headers, docs_page.page(_address(request)).encode())


def _address(request: Request) -> str:
    """Where the browser found us, as far as can be told."""
    host = request.headers.get("host", "")
    scheme = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return f"{'https' if scheme == 'https' else 'http'}://{host if HOST.fullmatch(host) else UNKNOWN_HOST}"
