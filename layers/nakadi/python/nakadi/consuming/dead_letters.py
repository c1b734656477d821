"""Dead letters: what becomes of an event that consumers failed at so often that it is given up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson

from nakadi.catalog.creation import Creation
from nakadi.catalog.event_types import EventTypes
from nakadi.consuming.actions import Drop
from nakadi.consuming.policy import Unprocessable, policy_of
from nakadi.model.authorization import AttributeDraft, AuthorizationDraft
from nakadi.model.event_type import Audience, Category, EnrichmentStrategy, EventTypeDraft
from nakadi.model.outcomes import TryLater
from nakadi.model.schema import SchemaDraft, SchemaType
from nakadi.model.subscription import Subscription
from nakadi.ports import Clock
from nakadi.publishing.outcome import Verdict
from nakadi.publishing.pipeline import Publisher
from nakadi.publishing.system import BROKER

RETENTION_MS = 86_400_000

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["subscription_id", "event_type", "partition", "offset", "error", "event"],
    "properties": {
        "subscription_id": {"type": "string", "format": "uuid"},
        "event_type": {"type": "string"},
        "partition": {"type": "string"},
        "offset": {"type": "string"},
        "error": {
            "type": "object",
            "additionalProperties": False,
            "required": ["message"],
            "properties": {"message": {"type": "string"}},
        },
        "event": {
            "type": "object",
            "additionalProperties": True,
            "required": ["metadata"],
            "properties": {
                "metadata": {
                    "type": "object",
                    "additionalProperties": True,
                    "required": ["event_type", "eid", "occurred_at"],
                    "properties": {
                        "event_type": {"type": "string"},
                        "eid": {"type": "string", "format": "uuid"},
                        "occurred_at": {"type": "string", "format": "date-time"},
                    },
                }
            },
        },
    },
}


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The store of a broker: an event type of its own, made when it is first needed."""

    event_types: EventTypes
    creation: Creation
    publisher: Publisher
    clock: Clock
    name: str
    owner: str

    def keep(self, subscription_id: str, drop: Drop) -> None:
        """Publish an event to the store. Raises `TryLater` if that did not work."""
        if self.event_types.find(self.name) is None:
            self.creation.create_own(draft(self.name, self.owner))
        letter = {**letter_of(subscription_id, drop), "metadata": self._metadata()}
        outcome = self.publisher.publish(self.name, orjson.dumps([letter]), BROKER, flow_id="")
        if outcome.verdict is not Verdict.STORED:
            log.warning("A dead letter was not stored in %s: %s", self.name, outcome.items)
            raise TryLater(f"A dead letter was not stored in {self.name}")

    def _metadata(self) -> Mapping[str, str]:
        return {"eid": str(uuid4()), "occurred_at": self.clock.now().isoformat()}


@dataclass(frozen=True, slots=True)
class Undertaker:
    """Deals with a subscription's unprocessable events as its policy says."""

    letters: DeadLetters
    subscription: Subscription

    def bury(self, drop: Drop) -> None:
        policy = policy_of(self.subscription.annotations)
        if policy is not None and policy.kind is Unprocessable.DEAD_LETTER_QUEUE:
            self.letters.keep(self.subscription.id, drop)


def letter_of(subscription_id: str, drop: Drop) -> Mapping[str, Any]:
    """What is told of a dropped event, without metadata of its own."""
    return {
        "subscription_id": subscription_id,
        "event_type": drop.place.event_type,
        "partition": drop.place.partition,
        "offset": str(drop.event.end),
        "error": {"message": f"Nakadi Auto DLQ: skipped due to failed commits count: {drop.fails}"},
        "event": _with_metadata(drop),
    }


def _with_metadata(drop: Drop) -> Mapping[str, Any]:
    """The event. What the store insists on and the event does not have is made up, so that every event can go there."""
    event: dict[str, Any] = orjson.loads(drop.event.values[0])
    known = event.get("metadata")
    made_up = {
        "event_type": drop.place.event_type,
        "eid": str(uuid4()),
        "occurred_at": drop.event.stored_at(0).isoformat(),
    }
    return {**event, "metadata": {**made_up, **known} if isinstance(known, dict) else made_up}


def draft(name: str, owner: str) -> EventTypeDraft:
    everybody = (AttributeDraft("*", "*"),)
    return EventTypeDraft(
        name=name,
        owning_application=owner,
        category=Category.BUSINESS,
        schema=SchemaDraft(type=SchemaType.JSON, text=orjson.dumps(SCHEMA).decode()),
        enrichment_strategies=(EnrichmentStrategy.METADATA,),
        retention_time=RETENTION_MS,
        audience=Audience.COMPONENT_INTERNAL,
        authorization=AuthorizationDraft(admins=everybody, readers=everybody, writers=everybody),
    )
