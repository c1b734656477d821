"""Compares real answers with the description of the API.

Tests call `assert_answer_matches` after every request, so this module compiles each validator only once. It treats
objects as closed: it rejects an answer with a member that the description does not list.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import fastjsonschema
import orjson

from nakadi import openapi
from nakadi.http.message import JSON_MEDIA_TYPE, PROBLEM_MEDIA_TYPE
from nakadi.http.negotiation import OLD_PROBLEM_MEDIA_TYPE

STREAM = "application/x-json-stream"

AVRO = "application/avro-binary"
EVENT_STREAM = "text/event-stream"
CLOUD_EVENTS = "application/cloudevents-batch+json"

Validate = Callable[[Any], Any]

REFERENCE = re.compile(r'"#/components/schemas/(\w+)"')

# Statuses of answers to a request for no operation, or to one that is refused before its operation is known.
WITHOUT_OPERATION = frozenset({400, 401, 403, 404, 405, 406, 408, 413, 431, 501})

# The statuses among these that a request for any operation may get: even an unexpected body can be too long.
WITH_ANY_OPERATION = frozenset({405, 408, 413, 431})

# Formats in OpenAPI for numbers and bytes, which need no check, and one that fastjsonschema does not check itself.
FORMATS = {
    "uuid": r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\Z",
    "int32": lambda _: True,
    "int64": lambda _: True,
    "binary": lambda _: True,
}


def operation_at(method: str, path: str) -> str | None:
    """The operation with this method and path, or None if there is none."""
    wanted = "GET" if method == "HEAD" else method
    segments = path.partition("?")[0].strip("/").split("/")
    found = [each for each in _templates().get((wanted, len(segments)), ()) if _matches_template(each[0], segments)]
    # If several templates match, the one with the fewest parameters wins: /storages/default/x, not /storages/{id}/x.
    return min(found, key=lambda each: sum(part.startswith("{") for part in each[0]))[1] if found else None


def assert_answer_matches(
    operation: str | None, status: int, headers: Mapping[str, str], body: bytes | None = None, *, method: str = ""
) -> None:
    """Fail if the description does not allow this answer. Header names are in lower case.

    `body` is None when it was not read, as with an open stream. `operation` is None when the request was for no
    operation; the answer to `OPTIONS` also belongs to none.
    """
    assert headers.get("x-flow-id"), "an answer without X-Flow-Id"
    if method == "OPTIONS" and status == 200:
        assert headers.get("allow"), "an answer to OPTIONS without Allow"
        return
    if operation is None or status in WITH_ANY_OPERATION:
        _assert_refused(status, headers, body)
        return
    response = openapi.operations()[operation].responses.get(str(status))
    assert response is not None, f"{operation} answered {status}, and the description does not know that"
    _assert_headers(f"{operation} {status}", response, headers)
    if body is not None and method != "HEAD":
        _assert_body(operation, status, response, headers, body)


@cache
def validator(schema_text: str) -> Validate:
    """A validator for a schema of the description, given as JSON text."""
    schema = _as_json_schema(orjson.loads(schema_text))
    # The compiler looks through every schema that it gets, which takes longer than compiling the few in use.
    schemas = {name: _named_schemas()[name] for name in _names_in_use(schema)}
    definition = schema | {"components": {"schemas": schemas}}
    compiled: Validate = fastjsonschema.compile(definition, formats=FORMATS, use_default=False)
    return compiled


@cache
def _named_schemas() -> dict[str, dict[str, Any]]:
    return {name: _as_json_schema(schema) for name, schema in openapi.document()["components"]["schemas"].items()}


def _names_in_use(schema: Mapping[str, Any]) -> set[str]:
    """The names of the schemas that a schema refers to, directly or through others."""
    found: set[str] = set()
    unread = [schema]
    while unread:
        names = set(REFERENCE.findall(orjson.dumps(unread.pop()).decode())) - found
        found |= names
        unread += [_named_schemas()[name] for name in names]
    return found


def validate(schema: Mapping[str, Any], value: Any, what: str) -> None:
    try:
        validator(orjson.dumps(schema).decode())(value)
    except fastjsonschema.JsonSchemaValueException as error:
        raise AssertionError(f"{what} is not as described: {error.message}, in {value!r}") from error


def _assert_refused(status: int, headers: Mapping[str, str], body: bytes | None) -> None:
    assert status in WITHOUT_OPERATION, f"{status} for a request that is for no operation"
    assert status != 405 or headers.get("allow"), "405 without Allow"
    if body:
        validate({"$ref": "#/components/schemas/Problem"}, orjson.loads(body), f"the Problem with status {status}")


def _assert_headers(what: str, response: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    for name, header in response.get("headers", {}).items():
        assert name.lower() in headers or not header.get("required"), f"{what} without {name}"


def _assert_body(
    operation: str, status: int, response: Mapping[str, Any], headers: Mapping[str, str], body: bytes
) -> None:
    what, content = f"{operation} {status}", response.get("content", {})
    if not body:
        assert not content or STREAM in content, f"{what} came without a body"
        return
    content = content or response.get("x-optional-body", {})
    media_type = headers.get("content-type", "").partition(";")[0].strip()
    media_type = PROBLEM_MEDIA_TYPE if media_type == OLD_PROBLEM_MEDIA_TYPE else media_type
    if status < 400 and media_type.endswith("+json") and media_type not in content:
        media_type = JSON_MEDIA_TYPE  # the client asked for JSON under another media type
    assert media_type in content, (
        f"{what} came as {media_type or 'nothing'}, not as {' or '.join(content) or 'nothing'}"
    )
    schema = content[media_type]["schema"]
    if "x-dry-run-body" in response and b'"current_version"' in body:
        schema = response["x-dry-run-body"][media_type]["schema"]
    for each, value in _values(media_type, schema, body):
        validate(each, value, what)
        if media_type == PROBLEM_MEDIA_TYPE:
            assert value["status"] == status, f"{what} says that its status is {value['status']}"


def _values(media_type: str, schema: Mapping[str, Any], body: bytes) -> list[tuple[Mapping[str, Any], Any]]:
    """The values to validate in a body, each with its schema."""
    if media_type in (JSON_MEDIA_TYPE, PROBLEM_MEDIA_TYPE):
        return [(schema, orjson.loads(body))]
    if media_type == STREAM:
        return [_batch_or_problem(line) for line in body.splitlines()]
    if media_type == CLOUD_EVENTS:
        lines = [orjson.loads(line) for line in body.splitlines()]
        return [({"$ref": "#/components/schemas/CloudEvent"}, each) for line in lines for each in line]
    if media_type == EVENT_STREAM:
        return [
            _batch_or_problem(line.removeprefix(b"data: ")) for line in body.splitlines() if line.startswith(b"data: ")
        ]
    return [(schema, body.decode())]


def _batch_or_problem(line: bytes) -> tuple[Mapping[str, Any], Any]:
    """A batch; the last line of a stream may be a Problem instead."""
    value = orjson.loads(line)
    return {"$ref": f"#/components/schemas/{'EventStreamBatch' if 'cursor' in value else 'Problem'}"}, value


def _as_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a schema of OpenAPI 3.0 into JSON Schema."""
    converted = {name: _convert(name, value) for name, value in schema.items() if name not in ("example", "nullable")}
    if "properties" in converted:
        converted.setdefault("additionalProperties", False)
    if schema.get("nullable"):
        converted["type"] = [converted["type"], "null"]
    return converted


def _convert(name: str, value: Any) -> Any:
    if name == "properties":
        return {key: _as_json_schema(each) for key, each in value.items()}
    if name in ("items", "additionalProperties") and isinstance(value, Mapping):
        return _as_json_schema(value)
    return value


@cache
def _templates() -> dict[tuple[str, int], list[tuple[list[str], str]]]:
    """The path templates with their operations, by method and number of segments."""
    table: dict[tuple[str, int], list[tuple[list[str], str]]] = {}
    for operation in openapi.operations().values():
        segments = operation.path.strip("/").split("/")
        table.setdefault((operation.method, len(segments)), []).append((segments, operation.id))
    return table


def _matches_template(template: list[str], segments: list[str]) -> bool:
    return all(mine.startswith("{") or mine == other for mine, other in zip(template, segments, strict=True))
