"""Dead letters: what becomes of an event that consumers failed at so often that it is given up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import orjson

from nakadi.catalog.system_event_types import SystemEventTypes
from nakadi.consuming.actions import Drop
from nakadi.consuming.policy import Unprocessable, policy_of
from nakadi.metrics import Metrics
from nakadi.model.outcomes import TryLater
from nakadi.model.subscription import Subscription
from nakadi.ports import Clock
from nakadi.publishing import outcome as publishing_outcome
from nakadi.publishing.pipeline import Publisher
from nakadi.publishing.system import BROKER

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The store of a broker: an event type of its own."""

    own: SystemEventTypes
    publisher: Publisher
    clock: Clock
    name: str
    metrics: Metrics = field(default_factory=Metrics)

    def keep(self, subscription_id: str, drop: Drop) -> None:
        """Publish an event to the store. Raises `TryLater` if that did not work."""
        self.own.ensure(self.name)
        letter = {**letter_of(subscription_id, drop), "metadata": self._metadata()}
        try:
            outcome = self.publisher.publish(self.name, orjson.dumps([letter]), BROKER, flow_id="")
        except Exception:
            self.metrics.dead_letters.add(1, "failed")
            raise
        self.metrics.dead_letters.add(1, "stored" if outcome.verdict is publishing_outcome.Verdict.STORED else "failed")
        if outcome.verdict is not publishing_outcome.Verdict.STORED:
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
        else:
            self.letters.metrics.events_skipped.add()


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
