"""Subscriptions: their event types and cursors, and the state that their streams share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property

from msgspec import UNSET, Struct, UnsetType, field

from nakadi.model.authorization import Attribute, Authorization, AuthorizationDraft, Resource, ResourceType
from nakadi.model.event_type import Position
from nakadi.model.objective import Objective


class ReadFrom(StrEnum):
    """Where the first stream begins. The values are in the order in which messages list them."""

    BEGIN = "begin"
    END = "end"
    CURSORS = "cursors"


class EventTypePartition(Struct, frozen=True, order=True, array_like=True):
    """A partition of one of several event types: the unit in which streams share a subscription."""

    event_type: str
    partition: str

    def __str__(self) -> str:
        """The form in messages of refusals."""
        return f"EventTypePartition{{eventType='{self.event_type}', partition='{self.partition}'}}"


class SubscriptionCursor(Struct, frozen=True, array_like=True):
    """A position as a client wrote it, in a partition of one of a subscription's event types."""

    event_type: str
    partition: str
    offset: str


class Subscription(Struct, frozen=True, kw_only=True, dict=True):
    """A registered subscription.

    `event_types` are sorted and without duplicates: together with the application and the group, they identify the
    subscription. `revision` counts the writes of the registered entry.

    `reads` are the paths of the members that it has declared to read, None without a declaration; with `projection`,
    its events have only these members. `declared_versions` are the schema versions at the time of the declaration, by
    event type.
    """

    id: str
    owning_application: str
    event_types: tuple[str, ...]
    consumer_group: str = "default"
    read_from: ReadFrom = ReadFrom.END
    initial_cursors: tuple[SubscriptionCursor, ...] = ()
    authorization: Authorization | None = None
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    reads: tuple[str, ...] | None = None
    projection: bool = False
    declared_versions: Mapping[str, str] = field(default_factory=dict)
    objective: Objective | None = None
    created_at: datetime
    updated_at: datetime
    revision: int = 0

    @cached_property
    def resource(self) -> Resource:
        return Resource(ResourceType.SUBSCRIPTION, self.id, self.authorization)


class SubscriptionCursorDraft(Struct, frozen=True):
    event_type: str | None = None
    partition: str | None = None
    offset: str | None = None


class ObjectiveDraft(Struct, frozen=True):
    percent: float | None = None
    within_seconds: int | None = None


class SubscriptionDraft(Struct, frozen=True, kw_only=True):
    """A subscription as a client sends it.

    Fields that the request leaves out have their defaults here; None means that a field was null, or is missing and has
    no default. For `annotations` and `labels`, None means: unchanged. For `reads` and `projection`, `UNSET` means
    unchanged, and None withdraws them.
    """

    owning_application: str | None = None
    event_types: tuple[str, ...] | None = None
    consumer_group: str | None = "default"
    read_from: ReadFrom | None = ReadFrom.END
    initial_cursors: tuple[SubscriptionCursorDraft, ...] = ()
    authorization: AuthorizationDraft | None = None
    annotations: Mapping[str, str | None] | None = None
    labels: Mapping[str, str | None] | None = None
    reads: tuple[str | None, ...] | UnsetType | None = UNSET
    projection: bool | UnsetType | None = UNSET
    objective: ObjectiveDraft | None = None


class PartitionState(StrEnum):
    UNASSIGNED = "unassigned"
    ASSIGNED = "assigned"
    REASSIGNING = "reassigning"


class Replay(Struct, frozen=True):
    """A replay of parked events of a partition: those up to `last_position` that have one of these keys and were not
    parked again since; None means every key. All other events up to there are consumed or parked.
    """

    id: str
    last_position: Position
    event_keys: tuple[str, ...] | None = None

    def includes(self, parked: ParkedEventInfo) -> bool:
        wanted = self.event_keys is None or parked.key in self.event_keys
        return wanted and parked.position <= self.last_position and parked.replay != self.id


class PartitionAssignment(Struct, frozen=True):
    """The entry of a partition in the assignment.

    `owner` is the session that reads the partition, and the only one that may commit; `next_owner` gets the partition
    when the owner releases it. `failed_streams` is how many streams ended without a commit; `search_end` is the end of
    the search for the event that caused this.
    """

    partition: EventTypePartition
    owner: str | None = None
    next_owner: str | None = None
    failed_streams: int = 0
    search_end: Position | None = None
    replay: Replay | None = None

    @property
    def state(self) -> PartitionState:
        if self.owner is None:
            return PartitionState.UNASSIGNED
        return PartitionState.ASSIGNED if self.next_owner is None else PartitionState.REASSIGNING


class Session(Struct, frozen=True, kw_only=True, array_like=True):
    """A stream of the subscription.

    It has the partitions that it named, or shares the others with other streams. It is alive as long as it is in the
    assignment and the process `process_id`, which serves it, has a lease.

    Any process may write a request for the process that serves it: `is_leaving` asks the session to end now, and
    `extensions_requested` counts requests for more time to commit. The session answers with `extensions_granted`, and
    with `commit_by`, the time that the latest extension grants. `flush_timeout` is how many seconds an event may wait
    to share a batch with others. Older versions of the broker write none of these.
    """

    id: str
    process_id: str
    started_at: datetime
    commit_timeout: float
    requested_partitions: tuple[EventTypePartition, ...] = ()
    is_leaving: bool = False
    extensions_requested: int = 0
    extensions_granted: int = 0
    commit_by: datetime | None = None
    flush_timeout: float = 0.0


