"""The inputs and outputs of a session: the limits of its stream, its state, its actions, and the reason for its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Protocol

from msgspec import Struct, field

from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.objective import ConsumedBatch
from nakadi.model.outcomes import Invalid
from nakadi.model.subscription import Assignment, CommittedOffset, EventTypePartition, Replay, Standstill
from nakadi.streaming.chunks import EventRun
from nakadi.streaming.session import (
    DEFAULT_FLUSH_TIMEOUT_SECONDS,
    DEFAULT_STREAM_SECONDS_RANGE,
    MAX_STREAM_SECONDS,
    PickSeconds,
    shortened_seconds,
)
from nakadi.subscriptions.stream.stream_memory import StreamMemory

DEFAULT_MAX_UNCOMMITTED_EVENTS = 10

# Clients give up a connection that is silent for half a minute, whatever flush timeout they requested.
MAX_SECONDS_BETWEEN_LINES = 25.0

# What a session does about uncommitted events after its client has disconnected: it waits for their commits, or ends at
# once.
DISCONNECT_CHOICES = WAIT_ON_DISCONNECT, RELEASE_ON_DISCONNECT = "wait", "release"


class SubscriptionStreamParameters(Struct, frozen=True, kw_only=True):
    """The parameters of a request; None for those that it leaves out."""

    batch_limit: int | None = None
    max_uncommitted_events: int | None = None
    stream_limit: int | None = None
    batch_flush_timeout: int | None = None
    batch_timespan: int | None = None
    stream_timeout: int | None = None
    stream_keep_alive_limit: int | None = None
    commit_timeout: int | None = None
    on_disconnect: str | None = None
    partitions: tuple[EventTypePartition, ...] = ()


class SubscriptionStreamLimits(Struct, frozen=True, kw_only=True):
    """The limits of a stream. Times are in seconds; 0 means no limit or no timespan.

    `max_uncommitted_events` is how many sent events may be uncommitted in all partitions together.
    `max_uncommitted_per_partition` is the same for each partition; 0 means no limit. With `releases_on_disconnect`, the
    session ends when its client disconnects, without waiting for commits. With `sends_at_once`, all events that are
    ready are sent at once, in batches.
    """

    batch_limit: int = 1
    max_uncommitted_events: int = DEFAULT_MAX_UNCOMMITTED_EVENTS
    stream_limit: int = 0
    flush_seconds: float = DEFAULT_FLUSH_TIMEOUT_SECONDS
    batch_timespan_seconds: float = 0
    stream_seconds: float = MAX_STREAM_SECONDS
    keep_alive_limit: int = 0
    commit_seconds: float = 60
    releases_on_disconnect: bool = False
    max_uncommitted_per_partition: int = 0
    sends_at_once: bool = False
    max_seconds_between_lines: float = MAX_SECONDS_BETWEEN_LINES

    @property
    def sends_each_event_at_once(self) -> bool:
        """Whether each event is sent at once, without waiting for further events of a batch."""
        return self.sends_at_once or self.batch_limit == 1


def stream_limits(
    asked: SubscriptionStreamParameters,
    max_commit_seconds: int,
    pick_seconds: PickSeconds,
    max_stream_seconds: int | None = None,
) -> SubscriptionStreamLimits:
    """The limits of a stream for these parameters.

    Raises `Invalid` for the first rule that they break. A zero means the same as an omitted parameter, because some
    clients always send every parameter.
    """
    batch_limit = 1 if asked.batch_limit is None else asked.batch_limit
    commit_timeout = asked.commit_timeout or max_commit_seconds
    _refuse_unless(batch_limit >= 1, "batch_limit can't be lower than 1")
    _refuse_unless(commit_timeout <= max_commit_seconds, f"commit_timeout can not be more than {max_commit_seconds}")
    _refuse_unless(commit_timeout >= 0, "commit_timeout can not be less than 0")
    for name in ("max_uncommitted_events", "stream_limit", "batch_flush_timeout", "batch_timespan"):
        _check_not_negative(name, getattr(asked, name))
    _check_not_negative("stream_keep_alive_limit", asked.stream_keep_alive_limit)
    _refuse_unless(
        asked.on_disconnect in (None, *DISCONNECT_CHOICES),
        f"on_disconnect has to be one of: {', '.join(DISCONNECT_CHOICES)}",
    )
    seconds = _stream_seconds(asked.stream_timeout, pick_seconds)
    return SubscriptionStreamLimits(
        batch_limit=batch_limit,
        max_uncommitted_events=asked.max_uncommitted_events or DEFAULT_MAX_UNCOMMITTED_EVENTS,
        stream_limit=asked.stream_limit or 0,
        flush_seconds=asked.batch_flush_timeout or DEFAULT_FLUSH_TIMEOUT_SECONDS,
        batch_timespan_seconds=asked.batch_timespan or 0,
        stream_seconds=shortened_seconds(seconds, max_stream_seconds, pick_seconds),
        keep_alive_limit=asked.stream_keep_alive_limit or 0,
        commit_seconds=commit_timeout,
        releases_on_disconnect=asked.on_disconnect == RELEASE_ON_DISCONNECT,
    )


def _stream_seconds(asked: int | None, pick_seconds: PickSeconds) -> int:
    return (
        asked if asked is not None and 0 < asked <= MAX_STREAM_SECONDS else pick_seconds(*DEFAULT_STREAM_SECONDS_RANGE)
    )


def _check_not_negative(name: str, value: int | None) -> None:
    _refuse_unless((value or 0) >= 0, f"{name} can't be lower than 0")


def _refuse_unless(condition: bool, message: str) -> None:
    if not condition:
        raise Invalid(message)


class SendBatch(Struct, frozen=True):
    """Send events of a partition; `position` is that of the last event."""

    partition: EventTypePartition
    position: Position
    runs: tuple[EventRun, ...]
    info: str = ""


class SendKeepAlive(Struct, frozen=True):
    """Send the position of a partition without events, perhaps with debug information, or with the message that the
    following events cannot be read.
    """

    partition: EventTypePartition
    position: Position
    info: str = ""
    is_unreadable: bool = False


class OpenPartition(Struct, frozen=True):
    """Find out where reading continues after a position, open a source there, and call `handle_opening`. A source of
    the partition that is already open is closed first.

    With a `replay`, parked events come first.
    """

    partition: EventTypePartition
    position: Position
    opening_number: int = 0
    replay: Replay | None = None


class ClosePartition(Struct, frozen=True):
    """Read no more of a partition."""

    partition: EventTypePartition


class CountConsumed(Struct, frozen=True):
    """Count the events of batches that the client has just committed, by their age. Only for subscriptions with an
    objective.
    """

    batches: tuple[ConsumedBatch, ...]


class AutoCommit(Struct, frozen=True):
    """Commit events that the client never received."""

    positions: Mapping[EventTypePartition, Position]


class HandOverPartitions(Struct, frozen=True):
    """Hand over partitions that other sessions wait for, after committing the events that were skipped."""

    partitions: frozenset[EventTypePartition]
    commit_positions: Mapping[EventTypePartition, Position] = field(default_factory=dict)


class FailureCountChange(Struct, frozen=True):
    """Record in a partition's entry how often it failed, and where the search for the failing event ends."""

    partition: EventTypePartition
    failed_streams: int
    search_end: Position | None


