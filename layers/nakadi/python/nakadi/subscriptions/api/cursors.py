"""The cursors of a subscription: listing, committing, and resetting them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from nakadi.auth.permissions import Permissions
from nakadi.common.metrics import Metrics
from nakadi.common.waiting import LEAVE_LOOP
from nakadi.event_types.cursors import CursorError, CursorErrorKind, offset_digits
from nakadi.event_types.positions import position_in_newest_timeline, timeline_with_order
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import Cursor, EventType, Position
from nakadi.model.outcomes import Invalid, NotFound
from nakadi.model.subscription import CommitResult, EventTypePartition, Subscription, SubscriptionCursor
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import CommitResultByPartition, Coordination
from nakadi.subscriptions.api.access import CONSUMER_BLOCKED_MESSAGE
from nakadi.subscriptions.api.offsets import OffsetInitialisation, ResetRequests
from nakadi.subscriptions.api.open_streams import check_stream_id, session_not_found_message
from nakadi.subscriptions.api.repository import Subscriptions, subscription_not_found

CURSORS_EMPTY_MESSAGE = "Cursors are empty"

_DECIMAL_NUMBER_PATTERN = re.compile(r"[0-9]+", re.ASCII)

OFFSET_BEFORE_FIRST_EVENT = -1


class _ResolvedCursor(Struct, frozen=True):
    cursor: SubscriptionCursor
    partition: EventTypePartition
    event_type: EventType
    position: Position


class CursorOperations(Struct, frozen=True, kw_only=True):
    """Reads, commits and resets the cursors of a subscription, as clients request it."""

    subscription_repository: Subscriptions
    event_types: EventTypes
    cursor_resolver: CursorResolver
    permissions: Permissions
    coordination: Coordination
    initialisation: OffsetInitialisation
    reset_requests: ResetRequests
    clock: Clock
    metrics: Metrics

    def committed_positions(
        self, subscription_id: str, subject: Subject
    ) -> Sequence[tuple[EventTypePartition, Position]]:
        """The committed position of each partition; empty before the first stream."""
        self._require_consumer(subscription_id, subject, Operation.VIEW)
        offsets = self.coordination.committed_offsets(subscription_id)
        return sorted(
            ((partition, each.position) for partition, each in offsets.items()), key=_by_event_type_and_number
        )

    # Committing

    async def commit(
        self, subscription_id: str, stream_id: str, cursors: Sequence[SubscriptionCursor], subject: Subject
    ) -> Sequence[CommitResult]:
        """Commit for a stream. Return, for each cursor in order, whether it moved the offset of its partition."""
        try:
            resolved = self._resolve_for_commit(subscription_id, stream_id, cursors, subject)
            if len(resolved) > 1:
                verdicts = await self._commit_several(subscription_id, stream_id, resolved)
            else:
                # Most commits have one cursor: one conditional write, without a read unless it fails. Two simultaneous
                # commits of one partition do no harm: the write compares offsets, and an offset never moves back.
                partition, positions = (
                    resolved[0].partition,
                    {resolved[0].partition: _storable_position(resolved[0].position)},
                )
                written = await self.coordination.commit(subscription_id, stream_id, positions, self.clock.now())
                await self._require_owned_by_stream(written, subscription_id, stream_id, resolved)
                verdicts = [written[partition]]
        except Exception:
            self.metrics.cursors_committed.add(len(cursors), "refused")
            raise
        for verdict in verdicts:
            self.metrics.cursors_committed.add(1, verdict.name.lower())
        return verdicts

    def _resolve_for_commit(
        self, subscription_id: str, stream_id: str, cursors: Sequence[SubscriptionCursor], subject: Subject
    ) -> Sequence[_ResolvedCursor]:
        resolved = [self._resolved_from_cache(each) for each in cursors]
        if not resolved:
            raise Invalid(CURSORS_EMPTY_MESSAGE)
        self._require_consumer(subscription_id, subject, Operation.VIEW, Operation.READ)
        for each in resolved:
            _check_partition_and_timeline(each)
        check_stream_id(stream_id)
        return resolved

    async def _commit_several(
        self, subscription_id: str, stream_id: str, resolved: Sequence[_ResolvedCursor]
    ) -> Sequence[CommitResult]:
        """Commit several cursors. All partitions are read before the first is written."""
        await LEAVE_LOOP
        offsets = self.coordination.committed_offsets(subscription_id)
        if any(each.partition not in offsets or offsets[each.partition].owner != stream_id for each in resolved):
            raise self._why_commit_was_refused(subscription_id, stream_id, resolved)
        before = {each.partition: offsets[each.partition].position for each in resolved}
        judged, greatest = commit_results_in_order(
            [(each.partition, _storable_position(each.position)) for each in resolved], before
        )
        written = await self.coordination.commit(subscription_id, stream_id, greatest, self.clock.now())
        await self._require_owned_by_stream(written, subscription_id, stream_id, resolved)
        # If another request commits meanwhile, the remaining cursors of that partition are outdated.
        return [
            verdict if written.get(each.partition, verdict) is CommitResult.COMMITTED else CommitResult.OUTDATED
            for each, verdict in zip(resolved, judged, strict=True)
        ]

    async def _require_owned_by_stream(
        self,
        written: CommitResultByPartition,
        subscription_id: str,
        stream_id: str,
        resolved: Sequence[_ResolvedCursor],
    ) -> None:
        if CommitResult.NOT_OWNED in written.values():
            await LEAVE_LOOP
            raise self._why_commit_was_refused(subscription_id, stream_id, resolved)

    def _why_commit_was_refused(
        self, subscription_id: str, stream_id: str, resolved: Sequence[_ResolvedCursor]
    ) -> Invalid:
        """The first reason why a stream may not commit these cursors."""
        assignment = self.coordination.assignment(subscription_id)
        if assignment.session(stream_id) is None:
            return Invalid(session_not_found_message(assignment, stream_id))
        for each in resolved:
            entry = assignment.entry(each.partition)
            if entry is None or entry.owner is None:
                return Invalid(str(_partition_not_found(each)))
            if entry.owner != stream_id:
                shown = f"{each.partition.event_type}:{each.partition.partition}:{each.position}"
                return Invalid(f"Cursor {shown} cannot be committed with stream id {stream_id}")
        # No reason is left: the partition belonged to another session when the commit was refused.
        return Invalid(str(_partition_not_found(resolved[0])))

    # Resetting

    def reset(self, subscription_id: str, cursors: Sequence[SubscriptionCursor], subject: Subject) -> None:
        """Set offsets, backward or forward. Without cursors, only initialise the offsets."""
        found = self.subscription_repository.find(subscription_id)
        self._require_not_blocked(found, subject)
        # The registry, not the cache, supplies the event type: the bounds that are read next belong to the event type
        # as it is now.
        resolved = [self._resolved_from_registry(each) for each in cursors]
        if found is None:
            raise subscription_not_found(subscription_id)
        self.permissions.require_all_operations((Operation.VIEW, Operation.ADMIN), found.resource, subject)
        self._check_subscribed(found, resolved)
        self._check_readable(resolved)
        self.initialisation.ensure_initialised(found)
        if resolved:
            self.reset_requests.reset_offsets(
                subscription_id, {each.partition: _storable_position(each.position) for each in resolved}
            )

    def _check_subscribed(self, subscription: Subscription, resolved: Sequence[_ResolvedCursor]) -> None:
        foreign = sorted({each.event_type.name for each in resolved} - set(subscription.event_types))
        if foreign:
            raise Invalid(f"Event type does not belong to subscription: [{', '.join(foreign)}]")

    def _check_readable(self, resolved: Sequence[_ResolvedCursor]) -> None:
        try:
            for each in resolved:
                self.cursor_resolver.check_readable(
                    each.event_type, each.cursor.partition, each.position, each.cursor.offset
                )
        except CursorError as error:
            raise Invalid(str(error)) from error

    # Committing and resetting

    def _resolved_from_cache(self, cursor: SubscriptionCursor) -> _ResolvedCursor:
        """The position that a cursor names.

        If the cached event type does not know its timeline, the registry is read.
        """
        try:
            return self._resolved_in_event_type(self.event_types.cached(cursor.event_type), cursor)
        except (CursorError, NotFound):
            return self._resolved_from_registry(cursor)

    def _resolved_from_registry(self, cursor: SubscriptionCursor) -> _ResolvedCursor:
        try:
            return self._resolved_in_event_type(self.event_types.get(cursor.event_type), cursor)
        except (CursorError, NotFound) as error:
            raise Invalid(str(error)) from error

    def _resolved_in_event_type(self, event_type: EventType, cursor: SubscriptionCursor) -> _ResolvedCursor:
        position = position_in_newest_timeline(event_type, cursor.offset)
        if position is None:
            position = self.cursor_resolver.resolve(event_type, Cursor(cursor.partition, cursor.offset))
        return _ResolvedCursor(cursor, EventTypePartition(cursor.event_type, cursor.partition), event_type, position)

    def _require_consumer(self, subscription_id: str, subject: Subject, *operations: Operation) -> None:
        """Check that a subject may consume a subscription. The block is checked first, so that a blocked subject does
        not find out whether the subscription exists."""
        try:
            found = self.subscription_repository.cached(subscription_id)
        except NotFound:
            self._require_not_blocked(None, subject)
            raise
        self._require_not_blocked(found, subject)
        self.permissions.require_all_operations(operations, found.resource, subject)

    def _require_not_blocked(self, subscription: Subscription | None, subject: Subject) -> None:
        event_types = () if subscription is None else subscription.event_types
        self.permissions.require_consumer(subject, event_types, CONSUMER_BLOCKED_MESSAGE)


def commit_results_in_order(
    cursors: Sequence[tuple[EventTypePartition, Position]], committed: Mapping[EventTypePartition, Position]
) -> tuple[Sequence[CommitResult], Mapping[EventTypePartition, Position]]:
    """The result of each cursor, if those before it were committed first; and the new position of each partition that
    moves.
    """
    reached, verdicts = dict(committed), []
    for partition, position in cursors:
        further = position > reached[partition]
        verdicts.append(CommitResult.COMMITTED if further else CommitResult.OUTDATED)
        reached[partition] = max(position, reached[partition])
    return verdicts, {partition: position for partition, position in reached.items() if position > committed[partition]}


def _check_partition_and_timeline(resolved: _ResolvedCursor) -> None:
    """Raise unless the partition's name is a number, and the timeline's events still exist."""
    partition = resolved.cursor.partition
    if not _DECIMAL_NUMBER_PATTERN.fullmatch(partition):
        raise Invalid(str(_partition_not_found(resolved)))
    timeline = timeline_with_order(resolved.event_type, resolved.position.timeline)
    if timeline is None or timeline.deleted:
        digits = offset_digits(resolved.position, resolved.cursor.offset)
        raise Invalid(str(CursorError(CursorErrorKind.UNAVAILABLE, partition, digits, resolved.event_type.name)))


def _partition_not_found(resolved: _ResolvedCursor) -> CursorError:
    return CursorError(CursorErrorKind.PARTITION_NOT_FOUND, resolved.cursor.partition)


def _storable_position(position: Position) -> Position:
    """The position to store. All positions before the first event are stored as one and the same position."""
    return Position(position.timeline, max(OFFSET_BEFORE_FIRST_EVENT, position.offset))


def _by_event_type_and_number(item: tuple[EventTypePartition, Position]) -> tuple[str, int]:
    return item[0].event_type, int(item[0].partition)
