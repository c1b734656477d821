"""Creates, updates and deletes subscriptions, and adjusts them when an event type changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.auth import authorization
from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.chores import run_and_log_failure
from nakadi.event_types import drafts
from nakadi.event_types.cursors import CursorError
from nakadi.event_types.drafts import AUTHORIZATION_MANDATORY_MESSAGE, now_in_milliseconds
from nakadi.event_types.positions import last_offset_if_closed
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model.authorization import WILDCARD, Feature, Operation, Subject
from nakadi.model.event_type import Cursor, EventType, Position
from nakadi.model.outcomes import Conflict, Fault, Invalid, TryLater
from nakadi.model.reads import Reader
from nakadi.model.subscription import (
    EventTypePartition,
    ReadFrom,
    Subscription,
    SubscriptionCursor,
    SubscriptionCursorDraft,
    SubscriptionDraft,
)
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import ChangedMeanwhile, DocumentChange
from nakadi.subscriptions.api.fields import check_fields, objective_from_draft
from nakadi.subscriptions.api.offsets import OffsetInitialisation, ResetRequests
from nakadi.subscriptions.api.reads import reader_of, with_declaration
from nakadi.subscriptions.api.repository import SubscriptionIds, Subscriptions, changes_to_remove, uniqueness_key

log = logging.getLogger(__name__)

CREATION_SWITCHED_OFF_MESSAGE = "Subscription creation is temporarily unavailable"

# Event types change rarely. If this many changes in a row interfere with a write, the client should repeat its request.
SUBSCRIPTION_WRITE_ATTEMPTS = 8


class SubscriptionCreation(Struct, frozen=True, kw_only=True):
    subscription_repository: Subscriptions
    event_types: EventTypes
    cursor_resolver: CursorResolver
    permissions: Permissions
    features: Features
    clock: Clock
    max_partitions: int
    ids: SubscriptionIds = field(default_factory=SubscriptionIds)

    def create(self, draft: SubscriptionDraft, subject: Subject) -> tuple[Subscription, bool]:
        """Return the subscription of the draft's application, event types and group, and whether it is new."""
        check_fields(draft)
        found = self.subscription_repository.find_by_uniqueness_key(_key_of_draft(draft))
        if found is not None:
            self.permissions.require(Operation.VIEW, found.resource, subject)
            return found, False
        for _ in range(SUBSCRIPTION_WRITE_ATTEMPTS):
            try:
                return self._create_or_find(draft, subject), True
            except ChangedMeanwhile:
                # An event type was changed or deleted: this raises if it was deleted, and the next attempt uses it if
                # it was changed.
                self._require_event_types_exist(draft)
        raise TryLater(CREATION_SWITCHED_OFF_MESSAGE)

    def _create_or_find(self, draft: SubscriptionDraft, subject: Subject) -> Subscription:
        """Create or find the subscription. Clients can see the order of the checks."""
        if self.features.is_on(Feature.DISABLE_SUBSCRIPTION_CREATION):
            raise TryLater(CREATION_SWITCHED_OFF_MESSAGE)
        self.features.require_writes_allowed()
        if draft.authorization is None and self.features.is_on(Feature.FORCE_SUBSCRIPTION_AUTHZ):
            raise Invalid(AUTHORIZATION_MANDATORY_MESSAGE)
        event_types = self._existing_event_types(draft)
        for event_type in event_types:
            self.permissions.require(Operation.VIEW, event_type.resource, subject)
        self._check_partition_count(event_types)
        if draft.read_from is ReadFrom.CURSORS:
            self._check_cursors(cursors_from_drafts(draft.initial_cursors), event_types)
        drafts.check_no_duplicate_attributes(draft.authorization)
        subscription = with_declaration(self._subscription_of_draft(draft), draft, event_types)
        # The permission is checked before the subscription is stored, because a client that may not see the
        # subscription could never use it.
        self.permissions.require(Operation.VIEW, subscription.resource, subject)
        return self.subscription_repository.add(subscription, event_types)

    def _existing_event_types(self, draft: SubscriptionDraft) -> Sequence[EventType]:
        names = draft.event_types or ()
        found = {name: self.event_types.find(name) for name in names}
        missing = [f"'{name}'" for name in names if found[name] is None]
        if missing:
            raise _event_types_not_found(missing)
        return [each for each in found.values() if each is not None]

    def _require_event_types_exist(self, draft: SubscriptionDraft) -> None:
        missing = [name for name in draft.event_types or () if self.event_types.find(name) is None]
        if missing:
            raise _event_types_not_found(missing)

    def _check_partition_count(self, event_types: Sequence[EventType]) -> None:
        count = sum(len(each.partitions) for each in event_types)
        if count > self.max_partitions:
            raise Invalid(
                f"total partition count for subscription is {count}, "
                f"but the maximum partition count is {self.max_partitions}"
            )

    def _check_cursors(self, cursors: Sequence[SubscriptionCursor], event_types: Sequence[EventType]) -> None:
        check_cursors_cover_partitions(cursors, event_types)
        by_name = {each.name: self.cursor_resolver.take_snapshot(each) for each in event_types}
        try:
            for each in cursors:
                view = by_name[each.event_type]
                position = view.resolve(Cursor(each.partition, each.offset))
                view.check_readable(each.partition, position, each.offset)
        except CursorError as error:
            raise Invalid(str(error)) from error

    def _subscription_of_draft(self, draft: SubscriptionDraft) -> Subscription:
        assert draft.owning_application is not None
        assert draft.consumer_group is not None
        assert draft.read_from is not None
        now = now_in_milliseconds(self.clock)
        return Subscription(
            id=self.ids.new_id(now),
            owning_application=draft.owning_application,
            event_types=draft.event_types or (),
            consumer_group=draft.consumer_group,
            read_from=draft.read_from,
            initial_cursors=cursors_from_drafts(draft.initial_cursors),
            authorization=drafts.authorization_from_draft(draft.authorization),
            annotations=draft.annotations or {},
            labels=draft.labels or {},
            objective=None if draft.objective is None else objective_from_draft(draft.objective, now),
            created_at=now,
            updated_at=now,
        )


