"""What a session wants done: lines to be sent, and calls whose outcome it will be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nakadi.model.coordination import Replay
from nakadi.model.cursor import Position
from nakadi.model.subscription import EventTypePartition
from nakadi.streaming.chunks import Run


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send events of a partition; `position` is the place of the last one."""

    place: EventTypePartition
    position: Position
    runs: tuple[Run, ...]
    info: str = ""


@dataclass(frozen=True, slots=True)
class SendKeepAlive:
    """Tell the client where a partition is, and perhaps something more."""

    place: EventTypePartition
    position: Position
    info: str = ""


@dataclass(frozen=True, slots=True)
class Open:
    """Find out where reading goes on behind a position, and say `opened`; whatever was being read is let go.

    With a `replay` parked events come first.
    """

    place: EventTypePartition
    position: Position
    number: int = 0
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Read no more of a partition."""

    place: EventTypePartition


@dataclass(frozen=True, slots=True)
class AutoCommit:
    """Commit what the client never got to see."""

    positions: Mapping[EventTypePartition, Position]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Let go of partitions that somebody else waits for, after committing what the client never got to see."""

    places: frozenset[EventTypePartition]
    positions: Mapping[EventTypePartition, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Note:
    """Write down in a partition's entry how often it failed, and how far the search for the event behind that goes."""

    place: EventTypePartition
    fails: int
    search_end: Position | None


@dataclass(frozen=True, slots=True)
class Drop:
    """Deal with an event that consumers failed at so often, as the policy says; then it counts as consumed."""

    place: EventTypePartition
    event: Run
    fails: int
    replay: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Put events away that have to follow others of their keys, and perhaps move the cursor; then say `parked`.

    `number` is that of the opening since when they were read.
    """

    place: EventTypePartition
    events: tuple[Run, ...]
    upto: Position | None
    replay: str | None
    number: int


@dataclass(frozen=True, slots=True)
class Relearn:
    """Find out which keys are parked by now, and say `learned`."""

    place: EventTypePartition
    replay: Replay | None
    number: int


@dataclass(frozen=True, slots=True)
class EndReplay:
    """All that was to be sent once more is consumed, or parked again: it leaves the lot."""

    place: EventTypePartition
    replay: Replay


@dataclass(frozen=True, slots=True)
class Farewell:
    """What is left to do when a session ends: what it failed at, and what its client never got to see."""

    failed: frozenset[EventTypePartition] = frozenset()
    positions: Mapping[EventTypePartition, Position] = field(default_factory=dict)


Line = SendBatch | SendKeepAlive
Call = Open | AutoCommit | HandOver | Note | Drop | Park | Relearn | EndReplay
Action = Line | Call | Close
