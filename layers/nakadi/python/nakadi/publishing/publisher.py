"""Publishing: ownership, validate, partition, key, enrich, append.

Each step works on the whole batch, and the first to find an event wanting gives the batch up. Up to the last step
nothing is stored and nothing is changed, so that a batch can simply begin anew when its event type has moved to another
timeline.
"""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from nakadi.auth.administration import Features
from nakadi.auth.permissions import Permissions
from nakadi.event_types.repository import BUSY, EventTypes
from nakadi.metrics import Metrics
from nakadi.model.administration import Feature
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import EventType
from nakadi.model.events import Fate, Record, Refused
from nakadi.model.outcomes import NotPermitted, TryLater, Unavailable
from nakadi.model.schema import Schema, SchemaType
from nakadi.model.timeline import Timeline
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLogs, SealedTopic, UnknownTopic
from nakadi.publishing.batch import Batch, BatchLimits, Effort, Piece, memory_needed, read
from nakadi.publishing.enrich import Origin, enriched, keys_of
from nakadi.publishing.outcome import BatchOutcome, PublishingStatus, Rejected, Step, Verdict, appended, rejected
from nakadi.publishing.partition import Draw, placed
from nakadi.publishing.validate import Owners, check_owners, check_sizes, effective_schema_of, owners_of, validate
from nakadi.schemas.validation import Validators
from nakadi.turns import Turns, still_there

log = logging.getLogger(__name__)

# A switch of timelines takes well under a second; whoever waits asks again this often.
ASK_AGAIN_SECONDS = 0.05

Attempt = Callable[[EventType], BatchOutcome]
Gone = Callable[[], bool]

