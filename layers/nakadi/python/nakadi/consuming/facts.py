"""What a session is told and what it may ask, and the ways in which it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from nakadi.consuming.reading import Deliverable, Measure
from nakadi.model.coordination import Assignment, Offset
from nakadi.model.subscription import EventTypePartition


class End(Enum):
    """Why a stream came to its end."""

    LIMIT = auto()
    TIMEOUT = auto()
    KEEP_ALIVES = auto()
    COMMIT_TIMEOUT = auto()
    RELEASE_TIMEOUT = auto()
    IDLE = auto()
    RESET = auto()
    BLOCKED = auto()
    GONE = auto()
    # Those at once, without a chance to commit.
    DRAINED = auto()
    REFUSED = auto()
    REMOVED = auto()
    LEASE_LOST = auto()


@dataclass(frozen=True, slots=True)
class Shared:
    """What the streams of a subscription share, as it was read: first the assignment, then the offsets.

    `resetting` says that somebody is setting offsets right now.
    """

    assignment: Assignment
    offsets: Mapping[EventTypePartition, Offset]
    resetting: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How many partitions a session has, how many events are sent and not committed, and when the oldest event was
    stored that is not."""

    partitions: int
    uncommitted: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a session asks while it decides; every answer is at hand."""

    measure: Measure
    deliverable: Deliverable
    # Until when others take us for alive, on the clock of the facts.
    leased_until: Callable[[], float]
    # Whether there is more to ask of an event than whom it is for.
    closely: Callable[[], bool] = lambda: False