def check_cursors_cover_partitions(cursors: Sequence[SubscriptionCursor], event_types: Sequence[EventType]) -> None:
    """Raise unless there is one cursor for each partition, and no other."""
    wanted = {EventTypePartition(each.name, partition) for each in event_types for partition in each.partitions}
    given = {EventTypePartition(each.event_type, each.partition) for each in cursors}
    if wanted - given:
        raise Invalid("initial_cursors should contain cursors for all partitions of subscription")
    if given - wanted:
        raise Invalid("initial_cursors should contain cursors only for partitions of this subscription")
    if len(cursors) > len(given):
        raise Invalid("there should be no more than 1 cursor for each partition in initial_cursors")


def cursors_from_drafts(drafts: Sequence[SubscriptionCursorDraft]) -> tuple[SubscriptionCursor, ...]:
    return tuple(SubscriptionCursor(each.event_type or "", each.partition or "", each.offset or "") for each in drafts)


def _key_of_draft(draft: SubscriptionDraft) -> str:
    return uniqueness_key(draft.owning_application or "", draft.event_types or (), draft.consumer_group or "")


def _event_types_not_found(names: Sequence[str]) -> Invalid:
    return Invalid(f"Failed to create subscription, event type(s) not found: {', '.join(names)}")


SUBSCRIPTION_BUSY_MESSAGE = "Subscription is being changed by others, please repeat request"


class SubscriptionUpdater(Struct, frozen=True, kw_only=True):
    subscription_repository: Subscriptions
    event_types: EventTypes
    permissions: Permissions
    features: Features
    clock: Clock

    def update(self, subscription_id: str, draft: SubscriptionDraft, subject: Subject) -> Subscription:
        """Replace authorization, annotations, labels and declared reads; everything else must stay unchanged."""
        check_fields(draft)
        self.features.require_writes_allowed()
        if draft.authorization is None and self.features.is_on(Feature.FORCE_SUBSCRIPTION_AUTHZ):
            raise Invalid(AUTHORIZATION_MANDATORY_MESSAGE)
        for _ in range(SUBSCRIPTION_WRITE_ATTEMPTS):
            try:
                return self._update(subscription_id, draft, subject)
            except ChangedMeanwhile:
                continue
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)

    def _update(self, subscription_id: str, draft: SubscriptionDraft, subject: Subject) -> Subscription:
        old = self.subscription_repository.get(subscription_id)
        self.permissions.require_all_operations((Operation.VIEW, Operation.ADMIN), old.resource, subject)
        check_unchanged(old, draft)
        authorization.check_authorization_not_removed(old.authorization, draft.authorization)
        drafts.check_no_duplicate_attributes(draft.authorization)
        new = replace(
            old,
            authorization=drafts.authorization_from_draft(draft.authorization),
            annotations=old.annotations if draft.annotations is None else draft.annotations,
            labels=old.labels if draft.labels is None else draft.labels,
            # Every change moves the time of the last change forward, even within one millisecond.
            updated_at=max(now_in_milliseconds(self.clock), old.updated_at + timedelta(milliseconds=1)),
        )
        event_types = [found for name in old.event_types if (found := self.event_types.find(name)) is not None]
        if draft.reads:
            # An answer about unknown members names members of these schemas, so the client must be allowed to see them.
            for event_type in event_types:
                self.permissions.require(Operation.VIEW, event_type.resource, subject)
        return self.subscription_repository.replace(old, with_declaration(new, draft, event_types))


