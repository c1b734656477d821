"""Media types: what a route reads and writes, held against what the client says."""

from __future__ import annotations

import re
from dataclasses import replace

from nakadi.http.message import Request, Response
from nakadi.http.problem import NotAcceptable, UnsupportedMediaType
from nakadi.http.routing import Route

JSON_BODY = re.compile(r"application/(json|[a-z0-9.+-]+\+json)", re.IGNORECASE)
REFUSED = re.compile(r"(^|;)\s*q\s*=\s*0(\.0*)?\s*(;|$)")
OLD_PROBLEM_JSON = "application/x.problem+json"


def check(request: Request, route: Route) -> None:
    """Raise when the client cannot read the answer, or when we cannot read the body."""
    if route.produces is not None and not accepts(request.headers.get("accept", ""), route.produces):
        raise NotAcceptable("Could not find acceptable representation")
    if request.body and not route.any_body and request.method in ("POST", "PUT", "PATCH"):
        content_type = request.headers.get("content-type", "")
        if not JSON_BODY.fullmatch(content_type.partition(";")[0].strip()):
            raise UnsupportedMediaType(f"Content type '{content_type}' not supported")


def accepts(accept: str, produced: str) -> bool:
    """Whether an `Accept` header has room for a media type; a missing one has room for all.

    What names the type more exactly decides: `application/json;q=0, */*` is for everything but JSON.
    """
    ranges = [each.partition(";") for each in accept.lower().split(",") if each.strip()]
    welcome = {media.strip(): not REFUSED.search(parameters) for media, _, parameters in ranges}
    family = produced.partition("/")[0] + "/*"
    named = [media for media in (produced, family, "*/*", "*") if media in welcome]
    return welcome[named[0]] if named else not ranges


def adapted(request: Request, problem: Response) -> Response:
    """The Problem in the older media type if that is the only one asked for; otherwise as it is."""
    if request.headers.get("accept", "").strip().lower() == OLD_PROBLEM_JSON:
        return replace(problem, headers={**problem.headers, "content-type": OLD_PROBLEM_JSON})
    return problem
