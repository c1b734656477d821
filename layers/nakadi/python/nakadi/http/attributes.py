"""Attributes in query parameters: `user:ann`."""

from __future__ import annotations

from nakadi.http.message import Request
from nakadi.model.authorization import Attribute
from nakadi.model.outcomes import Malformed


def attribute_parameter(request: Request, name: str) -> Attribute | None:
    """The attribute that a query parameter names, None when it is missing."""
    text = request.parameter(name)
    if text is None:
        return None
    if not text:
        raise Malformed("Authorization query is empty")
    parts = text.split(":")
    if len(parts) != 2 or not parts[1]:
        raise Malformed("Authorization format is incorrect. Should be data_type:value")
    return Attribute(*parts)