class TimedOutSession(Struct, frozen=True, array_like=True):
    """A session that ended because its client had not committed for `commit_timeout` seconds."""

    id: str
    ended_at: datetime
    commit_timeout: float


class Standstill(Struct, frozen=True, array_like=True):
    """`streams` streams in a row ended with a partition committed up to `position`, although they had sent more."""

    partition: EventTypePartition
    position: Position
    streams: int


class SetOffsets(Struct, frozen=True):
    """The task of a reset that sets offsets. Without offsets, it only ends the streams."""

    positions: tuple[tuple[EventTypePartition, Position], ...] = ()


class Redrive(Struct, frozen=True):
    """The task of a reset that sends parked events again: the events of one partition with one key; None means all of
    them.
    """

    partition_and_key: tuple[EventTypePartition, str] | None = None


ResetTask = SetOffsets | Redrive


class Reset(Struct, frozen=True):
    """A request that all streams end, so that `task` can be carried out while no stream reads. No stream may begin
    until the reset has ended or expired.

    `began_at` is by the clock of the process that wrote it. Any process may carry out the `task` once the last session
    has ended. Older versions of the broker write neither. `is_claimed` says that one process is carrying out the task,
    so no other may.
    """

    id: str
    expires_at: datetime
    began_at: datetime | None = None
    task: ResetTask | None = None
    is_claimed: bool = False


class EndedReset(Struct, frozen=True):
    """The end of the last reset. `failure` says why it failed, if it did. `task` is set until the client has got the
    outcome.
    """

    id: str
    ended_at: datetime
    failure: str = ""
    task: ResetTask | None = None


class Assignment(Struct, frozen=True, kw_only=True):
    """The record that says which stream of a subscription reads which partition. A write succeeds only if no other
    process has changed the assignment since it was read.

    `initialised` says that every partition has its first offset; until then, there is nothing to stream.
    `timed_out_sessions` are the latest sessions that ended without a commit in time, so that the answer to a late
    commit can say why it is refused. `standstills` has at most one entry for each partition, which is obsolete once the
    offset has moved on.
    """

    revision: int = 0
    initialised: bool = False
    entries: tuple[PartitionAssignment, ...] = ()
    sessions: tuple[Session, ...] = ()
    reset: Reset | None = None
    ended_reset: EndedReset | None = None
    timed_out_sessions: tuple[TimedOutSession, ...] = ()
    standstills: tuple[Standstill, ...] = ()

    def entry(self, partition: EventTypePartition) -> PartitionAssignment | None:
        return next((each for each in self.entries if each.partition == partition), None)

    def session(self, session_id: str) -> Session | None:
        return next((each for each in self.sessions if each.id == session_id), None)


EMPTY_ASSIGNMENT = Assignment()
"""The assignment of a subscription without streams so far."""


class OffsetRange(Struct, frozen=True, order=True, array_like=True):
    """Adjacent offsets of a partition, from `first` up to and including `last`."""

    timeline: int
    first: int
    last: int

    @property
    def end(self) -> Position:
        return Position(self.timeline, self.last)

    def __contains__(self, position: Position) -> bool:
        return position.timeline == self.timeline and self.first <= position.offset <= self.last


MAX_OFFSET_RANGES = 1000
"""How many ranges a store keeps beside an offset."""


def joined_ranges(ranges: Iterable[OffsetRange], behind: Position) -> tuple[OffsetRange, ...]:
    """The smallest number of ranges that cover the same offsets after a position, in order; at most the first
    `MAX_OFFSET_RANGES`.
    """
    joined: list[OffsetRange] = []
    for each in sorted(ranges):
        if joined and joined[-1].timeline == each.timeline and each.first <= joined[-1].last + 1:
            before = joined.pop()
            each = OffsetRange(each.timeline, before.first, max(before.last, each.last))  # noqa: PLW2901  # one longer
        joined.append(each)
    return tuple(each for each in joined if each.end > behind)[:MAX_OFFSET_RANGES]


class CommittedOffset(Struct, frozen=True):
    """Events up to and including `position` are consumed, and so are those in `done_ahead`. `changed_at` is when the
    position or the owner last changed.
    """

    position: Position
    owner: str | None
    changed_at: datetime
    done_ahead: tuple[OffsetRange, ...] = ()


class ParkedEventInfo(Struct, frozen=True, kw_only=True):
    """An event that is parked for a subscription; its value is stored separately.

    `failed_streams` is how many streams had failed to process it; 0 means that it had to follow another event with its
    `key`. `replay` is the replay during which it was parked. `owner` is the only subject that may read this event.
    """

    partition: EventTypePartition
    position: Position
    key: str
    failed_streams: int
    stored_at: datetime
    parked_at: datetime
    replay: str | None = None
    owner: Attribute | None = None


class ParkedEvent(Struct, frozen=True):
    parked: ParkedEventInfo
    value: bytes


class CommitResult(StrEnum):
    COMMITTED = "committed"
    OUTDATED = "outdated"
    NOT_OWNED = "not_owned"


class SubscriptionChange(StrEnum):
    ASSIGNMENT = "assignment"
    OFFSETS = "offsets"


class OffsetsCommitted(Struct, frozen=True):
    """A session's commit, for listeners. It contains all positions, so that listeners need not read the offsets."""

    session: str
    positions: tuple[tuple[EventTypePartition, Position], ...]


SubscriptionChangeNotice = SubscriptionChange | OffsetsCommitted
