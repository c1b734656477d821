"""A publisher whose whole environment is in memory, and events for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nakadi.auth.admins import Admins
from nakadi.auth.blacklist import Blacklist
from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.caching import Cache
from nakadi.common.metrics import Metrics
from nakadi.common.waiting import Task, run_blocking
from nakadi.engines.memory.eid_claims import MemoryEidClaims
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.repository import EventTypes
from nakadi.model.authorization import UNAUTHENTICATED, Attribute, Subject
from nakadi.model.event_type import Category, EnrichmentStrategy, EventType, Version
from nakadi.model.events import AppendRefused, AppendResult, Record
from nakadi.ports.deduplication import DeduplicatingLog, EventIds
from nakadi.ports.event_log import EventLog
from nakadi.publishing.batch import BatchLimits, BatchOutcome, BatchStatus
from nakadi.publishing.claimed_append import LogDeduplication
from nakadi.publishing.publisher import BatchSender, Publisher, ValidatorCache
from nakadi.publishing.system_events import KpiCollector, name_hasher
from tests.support.builders import a_schema, an_event_type
from tests.support.clock import HandMovedClock
from tests.support.registry import settings_document

EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
ANN = Subject(name="ann", attributes=frozenset({Attribute("user", "ann")}))


def metadata(**changes: Any) -> dict[str, Any]:
    return {"eid": EID, "occurred_at": "2026-11-21T12:00:00Z"} | changes


def a_business_type(*, schema: Any = None, version: str = "1.0.0", **changes: Any) -> EventType:
    return an_event_type(
        **{
            "category": Category.BUSINESS,
            "enrichment_strategies": (EnrichmentStrategy.METADATA,),
            "schema": a_schema(json.dumps(schema or {}), version=Version.parse(version)),
        }
        | changes
    )


class UnreliableLog:
    """A log whose partitions refuse appends, and whose appends raise, when a test wants it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.refusing: dict[int, str] = {}
        self.troubles: list[Exception] = []
        self.appends: list[tuple[str, Mapping[int, Sequence[Record]]]] = []

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        return await self._append(topic, batches, self._log.append)

    async def append_once(
        self, topic: str, batches: Mapping[int, Sequence[Record]], ids: EventIds
    ) -> Mapping[int, AppendResult]:
        assert isinstance(self._log, DeduplicatingLog)
        return await self._append(topic, batches, partial(self._log.append_once, ids=ids))

    async def _append(
        self,
        topic: str,
        batches: Mapping[int, Sequence[Record]],
        append: Callable[[str, Mapping[int, Sequence[Record]]], Task[Mapping[int, AppendResult]]],
    ) -> Mapping[int, AppendResult]:
        if self.troubles:
            raise self.troubles.pop(0)
        self.appends.append((topic, batches))
        accepted = {partition: each for partition, each in batches.items() if partition not in self.refusing}
        refused = {
            partition: AppendRefused(self.refusing[partition]) for partition in batches if partition in self.refusing
        }
        return {**await append(topic, accepted), **refused}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class PublisherInMemory:
    """`pauses` has the seconds of the publisher's waits; during a wait, the clock moves and `while_waiting` is called.
    `told` has the figures that `figures` has published.
    """

    def __init__(self, log: EventLog | None = None) -> None:
        self.clock = HandMovedClock()
        self.log = UnreliableLog(log or MemoryLog(self.clock))
        registry = MemoryRegistry()
        self.event_types = EventTypes(registry, Cache(self.clock, 1))
        # The event types as another process sees and changes them.
        self.elsewhere = EventTypes(registry, Cache(self.clock, 1))
        self.features = Features(settings_document("features"))
        self.blacklist = Blacklist(settings_document("blacklist"))
        admins = Admins(settings_document("admins"), self.features, ())
        self.permissions = Permissions(admins, self.blacklist, ())
        self.draws: list[float] = []
        self.pauses: list[float] = []
        self.while_waiting = lambda: None
        self.publisher = Publisher(
            event_types=self.event_types,
            validators=ValidatorCache(),
            permissions=self.permissions,
            features=self.features,
            logs=self,
            deduplication=LogDeduplication(self, MemoryEidClaims, self.clock),
            clock=self.clock,
            limits=BatchLimits(),
            metrics=Metrics(),
            sleep=self._pause,
            draw_random_number=self._draw,
        )

        self.told: list[dict[str, Any]] = []
        self.figures = KpiCollector(
            features=self.features,
            publish=self._pretend_to_store,
            clock=self.clock,
            hash_name=name_hasher("salt"),
            count=lambda _what, _number: None,
            write_interval_seconds=None,
        )

    def _pretend_to_store(self, _event_type: str, body: bytes) -> BatchOutcome:
        self.told += json.loads(body)
        return BatchOutcome(BatchStatus.STORED)

    def for_storage(self, _storage_id: str) -> UnreliableLog:
        return self.log

    def add(self, event_type: EventType) -> EventType:
        self.log.create_topic(event_type.timeline.topic, event_type.timeline.partitions)
        self.event_types.add(event_type)
        return event_type

    def publish(
        self, event_type: EventType, body: Any, subject: Subject = UNAUTHENTICATED, **more: Any
    ) -> BatchOutcome:
        sender = BatchSender(subject=subject, flow_id="the-flow", **more)
        return run_blocking(self.publisher.publishing_task(event_type.name, as_body(body), sender))

    def delete(self, event_type: EventType, body: Any, subject: Subject = UNAUTHENTICATED) -> BatchOutcome:
        return run_blocking(
            self.publisher.deletion_task(
                event_type.name, as_body(body), BatchSender(subject=subject, flow_id="the-flow")
            )
        )

    def records(self, event_type: EventType, partition: int = 0) -> list[Record]:
        found = self.log.read(event_type.timeline.topic, partition, 0)
        return [event.record for event in found.events]

    def texts(self, event_type: EventType, partition: int = 0) -> list[str]:
        return [(record.value or b"").decode() for record in self.records(event_type, partition)]

    def stored(self, event_type: EventType, partition: int = 0) -> list[Any]:
        return [json.loads(text) for text in self.texts(event_type, partition)]

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.move(seconds)
        self.while_waiting()

    def _draw(self) -> float:
        return self.draws.pop(0) if self.draws else 0.0


def as_body(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def statuses_and_steps(outcome: BatchOutcome) -> list[tuple[str, str]]:
    return [(item.publishing_status.value, item.step.value) for item in outcome.items]


def the_failure(outcome: BatchOutcome) -> tuple[str, str]:
    """The step and the detail of the only item that failed."""
    [failed] = [item for item in outcome.items if item.publishing_status == "failed"]
    return failed.step.value, failed.detail
