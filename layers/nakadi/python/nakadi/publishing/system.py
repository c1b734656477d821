"""Events that the broker itself publishes: its audit log, and what becomes of event types and subscriptions.

They go the way of all events, into event types of the broker's own, which are made when they are first needed. A
failure to publish one is logged, and never fails the request that it tells of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import uuid4

import orjson

from nakadi.catalog.system_event_types import SystemEventTypes
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import Fault, Outcome
from nakadi.ports import Clock
from nakadi.publishing.outcome import Verdict
from nakadi.publishing.pipeline import Publisher

log = logging.getLogger(__name__)

BROKER = Subject(name="nakadi", trusted=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemEvents:
    own: SystemEventTypes
    publisher: Publisher
    clock: Clock

    def publish(self, name: str, event: Mapping[str, Any], flow_id: str) -> None:
        """Publish an event without metadata to one of the broker's own event types."""
        complete = {"metadata": _metadata(self.clock.now()), **event}
        try:
            self.own.ensure(name)
            outcome = self.publisher.publish(name, orjson.dumps([complete]), BROKER, flow_id)
        except (Outcome, Fault):
            log.warning("An event of the broker's own could not be published to %s", name, exc_info=True)
            return
        if outcome.verdict is not Verdict.STORED:
            log.warning("An event of the broker's own was not stored in %s: %s", name, outcome.items)


def hashing(salt: str) -> Callable[[str], str]:
    """Names of subjects as texts that say nothing to those who do not know the salt."""
    return lambda name: sha256((salt + name).encode()).hexdigest()


def _metadata(now: datetime) -> dict[str, str]:
    return {"eid": str(uuid4()), "occurred_at": now.isoformat()}
