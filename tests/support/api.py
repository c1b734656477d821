"""Calls to a broker that many tests make."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.support.builders import a_name


def a_definition(**changes: Any) -> dict[str, Any]:
    """The body of a request that creates an event type, with only the mandatory fields; `schema` may be a dict."""
    schema = changes.pop("schema", {})
    definition = {
        "name": a_name(),
        "owning_application": "shop",
        "category": "undefined",
        "schema": {"type": "json_schema", "schema": schema if isinstance(schema, str) else json.dumps(schema)},
    }
    return definition | changes


def a_business_definition(**changes: Any) -> dict[str, Any]:
    return a_definition(**{"category": "business", "enrichment_strategies": ["metadata_enrichment"]} | changes)


def attributes(*names: str) -> list[dict[str, str]]:
    return [{"data_type": "user", "value": name} for name in names]


def an_authorization(admins: str = "ann", readers: str = "ann", writers: str = "ann") -> dict[str, Any]:
    """An authorization section; each argument has one name, or several separated by spaces."""
    return {
        "admins": attributes(*admins.split()),
        "readers": attributes(*readers.split()),
        "writers": attributes(*writers.split()),
    }


def create_event_type(api: httpx.Client, definition: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Create an event type, and return the registered definition."""
    definition = definition or a_definition(**changes)
    answer = api.post("/event-types", json=definition)
    assert answer.status_code == 201, answer.text
    return api.get(f"/event-types/{definition['name']}").json()


def problem(answer: httpx.Response, status: int) -> str:
    """Check the form of a Problem, and return its detail."""
    body = answer.json()
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["status"] == status
    assert body["type"].startswith("http")
    assert body["title"]
    return body.get("detail", "")


def violations(answer: httpx.Response) -> set[str]:
    """The lines of a refusal that lists what is wrong, field by field."""
    detail = problem(answer, 422)
    assert answer.json()["type"] == "http://httpstatus.es/422"
    assert detail.endswith("\n")
    return set(detail.splitlines())
