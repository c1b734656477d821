"""Subscriptions and their cursors in JSON: what requests ask for, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from nakadi.http.bodies import Members, cannot_read, json_body
from nakadi.http.drafts import authorization_draft
from nakadi.http.message import Request
from nakadi.http.views import View, attributes_view, timestamp
from nakadi.model.authorization import Authorization
from nakadi.model.coordination import Verdict
from nakadi.model.cursor import Position
from nakadi.model.outcomes import Violations
from nakadi.model.subscription import (
    EventTypePartition,
    ReadFrom,
    Subscription,
    SubscriptionCursor,
    SubscriptionCursorDraft,
    SubscriptionDraft,
)
from nakadi.openapi.checks import body_violations, conforms
from nakadi.subscriptions.api.stats import EventTypeStats, PartitionStats

# Reading


def subscription_draft(body: Members) -> SubscriptionDraft:
    authorization = body.object("authorization")
    given: dict[str, Any] = {}
    if "consumer_group" in body:
        given["consumer_group"] = body.text("consumer_group")
    if "read_from" in body:
        given["read_from"] = body.word("read_from", ReadFrom)
    return SubscriptionDraft(
        owning_application=body.text("owning_application"),
        event_types=_event_types(body),
        initial_cursors=tuple(cursor_draft(each) for each in body.objects("initial_cursors") or ()),
        authorization=None if authorization is None else authorization_draft(authorization),
        annotations=body.mapping("annotations"),
        labels=body.mapping("labels"),
        **given,
    )


def _event_types(body: Members) -> tuple[str, ...] | None:
    """They are a set: in whatever order they come, and however often."""
    if "event_types" not in body:
        return None
    names = body.texts("event_types")
    if names is None:
        raise cannot_read(None, "a list", body.at("event_types"))
    known = {name for name in names if name is not None}
    if None in names:
        raise cannot_read(None, "a text", body.at("event_types"))
    return tuple(sorted(known))


def cursor_draft(body: Members) -> SubscriptionCursorDraft:
    return SubscriptionCursorDraft(body.text("event_type"), body.text("partition"), body.text("offset"))


def listed_cursors(request: Request, *, with_tokens: bool) -> tuple[Sequence[SubscriptionCursor], Sequence[str]]:
    """The cursors of a commit or a reset, and the tokens that they came with."""
    schema, body = "SubscriptionCursorList" if with_tokens else "CursorResetList", json_body(request)
    if not conforms(schema, body):
        body = _forgivingly(Members.of(body))
        found = body_violations(schema, body)
        if found:
            raise Violations(found)
    items = body["items"]
    cursors = [SubscriptionCursor(each["event_type"], each["partition"], each["offset"]) for each in items]
    return cursors, [each["cursor_token"] for each in items] if with_tokens else ()


def _forgivingly(body: Members) -> dict[str, Any]:
    """The body of a commit or a reset with texts in the place of other scalars."""
    items = body.objects("items")
    names = ("event_type", "partition", "offset", "cursor_token")
    return {"items": None if items is None else [{name: each.text(name) for name in names} for each in items]}


# Writing


def subscription_view(subscription: Subscription, status: Sequence[EventTypeStats] | None = None) -> View:
    view: View = {
        "owning_application": subscription.owning_application,
        "event_types": subscription.event_types,
        "consumer_group": subscription.consumer_group,
        "read_from": subscription.read_from,
        "initial_cursors": [_cursor_view(each) for each in subscription.initial_cursors],
        "authorization": _authorization_view(subscription.authorization),
        "annotations": subscription.annotations,
        "labels": subscription.labels,
        "id": subscription.id,
        "created_at": timestamp(subscription.created_at),
        "updated_at": timestamp(subscription.updated_at),
    }
    if status is not None:
        view["status"] = stats_view(status)
    return view


def _authorization_view(authorization: Authorization | None) -> View | None:
    if authorization is None:
        return None
    return {"admins": attributes_view(authorization.admins), "readers": attributes_view(authorization.readers)}


def _cursor_view(cursor: SubscriptionCursor) -> View:
    return {"event_type": cursor.event_type, "partition": cursor.partition, "offset": cursor.offset}


def committed_view(committed: Sequence[tuple[EventTypePartition, Position]]) -> View:
    return {
        "items": [
            {
                "partition": place.partition,
                "offset": str(position),
                "event_type": place.event_type,
                "cursor_token": str(uuid4()),
            }
            for place, position in committed
        ]
    }


def results_view(
    cursors: Sequence[SubscriptionCursor], tokens: Sequence[str], verdicts: Sequence[Verdict]
) -> Mapping[str, Any]:
    """What became of each cursor, which is told as it was sent."""
    return {
        "items": [
            {
                "cursor": {
                    "partition": cursor.partition,
                    "offset": cursor.offset,
                    "event_type": cursor.event_type,
                    "cursor_token": token,
                },
                "result": verdict,
            }
            for cursor, token, verdict in zip(cursors, tokens, verdicts, strict=True)
        ]
    }


def stats_view(stats: Sequence[EventTypeStats]) -> list[View]:
    return [
        {"event_type": each.event_type, "partitions": [_partition_view(partition) for partition in each.partitions]}
        for each in stats
    ]


def _partition_view(stats: PartitionStats) -> View:
    view: View = {
        "partition": stats.partition,
        "state": stats.state,
        "unconsumed_events": stats.unconsumed,
        "consumer_lag_seconds": stats.lag_seconds,
        "stream_id": stats.stream_id,
        "assignment_type": stats.assignment_type,
        "stalled": stats.stalled or None,
    }
    return {name: value for name, value in view.items() if value is not None}
