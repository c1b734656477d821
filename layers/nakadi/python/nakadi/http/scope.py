"""What a server says of a request, a scope of ASGI, as our Request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

from nakadi.common.work import still_there
from nakadi.http.message import Request, grouped, headers_of

Scope = Mapping[str, Any]


class ClosableConnection(Protocol):
    """What a server may offer as `connection` in the state of a scope, for there are no words for it in ASGI."""

    half_closed: bool
    lost: bool
    whole: bool
    """Whether the body of the newest request has arrived, so that nothing is won by refusing to read it."""

    def close_soon(self) -> None:
        """Close unless the client asks for something else on it in a moment."""

    def abort(self) -> None:
        """Close now."""


def request_of(scope: Scope) -> Request:
    """The request but for its body. What is wrong with its URL is for the application to say."""
    raw_path = re.sub(rb"^https?://[^/?]*", b"", scope["raw_path"], flags=re.IGNORECASE).decode("latin-1") or "/"
    query = scope["query_string"].decode("latin-1")
    return Request(
        method=scope["method"],
        path=unquote(raw_path),
        target=f"{raw_path}?{query}" if query else raw_path,
        query=query_of(query),
        headers=headers_of((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]),
        gone=gone_of(scope),
    )


def query_of(query: str) -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(values) for name, values in grouped(parse_qsl(query, keep_blank_values=True)).items()}


def connection_of(scope: Scope) -> ClosableConnection | None:
    found: ClosableConnection | None = scope.get("state", {}).get("connection")
    return found


def gone_of(scope: Scope) -> Callable[[], bool]:
    connection = connection_of(scope)
    if connection is None:
        return still_there
    # A client that closes its half may still read. To be gone altogether looks the same from here.
    return lambda: connection.lost or connection.half_closed