class GiveUpOnEvent(Struct, frozen=True):
    """Apply the subscription's policy to an event that consumers have repeatedly failed to process. Then the event
    counts as consumed.
    """

    partition: EventTypePartition
    event: EventRun
    failed_streams: int
    replay_id: str | None = None


class ParkEvents(Struct, frozen=True, kw_only=True):
    """Park events that have to follow parked events of their keys, and move the cursor if `commit_position` is set;
    then call `handle_parking_end`.

    `opening_number` identifies the opening after which the events were read.
    """

    partition: EventTypePartition
    events: tuple[EventRun, ...]
    commit_position: Position | None
    replay_id: str | None
    opening_number: int


class ReloadParkedKeys(Struct, frozen=True):
    """Read which keys are parked now, and pass them to `handle_parked_keys`."""

    partition: EventTypePartition
    replay: Replay | None
    opening_number: int


class EndReplay(Struct, frozen=True):
    """End a replay, all of whose events are consumed or parked again, and remove the consumed ones from the parked
    events.
    """

    partition: EventTypePartition
    replay: Replay


class GrantExtension(Struct, frozen=True):
    """Answer a request for more time: the client has until this moment, by the steady clock of this process."""

    number: int
    commit_by: float


class DepartureRecord(Struct, frozen=True):
    """The records to write when a session ends: the numbers of failures in its partitions, and the positions of events
    that its client never received.

    `has_timed_out` says that the client's time to commit had ended. `standstills` has the committed positions of the
    partitions, and counts one stream for each partition of which the client has not committed everything that it was
    sent.
    """

    failure_counts: tuple[FailureCountChange, ...] = ()
    commit_positions: Mapping[EventTypePartition, Position] = field(default_factory=dict)
    has_timed_out: bool = False
    standstills: tuple[Standstill, ...] = ()


