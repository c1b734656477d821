"""Creates event types, and changes their definitions and the number of their partitions."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from uuid import uuid4

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from nakadi.auth import permissions
from nakadi.auth.permissions import Features, Permissions, permission_denied_error
from nakadi.common.work import LongWorkQueue
from nakadi.event_types import documents, rules
from nakadi.event_types.deduplication import check_deduplication
from nakadi.event_types.deletion import GetDependents
from nakadi.event_types.documents import now_in_milliseconds, rule_violations
from nakadi.event_types.forecast import ChangeForecast, RefusalCollector, forecast_schema
from nakadi.event_types.repository import EventTypes, already_exists_error
from nakadi.event_types.rules import EventTypeLimits
from nakadi.event_types.schema_versions import check_schema, turn_if_check_is_long
from nakadi.event_types.storages import Storages
from nakadi.event_types.tables import check_data_lake_annotations
from nakadi.event_types.timelines import first_timeline
from nakadi.model.authorization import Feature, Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import (
    EventType,
    EventTypeDraft,
    PartitionStrategy,
    Schema,
    SchemaDraft,
    SchemaType,
    Statistics,
    Timeline,
    Version,
)
from nakadi.model.outcomes import Conflict, Fault, FeatureSwitchedOff, Invalid, NotFound, Outcome, TryLater, Violations
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import DeduplicatingLogs
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import ChangedMeanwhile, DocumentChange
from nakadi.schemas.evolution import next_schema

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
    """Names of event types that the broker writes or reads. Only administrators may create them: the owner of such an
    event type could read what is meant for the broker's own."""
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
        """Register an event type of the broker itself, unless it exists. The rules for clients are not checked."""
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
            raise Invalid(documents.AUTHORIZATION_MANDATORY_MESSAGE)
        documents.check_no_duplicate_attributes(draft.authorization)
        rules.check_owner_selector(draft.event_owner_selector)
        event_type = self._event_type_from_draft(draft, text, strategy)
        check_deduplication(event_type, self.deduplication)
        return event_type

    def _from_system_draft(self, draft: EventTypeDraft) -> EventType:
        assert draft.schema is not None
        assert draft.schema.text is not None
        return self._event_type_from_draft(draft, draft.schema.text, PartitionStrategy(str(draft.partition_strategy)))

    def _event_type_from_draft(self, draft: EventTypeDraft, schema_text: str, strategy: PartitionStrategy) -> EventType:
        now = now_in_milliseconds(self.clock)
        statistic = documents.statistics_from_draft(draft.default_statistic)
        partitions = rules.partition_count(
            statistic, default=self.limits.default_partitions, maximum=self.limits.max_partitions
        )
        return EventType(
            id=str(uuid4()),
            schema=Schema(text=schema_text, version=Version(), created_at=now),
            partition_strategy=strategy,
            default_statistic=statistic,
            retention_time=draft.retention_time or self.limits.retention_default,
            deduplication=documents.deduplication_from_draft(draft.deduplication or None),
            annotations=draft.annotations or {},
            labels=draft.labels or {},
            created_at=now,
            updated_at=now,
            timelines=(first_timeline(self.storages.chosen_for_new_event_types().id, partitions, now),),
            **documents.fields_stored_as_sent(draft),
        )

    def _create_topic_and_register(self, event_type: EventType) -> EventType:
        """Create the topic first and register the event type after that, so that each registered one has its topic.

        Raises `ChangedMeanwhile` if the storage was changed after it was chosen.
        """
        timeline = event_type.timeline
        event_log = self.logs.for_storage(timeline.storage_id)
        event_log.create_topic(timeline.topic, timeline.partitions)
        try:
            self.event_types.add(event_type, *self._write_conditions_on_storage(timeline.storage_id))
        except (Outcome, Fault, ChangedMeanwhile):
            event_log.delete_topic(timeline.topic)
            raise
        return event_type

    def _write_conditions_on_storage(self, storage_id: str) -> tuple[DocumentChange, ...]:
        try:
            return self.storages.write_conditions_on(storage_id)
        except NotFound as gone:
            # Another process has begun to remove the storage after it was chosen.
            raise TryLater(STORAGE_BUSY_MESSAGE) from gone


def check_fields(draft: EventTypeDraft) -> None:
    found = rule_violations(draft)
    if found:
        raise Violations(found)


# Changes --------------------------------------------------------------------------------------------------------------