def check_unchanged(old: Subscription, draft: SubscriptionDraft) -> None:
    fixed = (
        ("subscription consumer group", old.consumer_group, draft.consumer_group),
        ("subscription event types", old.event_types, draft.event_types),
        ("owning application", old.owning_application, draft.owning_application),
        ("read from", old.read_from, draft.read_from),
        ("initial cursors", old.initial_cursors, cursors_from_drafts(draft.initial_cursors)),
    )
    for name, before, after in fixed:
        if before != after:
            raise Invalid(f"Not allowed to change {name}")


class SubscriptionDeletion(Struct, frozen=True, kw_only=True):
    subscription_repository: Subscriptions
    permissions: Permissions
    features: Features
    deleted_subscription_cleanup: DeletedSubscriptionCleanup

    def delete(self, subscription_id: str, subject: Subject) -> None:
        self.features.require_writes_allowed()
        self._remove(subscription_id, subject)
        self.deleted_subscription_cleanup.try_to_clean_up_all()

    def _remove(self, subscription_id: str, subject: Subject) -> Subscription:
        for _ in range(SUBSCRIPTION_WRITE_ATTEMPTS):
            subscription = self.subscription_repository.get(subscription_id)
            self.permissions.require_all_operations((Operation.VIEW, Operation.ADMIN), subscription.resource, subject)
            try:
                self.subscription_repository.remove(subscription)
            except ChangedMeanwhile:
                continue
            return subscription
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)


class DeletedSubscriptionCleanup(Struct, frozen=True):
    """Clears what remains of deleted subscriptions: assignments and offsets. Streams that are still open end when these
    are removed.
    """

    subscription_repository: Subscriptions
    coordination: Coordination

    def clean_up_all(self) -> None:
        for subscription_id in self.subscription_repository.deleted_subscription_ids():
            run_and_log_failure(
                "removal of assignment and offsets",
                f"the subscription {subscription_id}",
                partial(self.clean_up, subscription_id),
            )

    def clean_up(self, subscription_id: str) -> None:
        """Clear what remains of a subscription. The note about it is removed last, so that a failure leaves it for the
        next round.
        """
        self.coordination.remove_subscription_state(subscription_id)
        self.subscription_repository.remove_deletion_note(subscription_id)

    def try_to_clean_up_all(self) -> None:
        """Clear what remains of all deleted subscriptions. What cannot be cleared now is left for the next
        housekeeping.
        """
        try:
            self.clean_up_all()
        except Fault:
            log.warning("Cleaning up deleted subscriptions failed, housekeeping will retry", exc_info=True)


# How many changes to subscriptions fit into the write that removes an event type, beside its own changes.
MAX_CHANGES_BESIDE_REMOVAL = 90


class SubscriptionsOfEventTypes(Struct, frozen=True, kw_only=True):
    """Adjusts subscriptions when an event type is deleted, or gets partitions."""

    subscription_repository: Subscriptions
    features: Features
    initialisation: OffsetInitialisation
    reset_requests: ResetRequests
    deleted_subscription_cleanup: DeletedSubscriptionCleanup
    deletable_owner: str
    deletable_group: str
    redrive_attachment: RedriveAttachment

    def any_depend_on(self, name: str) -> bool:
        return bool(self.subscription_repository.of_event_type(name))

    def readers_of(self, name: str) -> Sequence[Reader]:
        return [reader_of(each) for each in self.subscription_repository.of_event_type(name)]

    def changes_for_removal(self, event_type: EventType) -> tuple[DocumentChange, ...]:
        """Additional changes and conditions for the removal of an event type.

        Raises `Conflict` if subscriptions forbid it.
        """
        if event_type.name == self.redrive_attachment.event_type_name and self.redrive_attachment.is_attached():
            raise _has_subscriptions_conflict(event_type)
        mark = self.subscription_repository.no_new_subscription_condition(event_type)
        found = self.subscription_repository.of_event_type(event_type.name)
        if not self._may_delete_subscriptions(found) or self.subscription_repository.is_being_subscribed(
            event_type.name
        ):
            raise _has_subscriptions_conflict(event_type)
        changes = tuple(change for each in found for change in changes_to_remove(each))
        if len(changes) <= MAX_CHANGES_BESIDE_REMOVAL:
            return (mark, *changes)
        for each in found:
            self.subscription_repository.remove(each)
        return (mark,)

    def clear_deleted_subscriptions(self) -> None:
        """Clear the remains of subscriptions that were deleted together with an event type."""
        self.deleted_subscription_cleanup.try_to_clean_up_all()

    def before_repartitioning(self, event_type: EventType) -> None:
        """Give subscriptions that were never streamed their first offsets, while the event type does not have the new
        partitions yet."""
        for each in self.subscription_repository.of_event_type(event_type.name):
            self.initialisation.ensure_initialised(each)

    def after_repartitioning(self, event_type: EventType) -> None:
        """Make the subscriptions consume all partitions. The streams of subscriptions that get new partitions end, and
        their clients reconnect.
        """
        found = self.subscription_repository.of_event_type(event_type.name)
        extended = [each.id for each in found if self.initialisation.ensure_entries_for_event_type(each, event_type)[1]]
        self.reset_requests.close_streams(extended)
        # An earlier request for the same change may have been answered before its streams had ended: wait for these
        # too.
        self.reset_requests.wait_for_running_resets([each.id for each in found])

    def _may_delete_subscriptions(self, subscriptions: Sequence[Subscription]) -> bool:
        if not subscriptions or self.features.is_on(Feature.DELETE_EVENT_TYPE_WITH_SUBSCRIPTIONS):
            return True
        return all(
            (each.owning_application, each.consumer_group) == (self.deletable_owner, self.deletable_group)
            for each in subscriptions
        )


