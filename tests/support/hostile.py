"""Draws requests to every operation that follow the description, except in one or two hostile places."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as some

from nakadi import openapi
from nakadi.openapi import ApiOperation
from nakadi.openapi.examples import example_of_parameter, examples_of_media_type

NUMBERS = (
    *("0", "-0", "1", "-1", "007", "+5", "1.0", "1.5", "1e2", "1e400", "-1e400", "1e-400", "NaN", "Infinity"),
    *("2147483647", "2147483648", "-2147483649", "4294967296", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616"),
    *("9" * 30, "9" * 400, "9" * 5000, "1" + "0" * 5000, "1_000", " 7 ", "0x10", "٣", "²"),
)
WORDS = (
    *("", " ", "a", "A b", "null", "true", "false", "on", "[]", "{}", "*", "%", ".", "..", "__proto__", "-", "BEGIN"),
    *("END", "begin", "001-0001-000000000000000000", "001-0001--1", "001-0001-1", "001-ffff-1", "002-0001-1"),
    *("001-0001-" + "9" * 18, "001-0001-" + "9" * 19, "001-0001-" + "9" * 5000, "001-99999999999-1", "000", "001--1-0"),
    *("2026-11-21T10:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "2026-02-30T00:00:00Z"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "99999-01-01T00:00:00Z", "user:ann", "user:", ":"),
    *("00000000-0000-0000-0000-000000000000", "not-a-uuid", "application/json", "text/event-stream", "1.0.0"),
    *("1.0", "1.0.0.0", "9" * 30 + ".0.0", "latest", "a" * 256, "a" * 3000, "é", "ß", "İ", "\U0001f600", "\ufeff"),
    *("\u0000", "a\u0000b", "\u2028", "\u202e", "\ud800", "a\udfffb", "\ud83d", "'; DROP TABLE documents; --"),
    *(
        "(?=a)",
        "(a+)+$",
        "[",
        "${jndi:ldap://x}",
        "../../etc/passwd",
        "\r\nX: y",
        "\t",
        "\x7f",
        "nan",
        "inf",
        "1d",
        "unlimited",
    ),
)

CURSORS = (
    *(
        '[{"partition":"0","offset":"\\ud800"}]',
        '[{"partition":"\\ud800","offset":"BEGIN"}]',
        "[[]]",
        "[null]",
        "[" * 5000,
    ),
    *('[{"partition":"\\u0000","offset":"\\u0000"}]', '[{"partition":"0","offset":"001-0001-\\u0663"}]'),
    *('[{"partition":"0","offset":1e400}]', '[{"partition":0,"offset":-1}]', '[{"partition":"0","offset":NaN}]'),
    *('[{"partition":"0","offset":"' + "9" * 5000 + '"}]', '[{"partition":' + "9" * 5000 + ',"offset":"1"}]'),
    *('[{"partition":"\\u0663","offset":"1"}]', '[{"partition":"0","offset":"001-' + "f" * 5000 + '-1"}]'),
)


@dataclass(frozen=True)
class RawJson:
    """A text that goes into a request's JSON unchanged."""

    text: str


LITERALS = (
    *(RawJson(each) for each in NUMBERS),
    *(RawJson('"' + "x" * size + '"') for size in (70_000, 1_100_000)),
    *(RawJson("[" * depth + "]" * depth) for depth in (100, 1_100, 100_000)),
    *(RawJson('{"a":' * depth + "1" + "}" * depth) for depth in (100, 1_100)),
    *(
        RawJson(each)
        for each in ('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\x01"', '"\\x"', '"', "[", "{", "tru")
    ),
    *(RawJson(each) for each in ('{"a":1,"a":2}', '{"\\ud800":1}', '{"":null}', '{"\\u0000":0}', "[null]", "[[]]", "")),
)

# The values that broke code most often.
EDGE_VALUES = (
    *("\ud800", "\u0000", "a\udfffb", "", " ", None, [], {}, True, -1, "0001-01-01T00:00:00+23:59", "9" * 5000, 2**63),
    *map(RawJson, ("1e400", "-1e400", "9" * 30, "9" * 5000, '{"\\ud800":1}', '{"\\u0000":"\\ud800"}', "[" * 100_000)),
)

texts = some.sampled_from(WORDS) | some.sampled_from(NUMBERS) | some.text(max_size=20)
values = (
    some.sampled_from(EDGE_VALUES)
    | some.sampled_from(EDGE_VALUES)
    | some.sampled_from(EDGE_VALUES)
    | texts
    | some.sampled_from(LITERALS)
    | some.none()
    | some.booleans()
    | some.sampled_from(([], {}, [[]], [None], [{}], {"": ""}))
    | some.recursive(
        some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8),
        lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    )
)

