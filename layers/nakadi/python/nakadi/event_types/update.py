"""Changes the definitions of event types."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from nakadi.auth import authorization
from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.work import LongWorkQueue
from nakadi.event_types import drafts, rules
from nakadi.event_types.creation import check_fields
from nakadi.event_types.deduplication import check_deduplication
from nakadi.event_types.drafts import now_in_milliseconds
from nakadi.event_types.forecast import ChangeForecast, RefusalCollector
from nakadi.event_types.readers import NOBODY, Force, SchemaReaders
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.rules import EventTypeLimits
from nakadi.event_types.schema_versions import check_schema, turn_if_check_is_long
from nakadi.event_types.table_retention import check_data_lake_annotations
from nakadi.model.authorization import Feature, Operation, Subject
from nakadi.model.event_type import (
    EventType,
    EventTypeDraft,
    PartitionStrategy,
    SchemaType,
    SubmittedSchema,
    Timeline,
)
from nakadi.model.outcomes import Invalid
from nakadi.model.reads import AffectedReader
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import DeduplicatingLogs

RuleContext = AbstractContextManager[None]
"""The context in which a rule is checked: it lets a refusal pass, or collects it."""

RAISE_REFUSALS: RuleContext = nullcontext()


class EventTypeUpdate(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    permissions: Permissions
    features: Features
    deduplication: DeduplicatingLogs
    clock: Clock
    limits: EventTypeLimits
    readers: SchemaReaders
    long_work_queue: LongWorkQueue = field(default_factory=LongWorkQueue)

    def update(
        self, name: str, draft: EventTypeDraft, subject: Subject, force: Force = NOBODY
    ) -> tuple[EventType, tuple[AffectedReader, ...]]:
        """Replace the definition of an event type; also return the readers that will miss members. Raises an outcome
        if a rule forbids the change.
        """
        check_fields(draft)
        self.features.require_writes_allowed()
        return self.event_types.retry_if_changed(lambda: self._update(name, draft, subject, force))

    def forecast(self, name: str, draft: EventTypeDraft, subject: Subject, force: Force = NOBODY) -> ChangeForecast:
        """The effect of `update`, with all rules that forbid it. This stores nothing, so it also works while the
        registry is read-only.
        """
        check_fields(draft)
        old = self.event_types.get(name)
        refusals = RefusalCollector()
        self._check_permitted(old, draft, subject, refusals)
        assert draft.schema is not None
        assert draft.schema.text is not None
        submitted = draft.schema
        with turn_if_check_is_long(draft.schema, self.long_work_queue):
            new, _ = self._validated_event_type(old, draft, subject, force, refusals)
            return self.readers.forecast(
                old,
                new,
                SubmittedSchema(draft.schema.type or SchemaType.JSON, draft.schema.text),
                lambda text: check_schema(replace(submitted, text=text), draft),
                refusals.details,
                force,
            )

    def _update(
        self, name: str, draft: EventTypeDraft, subject: Subject, force: Force
    ) -> tuple[EventType, tuple[AffectedReader, ...]]:
        old = self.event_types.get(name)
        self._check_permitted(old, draft, subject)
        assert draft.schema is not None
        with turn_if_check_is_long(draft.schema, self.long_work_queue):
            new, affected = self._validated_event_type(old, draft, subject, force)
        return self.event_types.replace(old, new), affected

    def _check_permitted(
        self, old: EventType, draft: EventTypeDraft, subject: Subject, rule: RuleContext = RAISE_REFUSALS
    ) -> None:
        with rule:
            if draft.authorization is None and self.features.is_on(Feature.FORCE_EVENT_TYPE_AUTHZ):
                raise Invalid(drafts.AUTHORIZATION_MANDATORY_MESSAGE)
        self.permissions.require(Operation.VIEW, old.resource, subject)
        # Administrators of the broker may exceed limits, and correct members that the owners of the event type can
        # never change again.
        if not self._may_break_owner_rules(subject):
            with rule:
                self.limits.check_retention(draft.retention_time)
            with rule:
                check_data_lake_annotations(draft.annotations or {})
            self.permissions.require(Operation.ADMIN, old.resource, subject)
            with rule:
                rules.check_owner_selector_change(
                    old.event_owner_selector, drafts.owner_selector_from_draft(draft.event_owner_selector)
                )

    def _validated_event_type(
        self, old: EventType, draft: EventTypeDraft, subject: Subject, force: Force, rule: RuleContext = RAISE_REFUSALS
    ) -> tuple[EventType, tuple[AffectedReader, ...]]:
        """The event type that the draft describes, and the readers that will miss members. Raises at the first broken
        rule; clients depend on the order of the rules.

        If `rule` collects refusals, fields that break a rule keep their old values.
        """
        assert draft.schema is not None
        assert draft.category is not None
        assert draft.cleanup_policy is not None
        schema, strategy = SubmittedSchema(old.schema.type, old.schema.text), old.partition_strategy
        affected: tuple[AffectedReader, ...] = ()
        with rule:
            rules.check_owner_selector(draft.event_owner_selector)
        with rule:
            authorization.check_authorization_not_removed(old.authorization, draft.authorization)
        with rule:
            drafts.check_no_duplicate_attributes(draft.authorization)
        with rule:
            if draft.name != old.name:
                raise Invalid("path does not match resource name")
        with rule:
            rules.check_cleanup_policy(draft.cleanup_policy, draft.category)
        with rule:
            rules.check_cleanup_policy_change(old.cleanup_policy, draft.cleanup_policy)
        with rule:
            schema = check_schema(draft.schema, draft)
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
            judged = self.readers.judge(old, new, schema, new.updated_at, force)
            new, affected = replace(new, schema=judged.schema), judged.affected
        with rule:
            rules.check_statistics_change(old.default_statistic, drafts.statistics_from_draft(draft.default_statistic))
        return new, affected

    def _updated_from_draft(self, old: EventType, draft: EventTypeDraft, strategy: PartitionStrategy) -> EventType:
        """The old event type with the fields of the draft; it keeps the optional fields that the draft leaves out."""
        retention = old.retention_time if draft.retention_time is None else draft.retention_time
        moved = timedelta(milliseconds=retention - old.retention_time)
        return replace(
            old,
            partition_strategy=strategy,
            default_statistic=drafts.statistics_from_draft(draft.default_statistic) or old.default_statistic,
            retention_time=retention,
            deduplication=old.deduplication
            if draft.deduplication is UNSET
            else drafts.deduplication_from_draft(draft.deduplication or None),
            annotations=old.annotations if draft.annotations is None else draft.annotations,
            labels=old.labels if draft.labels is None else draft.labels,
            updated_at=_time_of_next_change(now_in_milliseconds(self.clock), old.updated_at),
            timelines=tuple(_with_changed_retention(each, moved) for each in old.timelines),
            **drafts.fields_stored_as_sent(draft),
        )

    def _may_break_owner_rules(self, subject: Subject) -> bool:
        """Whether the subject may break rules that bind owners: administrators may, if authentication is on."""
        return not subject.trusted and self.permissions.is_administrator(subject)


def _with_changed_retention(timeline: Timeline, retention_change: timedelta) -> Timeline:
    """The timeline, with its deletion time moved by this difference. An open timeline has no such time yet."""
    if timeline.cleaned_up_at is None:
        return timeline
    return replace(timeline, cleaned_up_at=timeline.cleaned_up_at + retention_change)


def _time_of_next_change(now: datetime, previous: datetime) -> datetime:
    """The time of a change, which is always later than that of the previous change, even if both are in one
    millisecond.
    """
    return max(now, previous + timedelta(milliseconds=1))
