"""Content negotiation: chooses and checks the media types of bodies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nakadi.http.message import JSON_MEDIA_TYPE, Answer, Request, Response
from nakadi.http.problem import NotAcceptable, UnsupportedMediaType

OLD_PROBLEM_MEDIA_TYPE = "application/x.problem+json"

WORD_PATTERN = r"[a-z0-9!#$%&'*+.^_`|~-]+"
JSON_MEDIA_TYPE_PATTERN = re.compile(rf"application/(json|{WORD_PATTERN}\+json)", re.IGNORECASE | re.ASCII)
PARAMETER_PATTERN = re.compile(
    rf"({WORD_PATTERN})\s*=\s*({WORD_PATTERN}|\"([\x20!#-\[\]-~]|\\[\x20-~])*+\")", re.IGNORECASE | re.ASCII
)
QUALITY_PATTERN = re.compile(r"0?\.\d+|[01]\.?|0\.\d*|1\.0*")

# The media ranges that include JSON, the most specific first.
JSON_MEDIA_RANGES = (JSON_MEDIA_TYPE, "application/*+json", "application/*", "*/*", "*")

# The characters between commas or semicolons. A quotation that does not end extends to the end of the header, so
# every character is read once.
PART_PATTERN_BY_SEPARATOR = {mark: re.compile(rf'(?:[^{mark}"]++|"(?:[^"\\]++|\\.)*+"?)++', re.DOTALL) for mark in ",;"}


class _MediaRange(Struct, frozen=True):
    """One media range of an `Accept` header, in lower case; `parameters` are written in the form of the answer."""

    media: str
    quality: float
    charset: str
    parameters: str


def check_content_type(request: Request) -> None:
    """Raise `UnsupportedMediaType` for a body whose media type is not JSON, if bodies have a meaning for the method."""
    content_type = request.headers.get("content-type", "")
    if request.method in ("POST", "PUT", "PATCH") and not JSON_MEDIA_TYPE_PATTERN.fullmatch(
        content_type.partition(";")[0].strip()
    ):
        raise UnsupportedMediaType(f"Content type '{content_type}' not supported")


def with_negotiated_media_type(request: Request, answer: Answer) -> Answer:
    """An answer in JSON, with the media type that the client asks for. Raises `NotAcceptable` if the client accepts no
    media type of JSON.

    Only the body of a success is negotiated. By then the work is done, so a refused client may have changed
    something; an earlier check would also refuse clients whose success has no body to read.
    """
    name = json_media_type_for(request.headers.get("accept", ""))
    if name is None:
        raise NotAcceptable("Could not find acceptable representation")
    return answer if name == JSON_MEDIA_TYPE else replace(answer, headers={**answer.headers, "content-type": name})


def with_preferred_problem_media_type(request: Request, problem: Response) -> Response:
    """The Problem with its older media type if the client prefers that; otherwise unchanged."""
    name = json_media_type_for(request.headers.get("accept", ""))
    if name is not None and name.partition(";")[0] == OLD_PROBLEM_MEDIA_TYPE:
        return replace(problem, headers={**problem.headers, "content-type": OLD_PROBLEM_MEDIA_TYPE})
    return problem


def json_media_type_for(accept: str) -> str | None:
    """The media type under which an `Accept` header wants JSON, None if it accepts none; an empty header accepts
    anything.
    """
    if accept.strip() in ("", "*/*", JSON_MEDIA_TYPE):
        return JSON_MEDIA_TYPE
    ranges = _parse_accept(accept)
    quality_of_json = _quality_of_json({each.media: each.quality for each in ranges})
    for each in ranges:
        if each.media in JSON_MEDIA_RANGES[1:] and quality_of_json:
            return JSON_MEDIA_TYPE
        if each.quality and JSON_MEDIA_TYPE_PATTERN.fullmatch(each.media) and each.charset in ("", "utf-8", "utf8"):
            return each.media + each.parameters
    return None


def preferred_media_type(accept: str, *names: str) -> str | None:
    """Of these media types, the one that an `Accept` header prefers or, of equally preferred ones, names first; None if
    it names none of them.
    """
    return next((each.media for each in _parse_accept(accept) if each.quality and each.media in names), None)


def metrics_media_type_for(accept: str) -> str | None:
    """The text format of Prometheus that an `Accept` header prefers; None if it prefers JSON or names none.

    Clients other than Prometheus name `text/plain` without a version, and have always received JSON.
    """
    for each in _parse_accept(accept):
        versioned = each.media == "text/plain" and ";version=" in each.parameters
        if each.quality and (versioned or each.media == "application/openmetrics-text"):
            return each.media
        if each.quality and (each.media in JSON_MEDIA_RANGES or JSON_MEDIA_TYPE_PATTERN.fullmatch(each.media)):
            return None
    return None


def _quality_of_json(quality_by_media_type: Mapping[str, float]) -> float:
    """The quality of JSON. The most specific range decides: `application/json;q=0, */*` accepts everything but JSON."""
    return next((quality_by_media_type[media] for media in JSON_MEDIA_RANGES if media in quality_by_media_type), 0.0)


def _parse_accept(accept: str) -> list[_MediaRange]:
    """The ranges of the header, the best first."""
    return sorted(_parse_readable_ranges(accept), key=lambda each: -each.quality)


def _parse_readable_ranges(accept: str) -> Iterator[_MediaRange]:
    """The readable ranges of the header; others are ignored."""
    for text in PART_PATTERN_BY_SEPARATOR[","].findall(accept):
        media, *rest = [each.strip() for each in PART_PATTERN_BY_SEPARATOR[";"].findall(text)] or [""]
        read = [PARAMETER_PATTERN.fullmatch(each) for each in rest if "=" in each]
        parameters = [(each[1].lower(), each[2]) for each in read if each]
        values = dict(parameters)
        if len(parameters) == len(read) and QUALITY_PATTERN.fullmatch(values.get("q", "1")):
            yield _MediaRange(
                media=media.lower(),
                quality=float(values.get("q", "1")),
                charset=values.get("charset", "").strip('"').lower(),
                parameters="".join(f";{name}={value}" for name, value in parameters if name != "q"),
            )
