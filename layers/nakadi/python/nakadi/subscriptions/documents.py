"""Subscriptions as the registry's JSON documents, there and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nakadi.catalog.documents import authorization_body, authorization_of
from nakadi.model.subscription import ReadFrom, Subscription, SubscriptionCursor
from nakadi.ports import Document

Body = Mapping[str, Any]


def subscription_body(subscription: Subscription) -> Body:
    authorization = subscription.authorization
    return {
        "owning_application": subscription.owning_application,
        "event_types": list(subscription.event_types),
        "consumer_group": subscription.consumer_group,
        "read_from": subscription.read_from.value,
        "initial_cursors": [[each.event_type, each.partition, each.offset] for each in subscription.initial_cursors],
        "authorization": None if authorization is None else authorization_body(authorization),
        "annotations": dict(subscription.annotations),
        "labels": dict(subscription.labels),
        "created_at": subscription.created_at.isoformat(),
        "updated_at": subscription.updated_at.isoformat(),
    }


def subscription_of(document: Document) -> Subscription:
    body = document.body
    authorization = body["authorization"]
    return Subscription(
        id=document.key,
        owning_application=body["owning_application"],
        event_types=tuple(body["event_types"]),
        consumer_group=body["consumer_group"],
        read_from=ReadFrom(body["read_from"]),
        initial_cursors=tuple(SubscriptionCursor(*each) for each in body["initial_cursors"]),
        authorization=None if authorization is None else authorization_of(authorization),
        annotations=body["annotations"],
        labels=body["labels"],
        created_at=datetime.fromisoformat(body["created_at"]),
        updated_at=datetime.fromisoformat(body["updated_at"]),
        revision=document.revision,
    )
