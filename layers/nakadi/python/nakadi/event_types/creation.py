"""Creates event types."""

from __future__ import annotations

import contextlib
from uuid import uuid4

from msgspec import Struct, field

from nakadi.auth.administration import Features
from nakadi.auth.permissions import Permissions, denied
from nakadi.common.turns import Turns
from nakadi.event_types import drafts, rules
from nakadi.event_types.documents import now_in_milliseconds
from nakadi.event_types.drafts import draft_violations
from nakadi.event_types.repository import EventTypes, already_exists
from nakadi.event_types.rules import EventTypeLimits, check_data_lake_annotations
from nakadi.event_types.schema_versions import check_schema, schema_turn
from nakadi.event_types.storages import Storages
from nakadi.event_types.timelines import first_timeline
from nakadi.model.administration import Feature
from nakadi.model.authorization import Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import EventType, EventTypeDraft, PartitionStrategy
from nakadi.model.outcomes import (
    Conflict,
    Fault,
    Invalid,
    NotFound,
    Outcome,
    SwitchedOff,
    TryLater,
    Violations,
)
from nakadi.model.schema import Schema, Version
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import Change, ChangedMeanwhile

RESERVED_NAME = "The name is for an event type of the broker"
STORAGE_BUSY = "The storage of new event types is being changed, please repeat request"


class EventTypeCreation(Struct, frozen=True, kw_only=True):
    """Registers event types, and creates the topics for their events."""

    event_types: EventTypes
    storages: Storages
    features: Features
    logs: EventLogs
    clock: Clock
    limits: EventTypeLimits
    permissions: Permissions
    reserved: frozenset[str] = frozenset()
    """Names of event types that the broker writes or reads. Only administrators may create them: the owner of such an
    event type could read what is meant for the broker's own."""
    turns: Turns = field(default_factory=Turns)

    def create(self, draft: EventTypeDraft, subject: Subject) -> EventType:
        """Register an event type. When this returns, events can be published and read."""
        if self.features.is_on(Feature.DISABLE_EVENT_TYPE_CREATION):
            raise SwitchedOff("Event Type creation is disabled")
        check_fields(draft)
        self.features.require_writable()
        if draft.name in self.reserved and not self.permissions.is_administrator(subject):
            raise denied(Operation.ADMIN, Resource(ResourceType.EVENT_TYPE, draft.name), RESERVED_NAME)
        return self.event_types.retry_if_changed(lambda: self._create(draft))

    def create_system_event_type(self, draft: EventTypeDraft) -> None:
        """Register an event type of the broker itself, unless it exists. The rules for clients are not checked."""
        self.features.require_writable()
        if self.event_types.find(str(draft.name)) is None:
            with contextlib.suppress(Conflict):
                self.event_types.retry_if_changed(lambda: self._store(self._from_system_draft(draft)))

    def _create(self, draft: EventTypeDraft) -> EventType:
        event_type = self._validated_in_turn(draft)
        if self.event_types.find(event_type.name) is not None:
            raise already_exists(event_type.name)
        return self._store(event_type)

    def _validated_in_turn(self, draft: EventTypeDraft) -> EventType:
        assert draft.schema is not None
        with schema_turn(draft.schema, self.turns):
            return self._validated(draft)

    def _validated(self, draft: EventTypeDraft) -> EventType:
        """The event type that the draft describes. Raises at the first broken rule: clients see the order of them."""
        assert draft.schema is not None
        assert draft.category is not None
        assert draft.cleanup_policy is not None
        self.limits.check_retention(draft.retention_time)
        check_data_lake_annotations(
            draft.annotations or {}, mandatory=self.features.is_on(Feature.FORCE_DATA_LAKE_ANNOTATIONS)
        )
        text = check_schema(draft.schema, draft)
        rules.check_cleanup_policy(draft.cleanup_policy, draft.category)
        rules.check_enrichment(draft.enrichment_strategies or (), draft.category)
        strategy = rules.partition_strategy(draft.partition_strategy, draft.partition_key_fields, draft.category)
        if draft.authorization is None and self.features.is_on(Feature.FORCE_EVENT_TYPE_AUTHZ):
            raise Invalid(drafts.AUTHORIZATION_MANDATORY)
        drafts.check_authorization(draft.authorization)
        rules.check_owner_selector(draft.event_owner_selector)
        return self._event_type_of(draft, text, strategy)

    def _from_system_draft(self, draft: EventTypeDraft) -> EventType:
        assert draft.schema is not None
        assert draft.schema.text is not None
        return self._event_type_of(draft, draft.schema.text, PartitionStrategy(str(draft.partition_strategy)))

    def _event_type_of(self, draft: EventTypeDraft, text: str, strategy: PartitionStrategy) -> EventType:
        now = now_in_milliseconds(self.clock)
        statistic = drafts.statistics(draft.default_statistic)
        partitions = rules.partition_count(
            statistic, default=self.limits.default_partitions, maximum=self.limits.max_partitions
        )
        return EventType(
            id=str(uuid4()),
            schema=Schema(text=text, version=Version(), created_at=now),
            partition_strategy=strategy,
            default_statistic=statistic,
            retention_time=draft.retention_time or self.limits.retention_default,
            annotations=draft.annotations or {},
            labels=draft.labels or {},
            created_at=now,
            updated_at=now,
            timelines=(first_timeline(self.storages.chosen().id, partitions, now),),
            **drafts.plain_fields(draft),
        )

    def _store(self, event_type: EventType) -> EventType:
        """Create the topic first and register the event type after that, so that each registered one has its topic.

        Raises `ChangedMeanwhile` if the storage was changed after it was chosen.
        """
        timeline = event_type.timeline
        event_log = self.logs.of(timeline.storage_id)
        event_log.create_topic(timeline.topic, timeline.partitions)
        try:
            self.event_types.add(event_type, *self._checks_for_storage(timeline.storage_id))
        except (Outcome, Fault, ChangedMeanwhile):
            event_log.delete_topic(timeline.topic)
            raise
        return event_type

    def _checks_for_storage(self, storage_id: str) -> tuple[Change, ...]:
        try:
            return self.storages.checks_for(storage_id)
        except NotFound as gone:
            # Another process has begun to remove the storage after it was chosen.
            raise TryLater(STORAGE_BUSY) from gone


def check_fields(draft: EventTypeDraft) -> None:
    found = draft_violations(draft)
    if found:
        raise Violations(found)