SessionLine = SendBatch | SendKeepAlive
SessionCall = (
    OpenPartition
    | AutoCommit
    | HandOverPartitions
    | FailureCountChange
    | GiveUpOnEvent
    | ParkEvents
    | ReloadParkedKeys
    | EndReplay
    | GrantExtension
)
SessionAction = SessionLine | SessionCall | ClosePartition | CountConsumed


class SessionEnd(Enum):
    """Why a stream ended, in the words of the log."""

    LIMIT = "stream_limit events were sent"
    TIMEOUT = "its stream_timeout passed"
    KEEP_ALIVES = "as many keep-alives in a row as stream_keep_alive_limit"
    COMMIT_TIMEOUT = "nothing was committed within commit_timeout"
    RELEASE_TIMEOUT = "a partition that another stream waits for was not committed in time"
    IDLE = "it had no partitions for too long"
    RESET = "the cursors of the subscription are being reset"
    BLOCKED = "the application or an event type is blocked"
    GONE = "its client is gone"
    # The reasons to end at once because the client will commit nothing further.
    LEFT = "a request ended it, from its client or an operator"
    RELEASED = "its client is gone, and wanted its partitions to be released then"
    # Reasons to end at once, without a chance to commit.
    DRAINED = "this process is stopping"
    REFUSED = "its client may not read any more, or cannot go on"
    EVENT_FAILED = "its sink failed at an event, which the next stream gives up"
    REMOVED = "its session was removed"
    LEASE_LOST = "this process lost its lease"


class SharedState(Struct, frozen=True):
    """The shared state of a subscription's streams, as it was read: first the assignment, then the offsets.

    `is_being_reset` says that offsets are being reset right now.
    """

    assignment: Assignment
    offsets: Mapping[EventTypePartition, CommittedOffset]
    is_being_reset: bool = False


class SessionProgress(Struct, frozen=True):
    """How many partitions a session has, how many sent events are uncommitted, and when the oldest uncommitted event
    was stored.
    """

    partition_count: int
    uncommitted_events: int
    oldest_stored_at: datetime | None


class ProcessLease(Struct):
    """The lease under whose name other processes know this one, and its end: `valid_until` is a time of this process's
    steady clock.
    """

    process_id: str
    valid_until: float

    def is_valid(self, now: float) -> bool:
        return now < self.valid_until


IsDeliverable = Callable[[EventTypePartition, Record], bool]
MeasureDistance = Callable[[EventTypePartition, Position, Position], int]
"""How many events lie after the first position, up to and including the second."""


class ReadingRules(Protocol):
    """Rules for reading that apply to all streams of this process, and may change at any time."""

    skips_misplaced_events: bool
    """Whether every event has to be checked, even in batches where no event has an event owner or is tagged for a
    subscription.
    """


class SessionContext(Struct, frozen=True, kw_only=True):
    """The values that a session needs to decide; all are known without waiting."""

    measure_distance: MeasureDistance
    is_deliverable: IsDeliverable
    lease: ProcessLease
    reading_rules: ReadingRules
    # The event type that the subscription receives besides its own: only events that are tagged for the subscription
    # are delivered.
    attached_event_type: str = ""
    # Whether `is_deliverable` has to check every event, rather than only events that some readers may not see.
    filters_events: bool = False
    # Whether the subscription has an objective, so that consumed events are counted. It may gain or lose one at any
    # time.
    has_objective: Callable[[], bool] = lambda: False
    # Limits the bytes of events that are read and not committed; None means no limit.
    memory: StreamMemory | None = None
