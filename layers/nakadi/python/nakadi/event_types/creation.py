"""Creates event types."""

from __future__ import annotations

import contextlib
from uuid import uuid4

from msgspec import Struct, field

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions, permission_denied_error
from nakadi.common.work import LongWorkQueue
from nakadi.event_types import drafts, rules
from nakadi.event_types.deduplication import check_deduplication
from nakadi.event_types.drafts import now_in_milliseconds, rule_violations
from nakadi.event_types.repository import EventTypes, already_exists_error
from nakadi.event_types.rules import EventTypeLimits
from nakadi.event_types.schema_versions import check_schema, turn_if_check_is_long
from nakadi.event_types.storages import Storages
from nakadi.event_types.table_retention import check_data_lake_annotations
from nakadi.event_types.timelines import first_timeline
from nakadi.model.authorization import Feature, Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import (
    EventType,
    EventTypeDraft,
    PartitionStrategy,
    Schema,
    SchemaType,
    SubmittedSchema,
    Version,
)
from nakadi.model.outcomes import Conflict, Fault, FeatureSwitchedOff, Invalid, NotFound, Outcome, TryLater, Violations
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import DeduplicatingLogs
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import ChangedMeanwhile, DocumentChange

RESERVED_NAME_MESSAGE = "The name is for an event type of the broker"
STORAGE_BUSY_MESSAGE = "The storage of new event types is being changed, please repeat request"


class EventTypeCreation(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    storages: Storages
    features: Features
    logs: EventLogs
    deduplication: DeduplicatingLogs
    clock: Clock
    limits: EventTypeLimits
    permissions: Permissions
    reserved_names: frozenset[str] = frozenset()
    """Names of event types that the broker writes or reads. Only administrators may create them: otherwise whoever
    creates one could read the broker's own events."""
    long_work_queue: LongWorkQueue = field(default_factory=LongWorkQueue)

    def create(self, draft: EventTypeDraft, subject: Subject) -> EventType:
        """Register an event type. When this returns, events can be published and read."""
        if self.features.is_on(Feature.DISABLE_EVENT_TYPE_CREATION):
            raise FeatureSwitchedOff("Event Type creation is disabled")
        check_fields(draft)
        self.features.require_writes_allowed()
        if draft.name in self.reserved_names and not self.permissions.is_administrator(subject):
            raise permission_denied_error(
                Operation.ADMIN, Resource(ResourceType.EVENT_TYPE, draft.name), RESERVED_NAME_MESSAGE
            )
        return self.event_types.retry_if_changed(lambda: self._create(draft))

    def create_system_event_type(self, draft: EventTypeDraft) -> None:
        """Register an event type of the broker itself, unless it exists. The rules for clients do not apply."""
        self.features.require_writes_allowed()
        if self.event_types.find(str(draft.name)) is None:
            with contextlib.suppress(Conflict):
                self.event_types.retry_if_changed(
                    lambda: self._create_topic_and_register(self._from_system_draft(draft))
                )

    def _create(self, draft: EventTypeDraft) -> EventType:
        event_type = self._validate_in_long_work_turn(draft)
        if self.event_types.find(event_type.name) is not None:
            raise already_exists_error(event_type.name)
        return self._create_topic_and_register(event_type)

    def _validate_in_long_work_turn(self, draft: EventTypeDraft) -> EventType:
        assert draft.schema is not None
        with turn_if_check_is_long(draft.schema, self.long_work_queue):
            return self._validated_event_type(draft)

    def _validated_event_type(self, draft: EventTypeDraft) -> EventType:
        """The event type that the draft describes. Raises at the first broken rule; clients depend on the order of the
        rules.
        """
        assert draft.schema is not None
        assert draft.category is not None
        assert draft.cleanup_policy is not None
        self.limits.check_retention(draft.retention_time)
        check_data_lake_annotations(
            draft.annotations or {}, mandatory=self.features.is_on(Feature.FORCE_DATA_LAKE_ANNOTATIONS)
        )
        schema = check_schema(draft.schema, draft)
        rules.check_cleanup_policy(draft.cleanup_policy, draft.category)
        rules.check_enrichment(draft.enrichment_strategies or (), draft.category)
        strategy = rules.partition_strategy(draft.partition_strategy, draft.partition_key_fields, draft.category)
        if draft.authorization is None and self.features.is_on(Feature.FORCE_EVENT_TYPE_AUTHZ):
            raise Invalid(drafts.AUTHORIZATION_MANDATORY_MESSAGE)
        drafts.check_no_duplicate_attributes(draft.authorization)
        rules.check_owner_selector(draft.event_owner_selector)
        event_type = self._event_type_from_draft(draft, schema, strategy)
        check_deduplication(event_type, self.deduplication)
        return event_type

    def _from_system_draft(self, draft: EventTypeDraft) -> EventType:
        assert draft.schema is not None
        assert draft.schema.text is not None
        schema = SubmittedSchema(SchemaType.JSON, draft.schema.text)
        return self._event_type_from_draft(draft, schema, PartitionStrategy(str(draft.partition_strategy)))

    def _event_type_from_draft(
        self, draft: EventTypeDraft, schema: SubmittedSchema, strategy: PartitionStrategy
    ) -> EventType:
        now = now_in_milliseconds(self.clock)
        statistic = drafts.statistics_from_draft(draft.default_statistic)
        partitions = rules.partition_count(
            statistic, default=self.limits.default_partitions, maximum=self.limits.max_partitions
        )
        return EventType(
            id=str(uuid4()),
            schema=Schema(type=schema.type, text=schema.text, version=Version(), created_at=now),
            partition_strategy=strategy,
            default_statistic=statistic,
            retention_time=draft.retention_time or self.limits.retention_default,
            deduplication=drafts.deduplication_from_draft(draft.deduplication or None),
            annotations=draft.annotations or {},
            labels=draft.labels or {},
            created_at=now,
            updated_at=now,
            timelines=(first_timeline(self.storages.chosen_for_new_event_types().id, partitions, now),),
            **drafts.fields_stored_as_sent(draft),
        )

    def _create_topic_and_register(self, event_type: EventType) -> EventType:
        """Create the topic first and register the event type afterwards, so that every registered event type has a
        topic. A topic that may belong to a registered event type is never deleted.

        Raises `ChangedMeanwhile` if the storage was changed after it was chosen.
        """
        timeline = event_type.timeline
        event_log = self.logs.for_storage(timeline.storage_id)
        event_log.create_topic(timeline.topic, timeline.partitions)
        try:
            self.event_types.add(event_type, *self._write_conditions_on_storage(timeline.storage_id))
        except (Outcome, ChangedMeanwhile):
            event_log.delete_topic(timeline.topic)
            raise
        except Fault:
            # Perhaps only the answer got lost. If the event type cannot be read either, the topic stays.
            found = self.event_types.find(event_type.name)
            if found is None or found.id != event_type.id:
                event_log.delete_topic(timeline.topic)
                raise
        return event_type

    def _write_conditions_on_storage(self, storage_id: str) -> tuple[DocumentChange, ...]:
        try:
            return self.storages.write_conditions_on(storage_id)
        except NotFound as gone:
            # Another process began to remove the storage after it was chosen.
            raise TryLater(STORAGE_BUSY_MESSAGE) from gone


def check_fields(draft: EventTypeDraft) -> None:
    found = rule_violations(draft)
    if found:
        raise Violations(found)
