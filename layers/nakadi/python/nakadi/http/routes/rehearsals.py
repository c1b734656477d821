"""Rehearsals of schemas. A rehearsal runs in the process that received the request. A Lambda function is suspended
between requests, so these routes form a separate area, which functions do not serve.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Struct

from nakadi.http.bodies import ObjectReader, object_body
from nakadi.http.drafts import schema_draft
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.router import Route
from nakadi.http.views import View, timestamp
from nakadi.model.event_type import Category, CompatibilityMode, EnrichmentStrategy, SchemaDraft
from nakadi.model.outcomes import Violations
from nakadi.openapi.checks import openapi_violations
from nakadi.rehearsals.documents import RehearsalState
from nakadi.rehearsals.findings import Findings, RuleCount, Sample
from nakadi.rehearsals.history import Span
from nakadi.rehearsals.rehearsals import RehearsalDraft, Rehearsals, ShownRehearsal


class RehearsalHandlers(Struct, frozen=True):
    rehearsals: Rehearsals

    def routes(self) -> list[Route]:
        all_ = "/event-types/{name}/schemas/rehearsals"
        one = f"{all_}/{{rehearsal_id}}"
        return [
            Route(method="GET", template=all_, handler=self.list, operation="list_rehearsals"),
            Route(method="POST", template=all_, handler=self.start, operation="start_rehearsal"),
            Route(method="GET", template=one, handler=self.get, operation="get_rehearsal"),
            Route(method="DELETE", template=one, handler=self.remove, operation="remove_rehearsal"),
        ]

    def list(self, request: Request) -> Response:
        found = self.rehearsals.list(request.path_parameters["name"], request.subject)
        return json_response({"items": [_summary_view(each) for each in found]})

    def start(self, request: Request) -> Response:
        name = request.path_parameters["name"]
        shown = self.rehearsals.start(name, rehearsal_draft(object_body(request)), request.subject)
        status = 202 if shown.state is RehearsalState.RUNNING else 200
        place = f"/event-types/{name}/schemas/rehearsals/{shown.rehearsal.id}"
        return json_response(_rehearsal_view(shown), status, {"location": place})

    def get(self, request: Request) -> Response:
        parameters = request.path_parameters
        return json_response(
            _rehearsal_view(self.rehearsals.get(parameters["name"], parameters["rehearsal_id"], request.subject))
        )

    def remove(self, request: Request) -> Response:
        parameters = request.path_parameters
        self.rehearsals.remove(parameters["name"], parameters["rehearsal_id"], request.subject)
        return empty_response(204)


def rehearsal_draft(body: ObjectReader) -> RehearsalDraft:
    given = body.object("schema")
    schema = SchemaDraft() if given is None else schema_draft(given)
    missing = openapi_violations(
        "RehearsalDraft", {"schema": None if given is None else {"type": schema.type, "schema": schema.text}}
    )
    if missing:
        raise Violations(missing)
    return RehearsalDraft(
        schema=schema,
        span=Span.parse(body.text("last"), body.integer("events")),
        category=body.enum_value("category", Category),
        enrichment_strategies=body.enum_values("enrichment_strategies", EnrichmentStrategy),
        compatibility_mode=body.enum_value("compatibility_mode", CompatibilityMode),
    )


def _summary_view(shown: ShownRehearsal) -> View:
    rehearsal, found = shown.rehearsal, shown.rehearsal.findings
    span = {"last": rehearsal.span.last, "events": rehearsal.span.events}
    return {
        "id": rehearsal.id,
        "event_type": shown.event_type.name,
        "state": shown.state,
        **({"detail": rehearsal.detail} if rehearsal.detail else {}),
        **{name: value for name, value in span.items() if value is not None},
        "started_by": rehearsal.started_by,
        "started_at": timestamp(rehearsal.started_at),
        "updated_at": timestamp(rehearsal.updated_at),
        "events_expected": rehearsal.expected_count,
        "events_seen": found.seen_count,
        "events_failed": found.failed_count,
    }


def _rehearsal_view(shown: ShownRehearsal) -> View:
    found = shown.rehearsal.findings
    return {
        **_summary_view(shown),
        **_failure_times_view(found),
        "rules": [_rule_view(each) for each in found.rules],
        "other_rules": found.other_rule_count,
        "events_unexplained": found.unexplained_count,
        "published_by": [
            {"application": name or None, "events": count} for name, count in found.failed_by_publisher.items()
        ],
        "other_publishers": found.other_publisher_count,
        "samples": [_sample_view(sample, text) for sample, text in shown.samples],
    }


def _failure_times_view(found: Findings) -> View:
    if found.first_failed_at is None or found.last_failed_at is None:
        return {}
    return {"first_failed_at": timestamp(found.first_failed_at), "last_failed_at": timestamp(found.last_failed_at)}


def _rule_view(count: RuleCount) -> View:
    return {
        "rule": count.rule,
        "path": count.path,
        "events": count.event_count,
        "first_at": timestamp(count.first_at),
        "last_at": timestamp(count.last_at),
    }


def _sample_view(sample: Sample, text: bytes | None) -> View:
    event: Any = None if text is None else orjson.loads(text)
    return {
        "cursor": {"partition": str(sample.partition), "offset": str(sample.position)},
        "stored_at": timestamp(sample.stored_at),
        "rules": [{"rule": rule, "path": path} for rule, path in sample.rules],
        "event": event,
    }
