"""Checks the URLs of requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from nakadi.http.message import Request
from nakadi.model.outcomes import MAX_TEXT_CHARACTERS, Malformed

if TYPE_CHECKING:
    # A Lambda function that answers without streams starts sooner without this import.
    pass


# Slashes, backslashes, semicolons and control characters that two readers could interpret differently.
SUSPICIOUS_PATH_PATTERN = re.compile(r"//|;|\\|%2f|%5c|%3b|%0[0-9a-f]|%1[0-9a-f]|%25|/\.{1,2}(/|$)|%2e", re.IGNORECASE)
INCOMPLETE_ESCAPE_PATTERN = re.compile(r"%(?![0-9a-f]{2})", re.IGNORECASE)


def checked_path(request: Request) -> str:
    """The path as sent, still escaped. Raises `Malformed` for a flow id or a URL that cannot be accepted."""
    target, path = request.target, request.target.partition("?")[0]
    # The length is limited, because the flow id goes into every event of the request, and into every log line about it.
    if len(request.headers.get("x-flow-id", "")) > MAX_TEXT_CHARACTERS:
        raise Malformed(f"X-Flow-Id has more than {MAX_TEXT_CHARACTERS} characters")
    if SUSPICIOUS_PATH_PATTERN.search(path):
        raise Malformed("The request was rejected because its URL is not normal")
    if not target.isascii() or ("%" in target and INCOMPLETE_ESCAPE_PATTERN.search(target)):
        raise Malformed("The request was rejected because its URL has characters that must be escaped")
    if "%" in target:
        try:
            unquote_to_bytes(target).decode()
        except UnicodeDecodeError:
            raise Malformed("The request was rejected because its URL is not UTF-8") from None
    return path
