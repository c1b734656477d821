"""Subscriptions: many consumers of some event types, one cursor for each partition, and what their streams share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property

from msgspec import Struct, field

from nakadi.model.authorization import Attribute, Authorization, AuthorizationDraft, Resource, ResourceType
from nakadi.model.event_type import Position


class ReadFrom(StrEnum):
    """Where the first stream begins; in the order in which messages list them."""

    BEGIN = "begin"
    END = "end"
    CURSORS = "cursors"


class EventTypePartition(Struct, frozen=True, order=True, array_like=True):
    """A partition of one of several event types: the unit that streams share a subscription by."""

    event_type: str
    partition: str

    def __str__(self) -> str:
        """As refusals name it."""
        return f"EventTypePartition{{eventType='{self.event_type}', partition='{self.partition}'}}"


class SubscriptionCursor(Struct, frozen=True, array_like=True):
    """A place as a client wrote it, in a partition of one of a subscription's event types."""

    event_type: str
    partition: str
    offset: str


class Subscription(Struct, frozen=True, kw_only=True, dict=True):
    """A subscription as it is registered.

    `event_types` are sorted and without duplicates: together with application and group they are what makes it this
    subscription and no other. `revision` counts the writes of the registered entry.
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


class SubscriptionDraft(Struct, frozen=True, kw_only=True):
    """A subscription as a client sends it.

    A field that the request leaves out has its default here; None says that it was null, or missing without a default.
    For `annotations` and `labels`, None means: as they were.
    """

    owning_application: str | None = None
    event_types: tuple[str, ...] | None = None
    consumer_group: str | None = "default"
    read_from: ReadFrom | None = ReadFrom.END
    initial_cursors: tuple[SubscriptionCursorDraft, ...] = ()
    authorization: AuthorizationDraft | None = None
    annotations: Mapping[str, str | None] | None = None
    labels: Mapping[str, str | None] | None = None


class PartitionState(StrEnum):
    UNASSIGNED = "unassigned"
    ASSIGNED = "assigned"
    REASSIGNING = "reassigning"


class Replay(Struct, frozen=True):
    """Parked events of a partition are sent once more: those up to `last_position` that have one of these keys
    and were not parked again since; None stands for every key. Everything else up to there is consumed or parked.
    """

    id: str
    last_position: Position
    event_keys: tuple[str, ...] | None = None

    def includes(self, parked: ParkedEventInfo) -> bool:
        wanted = self.event_keys is None or parked.key in self.event_keys
        return wanted and parked.position <= self.last_position and parked.replay != self.id


class PartitionAssignment(Struct, frozen=True):
    """A partition's line in the assignment.

    `owner` is the session that reads it and alone may commit; `next_owner` the one that gets it once the owner lets go.
    `failed_streams` is how many ended without a commit; `search_end` is how far the search for the event behind
    that goes on.
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
    """A stream that takes part: with the partitions that it asked for by name, or as one of those that share the rest.

    It lives as long as it is in the assignment and its `process_id`, the process that serves it, has a lease.

    Any process may note what the client asks of it, for the process that serves it to find: `is_leaving` that it is to
    end now, and `extensions_requested` how often more time to commit was asked for. The session answers with
    `extensions_granted`, and with `commit_by`, until when the latest gives it time. Older versions of the broker write
    none of these.
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


class TimedOutSession(Struct, frozen=True, array_like=True):
    """A session that ended at a moment because its client had not committed for `commit_timeout` seconds."""

    id: str
    ended_at: datetime
    commit_timeout: float


class SetOffsets(Struct, frozen=True):
    """Offsets are to be set. Without any, streams are only to end."""

    positions: tuple[tuple[EventTypePartition, Position], ...] = ()


class Redrive(Struct, frozen=True):
    """Parked events are to be sent once more: those of one partition with one key; None stands for all of them."""

    partition_and_key: tuple[EventTypePartition, str] | None = None


ResetTask = SetOffsets | Redrive


class Reset(Struct, frozen=True):
    """Streams end, and none may begin until this has ended, or has expired, because of what is to be done without them.

    `began_at` is by the clock of the process that wrote it. `task` is what is to be done; any process may do that once
    the last session is gone. Older versions of the broker write neither. `is_claimed` says that one process is about to
    do it, and no other may.
    """

    id: str
    expires_at: datetime
    began_at: datetime | None = None
    task: ResetTask | None = None
    is_claimed: bool = False


class EndedReset(Struct, frozen=True):
    """How the last reset ended: `failure` says why not well. `task` is there until the caller has learned the end."""

    id: str
    ended_at: datetime
    failure: str = ""
    task: ResetTask | None = None


class Assignment(Struct, frozen=True, kw_only=True):
    """The one record of a subscription that everything is decided by, and written only as it was read.

    `initialised` says that every partition has got its first offset; until then there is nothing to stream.
    `timed_out_sessions` are the latest of those, so that a late commit can be told why it is refused.
    """

    revision: int = 0
    initialised: bool = False
    entries: tuple[PartitionAssignment, ...] = ()
    sessions: tuple[Session, ...] = ()
    reset: Reset | None = None
    ended_reset: EndedReset | None = None
    timed_out_sessions: tuple[TimedOutSession, ...] = ()

    def entry(self, partition: EventTypePartition) -> PartitionAssignment | None:
        return next((each for each in self.entries if each.partition == partition), None)

    def session(self, session_id: str) -> Session | None:
        return next((each for each in self.sessions if each.id == session_id), None)


EMPTY_ASSIGNMENT = Assignment()
"""The assignment of a subscription without streams so far."""


class CommittedOffset(Struct, frozen=True):
    """Everything up to and with `position` is consumed. `changed_at` is when position or owner last changed."""

    position: Position
    owner: str | None
    changed_at: datetime


class ParkedEventInfo(Struct, frozen=True, kw_only=True):
    """An event that is parked for a subscription; its value is kept beside this.

    `failed_streams` is how many had failed at it; 0 says that it had to follow another one of its `key`. `replay` is
    the one during which it was parked. `owner` is who may read this single event.
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
    """A session's commit, for listeners: what changed is all in here, so that they need not read the offsets."""

    session: str
    positions: tuple[tuple[EventTypePartition, Position], ...]


SubscriptionChangeNotice = SubscriptionChange | OffsetsCommitted
