"""The check of every test's answers: it accepts the described ones, and no others."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from nakadi import openapi
from tests.support.openapi import assert_answer_matches, operation_at

PARTITION = openapi.document()["components"]["schemas"]["Partition"]["example"]
PROBLEM = {"type": "http://httpstatus.es/404", "title": "Not Found", "status": 404, "detail": "partition not found"}
BATCH = {"cursor": {"partition": "0", "offset": "001-0001-000000000000000000"}, "events": [{"a": 1}]}


def check(operation: str | None, status: int, content: Any = None, *, as_: str = "json", **rest: Any) -> None:
    family = "text" if as_ == "event-stream" else "application"
    given = {"x-flow-id": "a-flow", "content-type": f"{family}/{as_}; charset=utf-8"}
    headers = given | ({"warning": "299"} if operation == "stream_events" else {}) | rest.pop("headers", {})
    body = content if isinstance(content, bytes) else b"" if content is None else orjson.dumps(content)
    assert_answer_matches(operation, status, headers, body, **rest)


@pytest.mark.parametrize(
    ("operation", "status", "content", "kind"),
    [
        ("get_partition", 200, PARTITION, "json"),
        ("get_partition", 404, PROBLEM, "problem+json"),
        ("get_partition", 404, PROBLEM, "x.problem+json"),
        ("delete_event_type", 200, None, "json"),
        ("publish_events", 200, None, "json"),
        ("add_schema", 200, None, "json"),
        (
            "stream_events",
            200,
            orjson.dumps(BATCH) + b"\n" + orjson.dumps({"cursor": BATCH["cursor"]}),
            "x-json-stream",
        ),
        ("stream_events", 200, orjson.dumps(BATCH) + b"\n" + orjson.dumps(PROBLEM), "x-json-stream"),
        (
            "stream_events",
            200,
            b"retry: 3000\nid: []\n\nid: []\ndata: " + orjson.dumps(BATCH) + b"\n\n",
            "event-stream",
        ),
        (None, 404, PROBLEM, "problem+json"),
        ("get_partition", 413, PROBLEM | {"status": 413}, "problem+json"),
    ],
)
def test_described_answer_passes(operation: str | None, status: int, content: Any, kind: str) -> None:
    """An answer that is described is accepted."""
    check(operation, status, content, as_=kind)


@pytest.mark.parametrize(
    ("operation", "status", "content", "kind", "complaint"),
    [
        ("get_partition", 418, PROBLEM, "problem+json", "answered 418"),
        ("get_partition", 200, {**PARTITION, "surprise": 1}, "json", "surprise"),
        ("get_partition", 200, {"partition": "0"}, "json", "oldest_available_offset"),
        ("get_partition", 200, {**PARTITION, "unconsumed_events": "4"}, "json", "unconsumed_events"),
        ("get_partition", 200, None, "json", "without a body"),
        ("get_partition", 404, PROBLEM, "json", "came as application/json"),
        ("get_partition", 404, PROBLEM | {"status": 400}, "problem+json", "says that its status is 400"),
        ("delete_event_type", 200, {}, "json", "came as application/json"),
        ("create_event_type", 201, None, "json", "without Warning"),
        ("stream_events", 200, orjson.dumps({"cursor": {"partition": "0"}}), "x-json-stream", "offset"),
        ("stream_events", 200, b'id: []\ndata: {"cursor":{}}\n\n', "event-stream", "partition"),
        (None, 200, {}, "json", "for no operation"),
    ],
)
def test_other_answer_is_found_out(operation: str | None, status: int, content: Any, kind: str, complaint: str) -> None:
    """An answer that is not described is reported with its fault."""
    with pytest.raises(AssertionError, match=complaint):
        check(operation, status, content, as_=kind)


def test_flow_id_is_insisted_on() -> None:
    """An answer without a flow id is refused. (R38)"""
    with pytest.raises(AssertionError, match="X-Flow-Id"):
        check("get_health", 200, b"OK", headers={"x-flow-id": ""})


def test_heads_and_options_have_no_bodies() -> None:
    """`HEAD` must have the headers of `GET`, and `OPTIONS` must list the methods. (R27)"""
    check("get_partition", 200, None, method="HEAD")
    check(None, 200, None, method="OPTIONS", headers={"allow": "GET, HEAD, OPTIONS"})
    with pytest.raises(AssertionError, match="Allow"):
        check(None, 200, None, method="OPTIONS")


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("GET", "/event-types", "list_event_types"),
        ("HEAD", "/event-types/", "list_event_types"),
        ("GET", "/event-types/a.b/schemas/latest?x=1", "get_schema"),
        ("PUT", "/storages/default/s3", "set_default_storage"),
        ("GET", "/storages/default", "get_storage"),
        ("PATCH", "/event-types", None),
        ("GET", "/nothing/here", None),
    ],
)
def test_operation_is_found(method: str, path: str, operation: str | None) -> None:
    """A request belongs to the operation with its method and path, if there is such an operation."""
    assert operation_at(method, path) == operation
