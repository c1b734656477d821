"""Media types: the body of a request before its work is done, the name of the answer's JSON afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nakadi.http.message import JSON, Answer, Request, Response
from nakadi.http.problem import NotAcceptable, UnsupportedMediaType

OLD_PROBLEM_JSON = "application/x.problem+json"

WORD = r"[a-z0-9!#$%&'*+.^_`|~-]+"
JSON_TYPE = re.compile(rf"application/(json|{WORD}\+json)", re.IGNORECASE | re.ASCII)
PARAMETER = re.compile(rf"({WORD})\s*=\s*({WORD}|\"([\x20!#-\[\]-~]|\\[\x20-~])*+\")", re.IGNORECASE | re.ASCII)
QUALITY = re.compile(r"0?\.\d+|[01]\.?|0\.\d*|1\.0*")

# The ranges that JSON lies in, the most exact one first.
RANGES_OF_JSON = (JSON, "application/*+json", "application/*", "*/*", "*")

# What stands between commas or semicolons. A quotation that does not end goes on to the end of the header, so that
# every character is looked at once.
BETWEEN = {mark: re.compile(rf'(?:[^{mark}"]++|"(?:[^"\\]++|\\.)*+"?)++', re.DOTALL) for mark in ",;"}


class _MediaRange(Struct, frozen=True):
    """One media range of an `Accept` header, in lower case; `parameters` are written as they are sent back."""

    media: str
    quality: float
    charset: str
    parameters: str


def check_content_type(request: Request) -> None:
    """Raise `UnsupportedMediaType` for a body that is not JSON by its name, of a method whose bodies mean something."""
    content_type = request.headers.get("content-type", "")
    if request.method in ("POST", "PUT", "PATCH") and not JSON_TYPE.fullmatch(content_type.partition(";")[0].strip()):
        raise UnsupportedMediaType(f"Content type '{content_type}' not supported")


def negotiated(request: Request, answer: Answer) -> Answer:
    """An answer in JSON, under the name that the client asks for. Raises `NotAcceptable` if it accepts none.

    Only the body of a success is negotiated. By then the work is done, so a client that is refused may have changed
    something; refusing it before would refuse those as well whose success has no body to read.
    """
    name = json_name(request.headers.get("accept", ""))
    if name is None:
        raise NotAcceptable("Could not find acceptable representation")
    return answer if name == JSON else replace(answer, headers={**answer.headers, "content-type": name})


def adapted(request: Request, problem: Response) -> Response:
    """The Problem under its older name if the client prefers that; otherwise as it is."""
    name = json_name(request.headers.get("accept", ""))
    if name is not None and name.partition(";")[0] == OLD_PROBLEM_JSON:
        return replace(problem, headers={**problem.headers, "content-type": OLD_PROBLEM_JSON})
    return problem


def json_name(accept: str) -> str | None:
    """The media type under which an `Accept` header wants JSON, None if it wants none; an empty one has no wishes."""
    if accept.strip() in ("", "*/*", JSON):
        return JSON
    ranges = _ranges(accept)
    quality_of_json = _quality_of_json({each.media: each.quality for each in ranges})
    for each in ranges:
        if each.media in RANGES_OF_JSON[1:] and quality_of_json:
            return JSON
        if each.quality and JSON_TYPE.fullmatch(each.media) and each.charset in ("", "utf-8", "utf8"):
            return each.media + each.parameters
    return None


def preferred(accept: str, *names: str) -> str | None:
    """Which of these media types an `Accept` header names and likes best, or names first; None if it names none."""
    return next((each.media for each in _ranges(accept) if each.quality and each.media in names), None)


def text_of_metrics(accept: str) -> str | None:
    """Which text format of Prometheus an `Accept` header likes best; None if it prefers JSON or names none.

    Clients that are no Prometheus name `text/plain` without a version, and have always got JSON.
    """
    for each in _ranges(accept):
        versioned = each.media == "text/plain" and ";version=" in each.parameters
        if each.quality and (versioned or each.media == "application/openmetrics-text"):
            return each.media
        if each.quality and (each.media in RANGES_OF_JSON or JSON_TYPE.fullmatch(each.media)):
            return None
    return None


def _quality_of_json(qualities: Mapping[str, float]) -> float:
    """What names JSON more exactly decides: `application/json;q=0, */*` is for everything but JSON."""
    return next((qualities[media] for media in RANGES_OF_JSON if media in qualities), 0.0)


def _ranges(accept: str) -> list[_MediaRange]:
    """The ranges of the header, the best first."""
    return sorted(_readable(accept), key=lambda each: -each.quality)


def _readable(accept: str) -> Iterator[_MediaRange]:
    """The ranges of the header that can be read; the others count as if they were not there."""
    for text in BETWEEN[","].findall(accept):
        media, *rest = [each.strip() for each in BETWEEN[";"].findall(text)] or [""]
        read = [PARAMETER.fullmatch(each) for each in rest if "=" in each]
        parameters = [(each[1].lower(), each[2]) for each in read if each]
        values = dict(parameters)
        if len(parameters) == len(read) and QUALITY.fullmatch(values.get("q", "1")):
            yield _MediaRange(
                media=media.lower(),
                quality=float(values.get("q", "1")),
                charset=values.get("charset", "").strip('"').lower(),
                parameters="".join(f";{name}={value}" for name, value in parameters if name != "q"),
            )