def _has_subscriptions_conflict(event_type: EventType) -> Conflict:
    return Conflict(f"Can't remove event type {event_type.name}, as it has subscriptions")


class RedriveAttachment(Struct, frozen=True, kw_only=True):
    subscription_repository: Subscriptions
    event_types: EventTypes
    features: Features
    cursor_resolver: CursorResolver
    logs: EventLogs
    coordination: Coordination
    initialisation: OffsetInitialisation
    event_type_name: str
    is_authentication_on: bool = False
    """Whether clients need tokens."""
    _searched_positions: dict[str, dict[str, Position]] = field(default_factory=dict)
    """How far each partition was searched, by the id of the event type, because a later event type may have the same
    name.
    """

    def run(self) -> None:
        """Attach the redrive event type to the subscriptions for which its new events are tagged.

        While the feature that is named after this job is on, the job does nothing.
        """
        event_type = self.event_types.find(self.event_type_name)
        if event_type is None or self.features.is_on(Feature.DLQ_REDRIVE_EVENT_TYPE_ATTACHMENT_JOB):
            return
        if self.is_authentication_on and _anyone_may_write(event_type):
            log.warning("%s is not attached: it names no writers, so all subjects may write", self.event_type_name)
            return
        if event_type.id not in self._searched_positions:
            self._searched_positions.clear()
            self._searched_positions[event_type.id] = dict(self.cursor_resolver.positions_before_oldest(event_type))
        for partition in event_type.partitions:
            run_and_log_failure(
                "search for redriven events",
                f"partition {partition}",
                partial(self._attach_to_new_targets, event_type, partition),
            )

    def is_attached(self) -> bool:
        return any(
            entry.partition.event_type == self.event_type_name
            for each in self.subscription_repository.newest_first()
            for entry in self.coordination.assignment(each.id).entries
        )

    def _attach_to_new_targets(self, event_type: EventType, partition: str) -> None:
        """Attach the event type to the subscriptions that new events of a partition name. After a failure, the next run
        searches the same events again.
        """
        named: set[str] = set()
        start = self._searched_positions[event_type.id].get(partition, Position(event_type.timeline.order, -1))
        end = start
        for tags, reached in self._target_subscriptions_behind(event_type, partition, start):
            named |= tags
            end = reached
        for subscription_id in named:
            self._attach(subscription_id, event_type)
        self._searched_positions[event_type.id][partition] = end

    def _attach(self, subscription_id: str, event_type: EventType) -> None:
        subscription = self.subscription_repository.find(subscription_id)
        if subscription is None:
            return
        beginnings = self.cursor_resolver.positions_before_oldest(event_type)
        partitions = {EventTypePartition(event_type.name, name): at for name, at in beginnings.items()}
        self.initialisation.ensure_entries_for_partitions(subscription, partitions)

    def _target_subscriptions_behind(
        self, event_type: EventType, partition: str, position: Position
    ) -> Iterator[tuple[set[str], Position]]:
        """The subscriptions that events after a position name, slice by slice: the ids that a slice names, and the
        position of its end.
        """
        number = int(partition)
        while True:
            timeline, offset = self.cursor_resolver.next_event_location(event_type, position, partition)
            event_log = self.logs.for_storage(timeline.storage_id)
            bounds = event_log.bounds(timeline.topic, [number])[number]
            offset = max(offset, bounds.oldest)
            while offset < bounds.next_offset:
                found = event_log.read(timeline.topic, number, offset)
                offset = found.next_offset
                named = {each.record.directed_to for each in found.events if each.record.directed_to is not None}
                yield named, Position(timeline.order, offset - 1)
            end = last_offset_if_closed(timeline, number)
            if end is None:
                return
            position = Position(timeline.order, end)


def _anyone_may_write(event_type: EventType) -> bool:
    return event_type.authorization is None or WILDCARD in event_type.authorization.writers