# It takes a while to parse, and no other thread can do anything meanwhile.
LONG_BODY = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A batch, who brings it and may have gone since, and for whom it is meant."""

    batch: Batch
    subject: Subject
    flow_id: str
    directed_to: str | None = None
    gone: Gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Takes batches of events in. `most_wait` is how many seconds a batch waits for maintenance to be over."""

    event_types: EventTypes
    validators: Validators
    permissions: Permissions
    features: Features
    logs: EventLogs
    clock: Clock
    limits: BatchLimits
    turns: Turns = field(default_factory=Turns)
    metrics: Metrics = field(default_factory=Metrics)
    most_wait: float = 40.0
    pause: Callable[[float], None] = time.sleep
    draw: Draw = random.random

    def memory_needed(self, body: bytes) -> int:
        """About how many bytes publishing this body takes beside it, at most."""
        return memory_needed(body, self.limits)

    def publish(
        self,
        event_type: str,
        body: bytes,
        subject: Subject,
        flow_id: str,
        directed_to: str | None = None,
        gone: Gone = still_there,
    ) -> BatchOutcome:
        """Store the events of a body; raises what keeps it from being looked at, such as `Malformed` or `NotFound`."""
        batch = self._read(body, gone)
        delivery = Delivery(batch=batch, subject=subject, flow_id=flow_id, directed_to=directed_to, gone=gone)
        outcome = self._carried_out(event_type, subject, lambda current: self._published(delivery, current))
        if outcome.verdict is Verdict.STORED:
            self.metrics.stored(event_type, outcome.stored, len(body))
        else:
            stored = self._count_refused(event_type, outcome)
            if stored:
                self.metrics.stored(event_type, stored, len(body))
        return outcome

    def delete(
        self, event_type: str, body: bytes, subject: Subject, flow_id: str, gone: Gone = still_there
    ) -> BatchOutcome:
        """Store a tombstone for each event of a body."""
        delivery = Delivery(batch=self._read(body, gone), subject=subject, flow_id=flow_id, gone=gone)
        outcome = self._carried_out(event_type, subject, lambda current: self._deleted(delivery, current))
        stored = outcome.stored if outcome.verdict is Verdict.STORED else self._count_refused(event_type, outcome)
        self.metrics.events_deleted.add(stored, event_type)
        return outcome

    def _count_refused(self, event_type: str, outcome: BatchOutcome) -> int:
        """Count the events of a batch that were not stored; how many were."""
        stored = sum(each.publishing_status is PublishingStatus.SUBMITTED for each in outcome.items)
        self.metrics.events_refused.add(len(outcome.items) - stored, event_type, outcome.step)
        return stored

    def _read(self, body: bytes, gone: Gone) -> Batch:
        if len(body) <= LONG_BODY:
            return read(body, self.limits, lambda: self.turns.turn(gone))
        with self.turns.turn(gone):
            return read(body, self.limits)

    def _effort(self, delivery: Delivery) -> Effort:
        # A long batch is parsed again by each step.
        is_long = not isinstance(delivery.batch, Piece)
        return Effort(self.limits.steps, self.turns, delivery.gone, is_long=is_long)

    def _published(self, delivery: Delivery, event_type: EventType) -> BatchOutcome:
        events = delivery.batch.events
        try:
            with self._effort(delivery) as effort:
                owners = self._owners(delivery, event_type)
                schema = self._validate(delivery, event_type, effort)
                places = placed(event_type, events, self.draw, effort)
                keys = keys_of(event_type, events, places)
                partitions = [partition for partition, _ in places]
                values = enriched(event_type, delivery.batch, self._origin(delivery, schema), partitions)
        except Rejected as rejection:
            return rejected(events, rejection)
        records = map(Record._make, zip(values, keys, owners, repeat(delivery.directed_to)))
        return self._append(delivery, event_type, partitions, records)

    def _deleted(self, delivery: Delivery, event_type: EventType) -> BatchOutcome:
        events = delivery.batch.events
        try:
            owners = self._owners(delivery, event_type)
            self._check_deletable(delivery, event_type)
            with self._effort(delivery) as effort:
                places = placed(event_type, events, self.draw, effort)
                keys = keys_of(event_type, events, places)
        except Rejected as rejection:
            return rejected(events, rejection)
        partitions = [partition for partition, _ in places]
        tombstones = map(Record, repeat(None), keys, owners)
        return self._append(delivery, event_type, partitions, tombstones)

    def _carried_out(self, name: str, subject: Subject, attempt: Attempt) -> BatchOutcome:
        """Attempt until the event type's current timeline is open, or for as long as one may be kept waiting.

        What is remembered of an event type may be of one that another process has changed since, or deleted and made
        again. Nothing is refused for that: before a refusal it is looked at once more. Nothing is let in for it either:
        the topic of a deleted event type is gone, and whoever comes to another one is asked for permission again.
        """
        event_type = self.event_types.cached(name)
        deadline = self.clock.monotonic() + self.most_wait
        while True:
            try:
                self.permissions.require(Operation.WRITE, event_type.resource, subject)
                outcome = attempt(event_type)
            except (SealedTopic, UnknownTopic):
                event_type = self._moved(event_type, deadline)
                continue
            except NotPermitted:
                newer = self._newer(event_type, deadline)
                if newer is None:
                    raise
                event_type = newer
                continue
            newer = self._newer(event_type, deadline) if outcome.verdict is Verdict.REJECTED else None
            if newer is None:
                return outcome
            event_type = newer

    def _newer(self, event_type: EventType, deadline: float) -> EventType | None:
        """The event type of this name, if it is not as it was remembered."""
        current = self.event_types.get(event_type.name)
        same = (current.id, current.revision) == (event_type.id, event_type.revision)
        return None if same or self.clock.monotonic() >= deadline else current

    def _moved(self, event_type: EventType, deadline: float) -> EventType:
        """The event type, once it has another timeline than this."""
        while True:
            current = self.event_types.get(event_type.name)
            if current.timeline.id != event_type.timeline.id:
                return current
            if self.clock.monotonic() >= deadline:
                raise TryLater(BUSY)
            self.pause(ASK_AGAIN_SECONDS)

    def _owners(self, delivery: Delivery, event_type: EventType) -> Owners:
        events, selector = delivery.batch.events, event_type.event_owner_selector
        if not self._by_owner(event_type) or selector is None:
            return [None] * len(events)
        owners = owners_of(events, selector)
        check_owners(events, owners, delivery.subject, self.permissions)
        return owners

    def _by_owner(self, event_type: EventType) -> bool:
        selector = event_type.event_owner_selector
        return selector is not None and self.features.is_on(Feature.EVENT_OWNER_SELECTOR_AUTHZ)

    def _validate(self, delivery: Delivery, event_type: EventType, effort: Effort) -> Schema:
        """The schema that the events were found to follow."""
        schema = self._json_schema(event_type)
        reached = self._reached(event_type)
        if schema is None:
            detail = f"No json_schema found for event type: {event_type.name}"
            raise Rejected(Step.VALIDATING, 0, detail, reached=reached)
        judging = event_type if schema is event_type.schema else replace(event_type, schema=schema)
        validator = self.validators.of(judging, lambda: effective_schema_of(judging))
        validate(judging, delivery.batch, validator, effort, most_bytes=self.limits.event_bytes, reached=reached)
        return schema

    def _json_schema(self, event_type: EventType) -> Schema | None:
        if event_type.schema.type is SchemaType.JSON:
            return event_type.schema
        versions = self.event_types.schemas(event_type)
        return next((schema for schema in versions if schema.type is SchemaType.JSON), None)

    def _check_deletable(self, delivery: Delivery, event_type: EventType) -> None:
        if not event_type.cleanup_policy.compacts:
            raise Rejected(Step.VALIDATING)
        check_sizes(delivery.batch, most_bytes=self.limits.event_bytes, reached=self._reached(event_type))

    def _reached(self, event_type: EventType) -> Step:
        """How far events came before any of them was validated: asking for their owners is a part of it."""
        return Step.VALIDATING if self._by_owner(event_type) else Step.NONE

    def _origin(self, delivery: Delivery, schema: Schema) -> Origin:
        return Origin(
            published_by=delivery.subject.name,
            flow_id=delivery.flow_id,
            received_at=self.clock.now(),
            version=schema.version,
        )

    def _append(
        self, delivery: Delivery, event_type: EventType, partitions: Sequence[int], records: Iterable[Record]
    ) -> BatchOutcome:
        batches: defaultdict[int, list[Record]] = defaultdict(list)
        for partition, record in zip(partitions, records, strict=True):
            batches[partition].append(record)
        fates = self._store(event_type.timeline, batches) if batches else {}
        return appended(delivery.batch.events, partitions, fates)

    def _store(self, timeline: Timeline, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, Fate]:
        try:
            return self.logs.of(timeline.storage_id).append(timeline.topic, batches)
        except Unavailable:
            log.warning("Nothing is known to be stored in %s", timeline.topic, exc_info=True)
            return dict.fromkeys(batches, Refused("internal error"))
