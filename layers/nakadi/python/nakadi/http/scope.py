"""What a server says of a request, a scope of ASGI, as our Request; and whether its URL can be accepted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

from nakadi.common.work import still_there
from nakadi.http.message import UNLIMITED, Request, Share, grouped, headers_of
from nakadi.model.outcomes import MOST_CHARACTERS, Malformed

Scope = Mapping[str, Any]

WHOLE_URL = re.compile(r"^https?://[^/?]*", re.IGNORECASE)


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


def request_of(
    scope: Scope, body: bytes = b"", memory: Share = UNLIMITED, is_draining: Callable[[], bool] = still_there
) -> Request:
    """The request. What is wrong with its URL is for the application to say."""
    raw_path = scope["raw_path"].decode("latin-1")
    if not raw_path.startswith("/"):
        raw_path = WHOLE_URL.sub("", raw_path) or "/"
    query = scope["query_string"].decode("latin-1")
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    headers: Mapping[str, str] = dict(pairs)
    gone = gone_of(scope)
    return Request(
        method=scope["method"],
        path=unquote(raw_path) if "%" in raw_path else raw_path,
        target=f"{raw_path}?{query}" if query else raw_path,
        query=query_of(query) if query else {},
        headers=headers if len(headers) == len(pairs) else headers_of(pairs),
        body=body,
        # Long work should be given up: who asked may be gone, or will have to ask another process.
        gone=lambda: is_draining() or gone(),
        memory=memory,
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


# Whether a URL can be accepted ----------------------------------------------------------------------------------------


# Slashes, backslashes, semicolons and control characters that could make two readers see two different paths.
SUSPICIOUS = re.compile(r"//|;|\\|%2f|%5c|%3b|%0[0-9a-f]|%1[0-9a-f]|%25|/\.{1,2}(/|$)|%2e", re.IGNORECASE)
HALF_AN_ESCAPE = re.compile(r"%(?![0-9a-f]{2})", re.IGNORECASE)


def checked_path(request: Request) -> str:
    """The path as it was sent, still escaped. Raises `Malformed` for a flow id or a URL that cannot be accepted."""
    target, path = request.target, request.target.partition("?")[0]
    # It goes into every event of the request, and into every line of the log.
    if len(request.headers.get("x-flow-id", "")) > MOST_CHARACTERS:
        raise Malformed(f"X-Flow-Id has more than {MOST_CHARACTERS} characters")
    if SUSPICIOUS.search(path):
        raise Malformed("The request was rejected because its URL is not normal")
    if not target.isascii() or ("%" in target and HALF_AN_ESCAPE.search(target)):
        raise Malformed(
            "The request was rejected because its URL has characters that are not escaped as they should be"
        )
    if "%" in target:
        try:
            unquote_to_bytes(target).decode()
        except UnicodeDecodeError:
            raise Malformed("The request was rejected because its URL is not UTF-8") from None
    return path