RuleContext = AbstractContextManager[None]
"""Where a rule is checked: what it raises goes on, or is collected."""

RAISE_REFUSALS: RuleContext = nullcontext()


class EventTypeUpdate(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    permissions: Permissions
    features: Features
    deduplication: DeduplicatingLogs
    clock: Clock
    limits: EventTypeLimits
    long_work_queue: LongWorkQueue = field(default_factory=LongWorkQueue)

    def update(self, name: str, draft: EventTypeDraft, subject: Subject) -> EventType:
        """Replace the definition of an event type. Raises an outcome if a rule forbids the change."""
        check_fields(draft)
        self.features.require_writes_allowed()
        return self.event_types.retry_if_changed(lambda: self._update(name, draft, subject))

    def forecast(self, name: str, draft: EventTypeDraft, subject: Subject) -> ChangeForecast:
        """What `update` would do, with all rules that forbid it. Nothing is stored, so this is answered while the
        registry is read-only, too.
        """
        check_fields(draft)
        old = self.event_types.get(name)
        refusals = RefusalCollector()
        self._check_permitted(old, draft, subject, refusals)
        assert draft.schema is not None
        assert draft.schema.text is not None
        with turn_if_check_is_long(draft.schema, self.long_work_queue):
            new = self._validated_event_type(old, draft, subject, refusals)
            schema = forecast_schema(
                old,
                draft.schema.text,
                new.compatibility_mode,
                lambda text: check_schema(SchemaDraft(type=SchemaType.JSON, text=text), draft),
            )
        return ChangeForecast(current=old, refusals=refusals.details, schema=schema)

    def _update(self, name: str, draft: EventTypeDraft, subject: Subject) -> EventType:
        old = self.event_types.get(name)
        self._check_permitted(old, draft, subject)
        assert draft.schema is not None
        with turn_if_check_is_long(draft.schema, self.long_work_queue):
            new = self._validated_event_type(old, draft, subject)
        return self.event_types.replace(old, new)

    def _check_permitted(
        self, old: EventType, draft: EventTypeDraft, subject: Subject, rule: RuleContext = RAISE_REFUSALS
    ) -> None:
        with rule:
            if draft.authorization is None and self.features.is_on(Feature.FORCE_EVENT_TYPE_AUTHZ):
                raise Invalid(documents.AUTHORIZATION_MANDATORY_MESSAGE)
        self.permissions.require(Operation.VIEW, old.resource, subject)
        # Administrators of the broker may exceed limits, and correct what its owners can never change again.
        if not self._may_break_owner_rules(subject):
            with rule:
                self.limits.check_retention(draft.retention_time)
            with rule:
                check_data_lake_annotations(draft.annotations or {})
            self.permissions.require(Operation.ADMIN, old.resource, subject)
            with rule:
                rules.check_owner_selector_change(
                    old.event_owner_selector, documents.owner_selector_from_draft(draft.event_owner_selector)
                )

    def _validated_event_type(
        self, old: EventType, draft: EventTypeDraft, subject: Subject, rule: RuleContext = RAISE_REFUSALS
    ) -> EventType:
        """The event type that the draft describes. Raises at the first broken rule: clients see the order of them.

        Where `rule` collects refusals, what a broken rule was about stays as it was in the old event type.
        """
        assert draft.schema is not None
        assert draft.category is not None
        assert draft.cleanup_policy is not None
        text, strategy = old.schema.text, old.partition_strategy
        with rule:
            rules.check_owner_selector(draft.event_owner_selector)
        with rule:
            permissions.check_authorization_not_removed(old.authorization, draft.authorization)
        with rule:
            documents.check_no_duplicate_attributes(draft.authorization)
        with rule:
            if draft.name != old.name:
                raise Invalid("path does not match resource name")
        with rule:
            rules.check_cleanup_policy(draft.cleanup_policy, draft.category)
        with rule:
            rules.check_cleanup_policy_change(old.cleanup_policy, draft.cleanup_policy)
        with rule:
            text = check_schema(draft.schema, draft)
        with rule:
            rules.check_audience_change(old.audience, draft.audience)
        with rule:
            strategy = rules.partition_strategy(draft.partition_strategy, draft.partition_key_fields, draft.category)
        new = self._updated_from_draft(old, draft, strategy)
        with rule:
            check_deduplication(new, self.deduplication)
        with rule:
            rules.check_mode_strategy_and_category_changes(
                old,
                new,
                is_event_type_admin=self.permissions.allows(Operation.ADMIN, old.resource, subject),
                is_nakadi_admin=self._may_break_owner_rules(subject),
            )
        with rule:
            new = replace(new, schema=next_schema(old, text, new.compatibility_mode, new.updated_at))
        with rule:
            rules.check_statistics_change(
                old.default_statistic, documents.statistics_from_draft(draft.default_statistic)
            )
        return new

    def _updated_from_draft(self, old: EventType, draft: EventTypeDraft, strategy: PartitionStrategy) -> EventType:
        """The old event type with the fields of the draft; optional fields that the draft leaves out are kept."""
        retention = old.retention_time if draft.retention_time is None else draft.retention_time
        moved = timedelta(milliseconds=retention - old.retention_time)
        return replace(
            old,
            partition_strategy=strategy,
            default_statistic=documents.statistics_from_draft(draft.default_statistic) or old.default_statistic,
            retention_time=retention,
            deduplication=old.deduplication
            if draft.deduplication is UNSET
            else documents.deduplication_from_draft(draft.deduplication or None),
            annotations=old.annotations if draft.annotations is None else draft.annotations,
            labels=old.labels if draft.labels is None else draft.labels,
            updated_at=_time_of_next_change(now_in_milliseconds(self.clock), old.updated_at),
            timelines=tuple(_with_changed_retention(each, moved) for each in old.timelines),
            **documents.fields_stored_as_sent(draft),
        )

    def _may_break_owner_rules(self, subject: Subject) -> bool:
        """Whether the subject may break rules that bind owners: administrators may, if authentication is on."""
        return not subject.trusted and self.permissions.is_administrator(subject)


def _with_changed_retention(timeline: Timeline, retention_change: timedelta) -> Timeline:
    """A closed timeline whose events are deleted so much later. The open one has no such time yet."""
    if timeline.cleaned_up_at is None:
        return timeline
    return replace(timeline, cleaned_up_at=timeline.cleaned_up_at + retention_change)


def _time_of_next_change(now: datetime, previous: datetime) -> datetime:
    """The time of a change, later than that of the previous change, also if both are in one millisecond."""
    return max(now, previous + timedelta(milliseconds=1))


# Partitions -----------------------------------------------------------------------------------------------------------


class Repartitioning(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    permissions: Permissions
    features: Features
    logs: EventLogs
    dependents: GetDependents
    max_partitions: int
    event_type_with_fixed_partitions: str = ""
    """The name of an event type whose partitions cannot change: its subscriptions would not learn of new ones."""

    def set_partition_count(self, name: str, count: int, subject: Subject) -> None:
        """Extend an event type to `count` partitions. The new ones are empty, and events stay where they are."""
        extended = self.event_types.retry_if_changed(lambda: self._set_partition_count(name, count, subject))
        # Also if the count is right already: an earlier request may have ended between the write and this call.
        self.dependents().after_repartitioning(extended)

    def _set_partition_count(self, name: str, count: int, subject: Subject) -> EventType:
        event_type = self.event_types.get(name)
        self.permissions.require_administrator(Operation.ADMIN, event_type.resource, subject)
        self._check_partition_count(count, event_type)
        if name == self.event_type_with_fixed_partitions and count != event_type.timeline.partitions:
            raise Invalid(f"Event type {name} is for redriving, its partitions can not be changed")
        self.features.require_writes_allowed()
        if count == event_type.timeline.partitions:
            return event_type
        timeline = event_type.timeline
        self.dependents().before_repartitioning(event_type)
        self.logs.for_storage(timeline.storage_id).add_partitions(timeline.topic, count)
        return self.event_types.replace(event_type, with_partition_count(event_type, count))

    def _check_partition_count(self, count: int, event_type: EventType) -> None:
        if count > self.max_partitions:
            raise Invalid(f"Number of partitions should not be more than {self.max_partitions}")
        if count < event_type.timeline.partitions:
            raise Invalid("Number of partitions can not decrease")


def with_partition_count(event_type: EventType, count: int) -> EventType:
    *closed, active = event_type.timelines
    expected = event_type.default_statistic or Statistics(
        messages_per_minute=1, message_size=1, read_parallelism=count, write_parallelism=count
    )
    return replace(
        event_type,
        timelines=(*closed, replace(active, partitions=count)),
        default_statistic=replace(expected, read_parallelism=count, write_parallelism=count),
    )
