"""The coordination: the shared state of a subscription's streams, and its parked events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from nakadi.model.event_type import Position

if TYPE_CHECKING:
    # A Lambda function that publishes needs no subscriptions, and starts sooner without this import.
    from nakadi.model.subscription import (
        Assignment,
        CommitResult,
        CommittedOffset,
        EventTypePartition,
        OffsetRange,
        ParkedEvent,
        ParkedEventInfo,
        SubscriptionChangeNotice,
    )


CommitResultByPartition = Mapping["EventTypePartition", "CommitResult"]
"""The result of each partition of a commit."""

DoneAheadByPartition = Mapping["EventTypePartition", Sequence["OffsetRange"]]
"""For each partition, the events after its position that are already consumed."""


MAX_PARTITIONS_PER_WRITE = 99
"""How many partitions one `Coordination.replace_assignment` may give another owner or position: every engine can change
this many in one atomic step, together with the assignment itself."""


MAX_PARKED_EVENTS_PER_CALL = 50


MAX_PARKED_BYTES_PER_CALL = 3_000_000
"""How many events one `Coordination.park_events` may park, and how many bytes they may have together; a single event
may have any size that could be published."""


class AssignmentChanged(Exception):
    """Raised by `Coordination.replace_assignment` when the assignment has changed since the writer read it."""


class Coordination(Protocol):
    """The state that the streams of a subscription share across all processes: an assignment, offsets, and leases.

    The *assignment* says which sessions there are, and to which session each partition belongs. A caller reads it,
    decides, and replaces it unless another process has replaced it meanwhile; every rule is a pure function from one
    assignment to the next. Each of its entries has a separate *offset*, which includes the entry's owner, so that a
    commit is one small write. *Leases* belong to the processes that serve sessions: a process that hosts a thousand
    idle streams renews one. Events that consumers could not process are *parked*, at most one at each position.

    * When a call returns, its change is durable, and every later read by any process sees it.
    * Of several writers that read the same assignment, exactly one succeeds; the others change nothing.
    * Owners change with the assignment, in the same atomic step: at no time can two sessions commit one partition, and
      a session can commit from the write that makes it the owner to the write that gives the partition to another.
    * Commits move an offset forward; a write that sets an offset moves it in either direction.
    * The coordination reads no clock: `subscriptions.api.assignments` decides whether a lease has expired.
    """

    def assignment(self, subscription: str) -> Assignment:
        """The assignment; `EMPTY_ASSIGNMENT` before the first write, and again after `remove_subscription_state`."""

    def replace_assignment(
        self,
        subscription: str,
        old: Assignment,
        new: Assignment,
        now: datetime,
        positions: Mapping[EventTypePartition, Position] | None = None,
    ) -> Assignment:
        """Replace `old`, as it was read, with `new`, and return `new` as it is stored; raise `AssignmentChanged` if the
        stored assignment is no longer `old`.

        Owners of offsets follow the entries, and `positions` are set. An entry that is not in `old` must come with its
        position; no entry may disappear. At most `MAX_PARTITIONS_PER_WRITE` partitions get another owner or position.

        After a change of position, no event counts as done ahead: the events after the position are consumed again. An
        entry whose replay only sends parked events again stays unchanged.
        """

    def committed_offsets(self, subscription: str) -> Mapping[EventTypePartition, CommittedOffset]:
        """The present offsets of all entries."""

    async def commit(
        self,
        subscription: str,
        session: str,
        positions: Mapping[EventTypePartition, Position],
        now: datetime,
        done_ahead: DoneAheadByPartition | None = None,
    ) -> CommitResultByPartition:
        """Move the offset of each partition forward, independently of the others; the result for a partition is
        `COMMITTED` if the session owns the partition and the position is greater than the stored one, `OUTDATED` if the
        session owns it and the position is not greater, `NOT_OWNED` if the session does not own it. There may be no
        positions at all; then nothing changes.

        `done_ahead`, for some of these partitions, is added to the stored ranges in the same atomic step as the
        position, even if the position is outdated. If there are too many ranges, those nearest to the position are kept
        (`joined_ranges`). Listeners are not notified of these ranges.

        A task of `nakadi.common.waiting`.
        """

    def park_events(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        commit_to: Position | None = None,
    ) -> CommitResult:
        """Park events of one partition and move its offset to `commit_to`, all in one atomic step.

        `NOT_OWNED` if the session does not own the partition, `OUTDATED` if `commit_to` is not greater than the stored
        position: either changes nothing. Without `commit_to`, the offset stays, and the result is never `OUTDATED`.
        Existing events are replaced. At most `MAX_PARKED_EVENTS_PER_CALL` events with `MAX_PARKED_BYTES_PER_CALL`, or a
        single event of any size.
        """

    def list_parked_events(
        self,
        subscription: str,
        *,
        partition: EventTypePartition | None = None,
        after: tuple[EventTypePartition, Position] | None = None,
        limit: int = 1000,
    ) -> Sequence[ParkedEventInfo]:
        """The first parked events after this position, of the subscription or of one partition, at most `limit`.

        They are in the order of event types, partitions (both as texts) and positions.
        """

    def parked_event_value(self, subscription: str, partition: EventTypePartition, position: Position) -> bytes | None:
        """A parked event as the client published it; None if it is no longer parked."""

    def remove_parked_events(
        self, subscription: str, partition: EventTypePartition, positions: Collection[Position]
    ) -> None:
        """Remove any number of parked events. A repeated call changes nothing."""

    def remove_subscription_state(self, subscription: str) -> None:
        """Remove all state of a subscription. A repeated call changes nothing."""

    def renew_lease(self, holder: str, until: datetime) -> None:
        """Give a process a lease until this time, replacing its earlier lease."""

    def release_lease(self, holder: str) -> None:
        """End a process's lease. A repeated call changes nothing."""

    def lease_expiries(self) -> Mapping[str, datetime]:
        """The expiry time of each process's lease. Leases that expired long ago may be missing."""

    def add_change_listener(
        self, subscription: str, on_change: Callable[[SubscriptionChangeNotice], None]
    ) -> Callable[[], None]:
        """Arrange that `on_change` is called soon after any state of the subscription changes; the returned function
        removes the listener.

        It may be called more often than needed, from any thread, and must return quickly. It is called at once for
        changes by this process, and within a second for changes by others. For a commit, the positions may be passed
        along.
        """

    def close(self) -> None:
        """Release all resources. Further calls raise `Unavailable`."""
