"""Makes requests from the scopes of ASGI servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, unquote

from nakadi.common.work import client_never_gone
from nakadi.http.memory import UNLIMITED_SHARE, MemoryShare
from nakadi.http.message import Request, joined_headers, values_by_name

if TYPE_CHECKING:
    # A Lambda function that answers without streams starts sooner without this import.
    pass


AsgiScope = Mapping[str, Any]

SCHEME_AND_HOST_PATTERN = re.compile(r"^https?://[^/?]*", re.IGNORECASE)


class ClosableConnection(Protocol):
    """The `connection` that a server may offer in the state of a scope, since ASGI has no messages for this."""

    is_half_closed: bool
    is_lost: bool
    has_whole_body: bool
    """Whether the whole body of the newest request has arrived; then it can no longer be refused unread."""

    def close_unless_reused(self) -> None:
        """Close the connection, unless the client soon sends another request on it."""

    def abort(self) -> None:
        """Close at once."""


def request_from_scope(
    scope: AsgiScope,
    body: bytes = b"",
    memory: MemoryShare = UNLIMITED_SHARE,
    is_draining: Callable[[], bool] = client_never_gone,
) -> Request:
    """The request. The application itself rejects unacceptable URLs."""
    raw_path = scope["raw_path"].decode("latin-1")
    if not raw_path.startswith("/"):
        raw_path = SCHEME_AND_HOST_PATTERN.sub("", raw_path) or "/"
    query = scope["query_string"].decode("latin-1")
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    headers: Mapping[str, str] = dict(pairs)
    connection = connection_in_scope(scope)
    return Request(
        method=scope["method"],
        path=unquote(raw_path) if "%" in raw_path else raw_path,
        target=f"{raw_path}?{query}" if query else raw_path,
        query=parse_query(query) if query else {},
        headers=headers if len(headers) == len(pairs) else joined_headers(pairs),
        body=body,
        # If true, long work should be given up: the client may have left, or this process is about to end. A client
        # that closes only its sending half may still read, but the server cannot distinguish this from a client that
        # has left.
        is_client_gone=lambda: (
            is_draining() or (connection is not None and (connection.is_lost or connection.is_half_closed))
        ),
        memory=memory,
    )


def parse_query(query: str) -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(values) for name, values in values_by_name(parse_qsl(query, keep_blank_values=True)).items()}


def connection_in_scope(scope: AsgiScope) -> ClosableConnection | None:
    found: ClosableConnection | None = scope.get("state", {}).get("connection")
    return found
