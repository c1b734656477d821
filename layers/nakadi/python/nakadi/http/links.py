"""Links to the pages beside the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

Links = dict[str, dict[str, str]]


def page_links(path: str, *, offset: int, limit: int, size: int, more: bool) -> Links:
    """`prev` unless this is the first page, `next` if more follows; an empty page has no links."""
    links: Links = {}
    if offset > 0 and size:
        links["prev"] = _link(path, {"offset": max(0, offset - limit), "limit": limit})
    if more:
        links["next"] = _link(path, {"offset": offset + limit, "limit": limit})
    return links


def _link(path: str, parameters: Mapping[str, int]) -> dict[str, str]:
    return {"href": f"{path}?{urlencode(parameters)}"}