HEADERS = (
    *("X-Flow-Id", "Accept", "Content-Type", "Content-Encoding", "Accept-Encoding", "Authorization", "Cookie", "Range"),
    *("X-nakadi-cursors", "Last-Event-ID", "X-Nakadi-StreamId", "X-CONSUMER-TAG", "User-Agent", "If-None-Match"),
    *("X-Forwarded-For", "Expect", "Upgrade", "Origin", "X-Nakadi-Batch-Id", "X-Client-Timeout", "Date"),
)
HEADER_VALUES = (
    *(
        "application/json",
        "application/x-json-stream",
        "text/event-stream",
        "text/html;q=0",
        "*/*;q=",
        "application/*+json",
    ),
    *("gzip", "br", "identity;q=0", "gzip, gzip", "deflate", "zstd", "100-continue", "h2c", "bytes=0-", "Bearer x"),
    *("Bearer", "Basic Og==", "[" * 5000, "[[]]", "[{}]", "consumer_subscription_id=x"),
    *("consumer_subscription_id=00000000-0000-0000-0000-000000000000", "consumer_subscription_id=", "=", ",", ";", '"'),
    *("application/json; charset=utf-16", "application/json; charset=x", "application/", "/", "a/b/c", "é", "x" * 9000),
)
CURSOR_PARAMETERS = ("X-nakadi-cursors", "Last-Event-ID", "cursors")

some_texts = texts.map(lambda text: text.encode("utf-8", "surrogatepass"))
header_values = some.sampled_from(HEADER_VALUES).map(str.encode) | some_texts
some_cursors = some.sampled_from(CURSORS).map(str.encode) | some.deferred(
    lambda: bodies([[{"partition": "0", "offset": "BEGIN"}, {"partition": "1", "offset": "0"}]])
)


# A schema is JSON within a string, so a parser of the body does not notice errors in it.
schema_texts = some.deferred(lambda: bodies(SCHEMAS).map(lambda text: text.decode("utf-8", "replace")))
SCHEMAS = (
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a", "maxLength": 5}}, "required": ["a"]},
    {
        "definitions": {"x": {"enum": ["a", 1, None], "default": "a"}},
        "properties": {"x": {"$ref": "#/definitions/x"}, "y": {"items": [{"type": "integer", "minimum": 0}]}},
        "additionalProperties": {"type": "number", "multipleOf": 0.5, "format": "date-time"},
        "description": "x",
    },
    {"allOf": [{"$ref": "#"}], "patternProperties": {"a+": {}}, "dependencies": {"a": ["b"]}, "minProperties": 1},
)


@dataclass(frozen=True)
class HostileRequest:
    """A request as it is sent, with its target already escaped."""

    method: str
    target: str
    headers: Sequence[tuple[str, bytes]] = ()
    body: bytes | None = None

    def wire_bytes(self) -> bytes:
        """The bytes on the wire."""
        body = self.body or b""
        named = [f"{name}: ".encode() + value for name, value in self.headers]
        length = [] if self.body is None else [b"Content-Length: %d" % len(body)]
        head = [f"{self.method} {self.target} HTTP/1.1".encode(), b"Host: localhost", *named, *length]
        return b"\r\n".join(head) + b"\r\n\r\n" + body


@dataclass
class BrokerContent:
    """What a broker has: values of parameters in paths and queries, and good bodies of operations."""

    names: Mapping[str, Sequence[str]]
    bodies: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def bodies_of(self, operation: ApiOperation) -> Sequence[Any]:
        return (*self.bodies.get(operation.id, ()), *_examples(operation.id))


PLACES = ("path", "query", "query", "described header", "described header", "header", "body", "body", "body", "method")


@some.composite
def hostile_requests(draw: some.DrawFn, content: BrokerContent) -> HostileRequest:
    """A request for any operation, which is hostile in one place or in two."""
    operation = openapi.operations()[draw(some.sampled_from(_by_what_they_read()))]
    hostile = {draw(some.sampled_from(PLACES)), draw(some.sampled_from(("", "", "", *PLACES)))}
    headers = [(name, draw(header_value)) for name, header_value in _headers(draw, operation, hostile)]
    body = None
    if "requestBody" in operation.description or "body" in hostile:
        body = draw(bodies(content.bodies_of(operation), hostile="body" in hostile))
        headers.append(("Content-Type", b"application/json"))
        if draw(some.integers(0, 19)) == 0:
            body = gzip.compress(body, 1)[: draw(some.sampled_from((None, 5, -5)))]
            headers.append(("Content-Encoding", b"gzip"))
    return HostileRequest(
        draw(some.sampled_from(("HEAD", "OPTIONS", "DELETE", "PATCH"))) if "method" in hostile else operation.method,
        _path(draw, operation, content, hostile="path" in hostile)
        + _query(draw, operation, content, "query" in hostile),
        [(name, _remove_newlines(value)) for name, value in headers],
        body,
    )


