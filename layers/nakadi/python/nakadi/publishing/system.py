"""Events that the broker itself publishes: its audit log, and what becomes of event types and subscriptions.

They go the way of all events, into event types of the broker's own, which are made when they are first needed. A
failure to publish one is logged, and never fails the request that it tells of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import orjson

from nakadi.catalog.creation import Creation
from nakadi.catalog.event_types import EventTypes
from nakadi.model.authorization import Subject
from nakadi.model.event_type import Category, EnrichmentStrategy, EventTypeDraft
from nakadi.model.outcomes import Fault, Outcome
from nakadi.model.schema import SchemaDraft, SchemaType
from nakadi.ports import Clock
from nakadi.publishing.outcome import Verdict
from nakadi.publishing.pipeline import Publisher

log = logging.getLogger(__name__)

BROKER = Subject(name="nakadi", trusted=True)

AUDIT_LOG = "nakadi.audit.log"
EVENT_TYPE_LOG = "nakadi.event.type.log"
SUBSCRIPTION_LOG = "nakadi.subscription.log"

AUDIT_SCHEMA = {
    "type": "object",
    "properties": {
        "previous_object": {},
        "previous_text": {"type": "string"},
        "new_object": {},
        "new_text": {"type": "string"},
        "resource_type": {"type": "string"},
        "resource_id": {"type": "string"},
        "user": {"type": "string"},
        "user_hash": {"type": "string"},
    },
    "required": ["resource_type", "resource_id", "user"],
}

EVENT_TYPE_LOG_SCHEMA = {
    "type": "object",
    "properties": {
        "event_type": {"type": "string"},
        "status": {"type": "string"},
        "category": {"type": "string"},
        "authz": {"type": "string"},
        "compatibility_mode": {"type": "string"},
    },
    "required": ["event_type", "status"],
}

SUBSCRIPTION_LOG_SCHEMA = {
    "type": "object",
    "properties": {"subscription_id": {"type": "string"}, "status": {"type": "string"}},
    "required": ["subscription_id", "status"],
}

DRAFTS: Mapping[str, Callable[[], EventTypeDraft]] = {
    AUDIT_LOG: lambda: _draft(AUDIT_LOG, Category.DATA, AUDIT_SCHEMA),
    EVENT_TYPE_LOG: lambda: _draft(EVENT_TYPE_LOG, Category.BUSINESS, EVENT_TYPE_LOG_SCHEMA),
    SUBSCRIPTION_LOG: lambda: _draft(SUBSCRIPTION_LOG, Category.BUSINESS, SUBSCRIPTION_LOG_SCHEMA),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemEvents:
    event_types: EventTypes
    creation: Creation
    publisher: Publisher
    clock: Clock

    def publish(self, name: str, event: Mapping[str, Any], flow_id: str) -> None:
        """Publish an event without metadata to one of the broker's own event types."""
        complete = {"metadata": _metadata(self.clock.now()), **event}
        try:
            if self.event_types.find(name) is None:
                self.creation.create_own(DRAFTS[name]())
            outcome = self.publisher.publish(name, orjson.dumps([complete]), BROKER, flow_id)
        except (Outcome, Fault):
            log.warning("An event of the broker's own could not be published to %s", name, exc_info=True)
            return
        if outcome.verdict is not Verdict.STORED:
            log.warning("An event of the broker's own was not stored in %s: %s", name, outcome.items)


def _metadata(now: datetime) -> dict[str, str]:
    return {"eid": str(uuid4()), "occurred_at": now.isoformat()}


def _draft(name: str, category: Category, schema: Mapping[str, Any]) -> EventTypeDraft:
    return EventTypeDraft(
        name=name,
        owning_application=BROKER.name,
        category=category,
        schema=SchemaDraft(type=SchemaType.JSON, text=orjson.dumps(schema).decode()),
        enrichment_strategies=(EnrichmentStrategy.METADATA,),
    )