def _headers(
    draw: some.DrawFn, operation: ApiOperation, hostile: set[str]
) -> Iterator[tuple[str, some.SearchStrategy[bytes]]]:
    for each in operation.parameters:
        if each["in"] == "header" and "described header" in hostile:
            yield each["name"], some_cursors if each["name"] in CURSOR_PARAMETERS else header_values
    if "described header" in hostile and operation.path.endswith("/events") and draw(some.booleans()):
        yield "Accept", some.just(b"text/event-stream")
    if "header" in hostile:
        yield draw(some.sampled_from(HEADERS)), header_values


def encode_json(value: Any) -> bytes:
    """Write JSON, with each `RawJson` unchanged."""
    return _encode_value(value).encode("utf-8", "surrogatepass")


def _encode_value(value: Any) -> str:
    match value:
        case RawJson():
            return value.text
        case dict():
            return "{" + ",".join(f"{json.dumps(str(key))}:{_encode_value(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_encode_value, value)) + "]"
    return json.dumps(value, ensure_ascii=len(str(value)) % 3 > 0)


@some.composite
def bodies(draw: some.DrawFn, good: Sequence[Any], *, hostile: bool = True) -> bytes:
    """Draw a good body or, if `hostile`, one with hostile values, one that is cut or damaged, or random bytes."""
    if hostile and (not good or draw(some.integers(0, 9)) == 0):
        return draw(some.binary(max_size=30) | values.map(encode_json))
    body = draw(some.sampled_from(good))
    for _ in range(draw(some.sampled_from((1, 1, 1, 2))) if hostile else 0):
        place = draw(some.sampled_from(list(_places(body))))
        wild = schema_texts if place[-1:] == ("schema",) and draw(some.integers(0, 3)) else values
        body = _replace_at(body, place, draw(wild))
    written = encode_json(body)
    match draw(some.integers(0, 24)) if hostile else None:
        case 0:
            return written[: draw(some.integers(0, len(written)))]
        case 1:
            at = draw(some.integers(0, len(written)))
            return written[:at] + draw(some.binary(max_size=3)) + written[at + 1 :]
        case 2:
            return b"\xef\xbb\xbf" + written
        case 3:
            return written.decode("utf-8", "replace").encode("utf-16")
    return written


def _places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _places(each, (*here, key))


def _replace_at(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    if not place:
        return by
    first, *rest = place
    if isinstance(value, dict):
        return {**value, first: _replace_at(value[first], tuple(rest), by)}
    return [*value[:first], _replace_at(value[first], tuple(rest), by), *value[first + 1 :]]


def _path(draw: some.DrawFn, operation: ApiOperation, content: BrokerContent, *, hostile: bool) -> str:
    path = operation.path
    for each in operation.parameters:
        if each["in"] == "path":
            known = (*content.names.get(each["name"], ()), example_of_parameter(each))
            chosen = draw(texts if hostile and draw(some.booleans()) else some.sampled_from(known))
            path = path.replace(f"{{{each['name']}}}", quote(chosen.encode("utf-8", "surrogatepass"), safe=""))
    ends = ("", "", "", "/", "//", "/x", "%00", "%", "%zz", ";a=b")
    return path + draw(some.sampled_from(ends)) if hostile else path


def _query(draw: some.DrawFn, operation: ApiOperation, content: BrokerContent, hostile: bool) -> str:
    described = [each for each in operation.parameters if each["in"] == "query"]
    pairs = []
    for each in draw(some.lists(some.sampled_from(described), max_size=4)) if described else ():
        name = each["name"]
        known = some.sampled_from((*content.names.get(name, ()), example_of_parameter(each)))
        wild = some_cursors if name in CURSOR_PARAMETERS else some_texts
        value = draw(wild) if hostile else draw(known).encode()
        pairs.append(f"{name}={quote(value, safe='')}")
    return "?" + "&".join(pairs) if pairs else ""


def _remove_newlines(value: bytes) -> bytes:
    """Remove control characters, so the value stays within its line and the request stays one request."""
    return bytes(each for each in value if each >= 32 and each != 127)


@cache
def _by_what_they_read() -> list[str]:
    """The operations; an operation with more parameters, or with a body, occurs more often."""
    return [
        name
        for name, each in openapi.operations().items()
        for _ in range(len(each.parameters) + 5 * ("requestBody" in each.description))
    ]


@cache
def _examples(operation: str) -> Sequence[Any]:
    described = openapi.operations()[operation].description.get("requestBody")
    return (
        []
        if described is None
        else [each[1] for each in examples_of_media_type(described["content"]["application/json"])]
    )
