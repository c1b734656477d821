"""What the broker asks of the world, told by the promises that callers rely on.

Ports are synchronous. Each has one contract suite in tests/contracts that every engine passes; the suite is the
definition where this text leaves a doubt. All raise `Unavailable` when they could not find out or could not carry out:
then nothing is known, and a caller may try again.

A port that is closed stays closed. From then on each of its methods raises `Unavailable`, changes nothing, and tells
nobody of anything; what goes through an answer bit by bit raises when it is gone through. Closing again changes
nothing, and what ends a watch may still be called. A call that is under way has its effect or raises `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from nakadi.model.changes import Changes
from nakadi.model.cursor import Position
from nakadi.model.events import Bounds, Continuation, Fate, Record, Slice
from nakadi.model.log_index import Gap, Head, Location, Progress, Segment, Topic

if TYPE_CHECKING:
    # A function that publishes knows no subscriptions, and starts sooner without them.
    from nakadi.model.coordination import Assignment, Changed, Offset, Parked, ParkedEvent, Verdict
    from nakadi.model.subscription import EventTypePartition


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, for measuring how long something takes."""


# The registry --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON object under a key. `revision` is 1 when it is created and grows by one with every write."""

    key: str
    body: Mapping[str, Any]
    revision: int


ABSENT = 0
"""The revision of what is not there."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write a document if its revision is `expected`; None writes whatever is there."""

    kind: str
    key: str
    body: Mapping[str, Any]
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a document if its revision is `expected`; None removes whatever is there, also nothing."""

    kind: str
    key: str
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Write nothing here, and insist that the revision is `expected` while the other changes are made."""

    kind: str
    key: str
    expected: int


Change = Put | Remove | Check


REMEMBERED = frozenset({"event-types", "settings", "subscriptions"})
"""Kinds of documents that processes remember for as long as `Registry.changes` tells no change. Documents that change
often do not belong here: each change of one is counted in a place that all changes share."""

ABSENCE_REMEMBERED = frozenset({"settings"})
"""Of these kinds, processes also remember that a document is not there."""


class ChangedMeanwhile(Exception):
    """Raised by `Registry.write` when a condition does not hold; `change` is the first such change."""

    def __init__(self, change: Change) -> None:
        super().__init__(f"{change.kind} {change.key!r} is not at revision {change.expected}")
        self.change = change


class Registry(Protocol):
    """Documents in kinds, ordered by key.

    * `write` is all or nothing, and durable when it returns. At most 99 changes, no two on one document: anything
      else is a `ValueError`.
    * A read sees every write that returned before it began, whichever process wrote it.
    * Conditions and changes of one `write` are one atomic step: of several writers that expect the same revision,
      exactly one succeeds, the others raise `ChangedMeanwhile` and leave nothing behind.
    """

    def get(self, kind: str, key: str) -> Document | None:
        """The document, or None."""

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        """Documents whose keys begin with `prefix` and are greater than `after`, by key (as code points).

        Each is as it was at some moment since the list began: of a write that is made meanwhile, some may be seen.
        """

    def write(self, *changes: Change) -> None:
        """Make all changes, or none and raise `ChangedMeanwhile`."""

    def changes(self) -> Changes:
        """Numbers that grow in the same atomic step as documents of the kinds in `REMEMBERED` change.

        If a document was read after one answer, and a later answer has the same number for it, then the document was
        as it was read when that later answer was asked for. Documents that begin to be are counted where their absence
        is remembered, and may be counted elsewhere. A number may also grow because another document changed.
        """

    def close(self) -> None:
        """Give everything back. Further calls raise `Unavailable`."""


# The event log -------------------------------------------------------------------------------------------------------


class UnknownTopic(Exception):
    """Raised when the topic was never created, is deleted, or has no such partition."""


class SealedTopic(Exception):
    """Raised by an append to a topic that takes no more events."""


class OffsetUnavailable(Exception):
    """Raised by a read that starts before the oldest event still there, or beyond the place of the next one."""


class EventLog(Protocol):
    """Topics with numbered partitions; in a partition events are numbered 0, 1, 2, … in the order of the log.

    * What `append` calls `Stored` is durable. The records of one partition in one append are stored next to each
      other in their order, or not at all; partitions succeed and fail one by one. `Refused` means not stored, or not
      known to be: a time-out may have happened after the fact.
    * An event's offset never changes, and every reader sees the same one. Offsets are dense: deleting old events moves
      `oldest`, compaction leaves holes that reads step over, and no number is ever given to two events.
    * A read sees everything that was stored before it began.
    * Within a partition, no event was stored earlier than the one in front of it.
    """

    def create_topic(self, topic: str, partitions: int) -> None:
        """Make an empty topic. Doing it again changes nothing. Callers use no name again that was deleted."""

    def add_partitions(self, topic: str, partitions: int) -> None:
        """See to it that the topic has this many partitions; new ones start empty at offset 0."""

    def seal_topic(self, topic: str) -> None:
        """Let nothing more in: an append that begins after this returned raises `SealedTopic`."""

    def delete_topic(self, topic: str) -> None:
        """Forget the topic and its events. Doing it again changes nothing."""

    def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, Fate]:
        """Store records, and tell each partition's fate."""

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        limit: int = 1000,
        max_bytes: int = 4_000_000,
        wait: float = 0.0,
    ) -> Slice:
        """Events from offset `start` on, tombstones included.

        At most `limit` of them and about `max_bytes`, though at least one if there is one; perhaps fewer than there
        are. When there is none, wait for the first up to `wait` seconds; an empty slice says that none came.
        """

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, Bounds]:
        """Where the partitions begin and end."""

    def offset_at(self, topic: str, partition: int, moment: datetime) -> int:
        """The offset of the first event stored at or after `moment`; the next offset when there is none."""

    def trim(self, topic: str, partition: int, before: datetime) -> None:
        """Let go of events stored before this moment. May let go a little less than it could."""

    def compact(self, topic: str, partition: int, *, upto: datetime, tombstones_before: datetime) -> None:
        """Of the events stored before `upto`, keep the newest of each key, and those without one.

        The newest event of the partition stays whatever its key says. A tombstone goes with what it covers once it was
        stored before `tombstones_before`. Offsets of what stays do not change.
        """

    def watch(self, changed: Callable[[str, int], None]) -> Callable[[], None]:
        """Have `changed(topic, partition)` called soon after events were stored; the answer ends it.

        It may be called more often than needed, from any thread, and must return quickly. Appends of this process are
        told at once, those of others within half a second.
        """

    def close(self) -> None:
        """Finish what was begun, and give everything back. Reads that wait, and further calls, raise `Unavailable`."""


@runtime_checkable
class Indexed(Protocol):
    """An event log whose events another process counts and archives, some time after they were stored."""

    def index_lag(self) -> timedelta:
        """How long ago the oldest event arrived that is not counted yet; nothing when none waits."""


@runtime_checkable
class Forgetful(Protocol):
    """An indexed event log that may forget events before they are counted, and then says so."""

    def gaps(self) -> Sequence[Gap]:
        """Where events were lost before they were counted. Until a gap is closed, nobody counts on behind it."""

    def continuations(self, topic: str, gaps: Sequence[Gap]) -> Sequence[Continuation]:
        """The topics that continue this one, in their order; if it may have lost events in these gaps, the last one
        begins behind them. They take what is appended to any of them. Raises `UnknownTopic`.
        """

    def close_gaps(self, gaps: Sequence[Gap], topics: Mapping[str, Mapping[int, int] | None]) -> None:
        """Have events behind gaps counted again, once all topics are continued that may have lost some.

        `topics` are those of all timelines: None for one that is open, and for one that is closed the offset behind
        the last event of each partition, so that what is left of it keeps its offsets.
        """


@runtime_checkable
class Registered(Protocol):
    """An event log whose processes register themselves at its service, to have events pushed to them."""

    def remove_orphans(self) -> None:
        """Remove what processes registered that ended without removing it."""


class EventLogs(Protocol):
    def of(self, storage_id: str) -> EventLog:
        """The event log of a storage. Raises `Unavailable` when this broker cannot open it."""


# Coordination --------------------------------------------------------------------------------------------------------

MOST_PLACES = 99
"""How many partitions one `Coordination.write` may give another owner or position: what fits one atomic step
everywhere, beside the assignment itself."""


MOST_PARKED = 50
MOST_PARKED_BYTES = 3_000_000
"""How many events one `Coordination.park` may put away, and how many bytes they may have together; a single event may
have any size that could be published."""


class AssignmentChanged(Exception):
    """Raised by `Coordination.write` when the assignment is no longer what the writer has read."""


class Coordination(Protocol):
    """What the streams of a subscription share, wherever they are served: an assignment, offsets, and leases.

    The *assignment* says which sessions there are and which partition belongs to which. It is read, decided upon, and
    replaced if nobody else did meanwhile; every rule of the game is a pure function from one assignment to the next.
    Each of its entries has an *offset* beside it, which carries the entry's owner, so that a commit is one small write.
    *Leases* belong to the processes that serve sessions: a process that hosts a thousand idle streams renews one.
    Events that nobody could process are *parked* in the subscription's lot, at most one at each position.

    * What returned is durable, and seen by every read that begins later, whichever process asks.
    * Of several writers that read the same assignment exactly one succeeds; the others leave nothing behind.
    * Owners change with the assignment, in the same atomic step: at no time can two sessions commit one partition, and
      a session can commit from the write that makes it the owner to the write that makes it so no more.
    * An offset moves forward by commits, and in whatever direction by a write that sets it.
    * No time of day is looked at here: whether a lease has run out is for the reader of `leases` to say.
    """

    def assignment(self, subscription: str) -> Assignment:
        """The assignment; `NOTHING_YET` before the first write, and again after `forget`."""

    def write(
        self,
        subscription: str,
        old: Assignment,
        new: Assignment,
        now: datetime,
        positions: Mapping[EventTypePartition, Position] | None = None,
    ) -> Assignment:
        """Replace `old`, as it was read, by `new`, and answer `new` as it is stored; raise `AssignmentChanged` if it
        is not what is stored any more.

        Owners of offsets become what the entries say, and `positions` are set. An entry that `old` does not have must
        come with its position; none may disappear. At most `MOST_PLACES` partitions get another owner or position.
        """

    def offsets(self, subscription: str) -> Mapping[EventTypePartition, Offset]:
        """The offsets of all entries, each as it is now."""

    def commit(
        self, subscription: str, session: str, positions: Mapping[EventTypePartition, Position], now: datetime
    ) -> Mapping[EventTypePartition, Verdict]:
        """Move offsets forward, each for itself: `COMMITTED` if the session owns the partition and the position is
        greater than what is stored, `OUTDATED` if it owns it and the position is not, `NOT_OWNED` if it does not.
        """

    def park(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        upto: Position | None = None,
    ) -> Verdict:
        """Put events of one partition into the lot and move its offset to `upto`, all in one atomic step.

        `NOT_OWNED` if the session does not own the partition, `OUTDATED` if `upto` is not greater than what is stored:
        either leaves everything as it was. Without `upto` the offset stays, and nothing is outdated. Events that are
        there already are replaced. At most `MOST_PARKED` events with `MOST_PARKED_BYTES`, or a single one.
        """

    def parked(
        self,
        subscription: str,
        *,
        place: EventTypePartition | None = None,
        after: tuple[EventTypePartition, Position] | None = None,
        limit: int = 1000,
    ) -> Sequence[Parked]:
        """What is in the lot, or in the part of it that a partition has, behind this position: the first so many.

        They are in the order of event types, partitions (both as texts) and positions.
        """

    def parked_value(self, subscription: str, place: EventTypePartition, position: Position) -> bytes | None:
        """A parked event as it was published; None if it is not in the lot."""

    def unpark(self, subscription: str, place: EventTypePartition, positions: Collection[Position]) -> None:
        """Take events out of the lot, however many. Doing it again changes nothing."""

    def forget(self, subscription: str) -> None:
        """Remove everything there is of a subscription. Doing it again changes nothing."""

    def renew(self, holder: str, until: datetime) -> None:
        """Give a process a lease until then, whatever it had before."""

    def release(self, holder: str) -> None:
        """End a process's lease. Doing it again changes nothing."""

    def leases(self) -> Mapping[str, datetime]:
        """Process -> until when its lease goes. Those that ran out long ago may be missing."""

    def watch(self, subscription: str, changed: Callable[[Changed], None]) -> Callable[[], None]:
        """Have `changed` called soon after something of the subscription changed; the answer ends it.

        It may be called more often than needed, from any thread, and must return quickly. Changes of this process are
        told at once, those of others within a second.
        """

    def close(self) -> None:
        """Give everything back. Further calls raise `Unavailable`."""


# What a log without numbers of its own needs -----------------------------------------------------------------------


TOPICS = "topics"
"""The kind of topics in `LogIndex.changes`."""


class LogIndex(Protocol):
    """Topics, how far their partitions are counted, and where the archive keeps their events.

    It is for a log that does not number events itself, and for the cold half of one that does.

    * Every write is durable when it returns, and seen by every read that begins later, whichever process wrote it.
    * `extend` is one atomic step: of several who count on from the same head exactly one succeeds. So the segments of
      a partition follow each other without a gap, and none is there twice.
    * Low-water marks and a shard's progress only ever grow.
    """

    def identity(self) -> str:
        """A name that no other index has, the same for as long as this one is kept."""

    def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic. Doing it again changes nothing."""

    def topic(self, topic: str) -> Topic | None:
        """The topic; None when it was never made, or is deleted."""

    def topics(self) -> Sequence[str]:
        """All topics. Of those that are made or deleted meanwhile, some may be there."""

    def grow_topic(self, topic: str, partitions: int) -> None:
        """See to it that it has this many partitions. Raises `UnknownTopic`."""

    def seal_topic(self, topic: str) -> None:
        """Note that it takes no more events. Raises `UnknownTopic`."""

    def continue_topic(self, topic: str, following: str, behind: Sequence[str]) -> None:
        """Have `following` continue the topic: as many partitions, and sealed if that is. Doing it again changes
        nothing. Raises `UnknownTopic`.
        """

    def delete_topic(self, topic: str) -> None:
        """Forget the topic at once, then all about its partitions. Doing it again finishes what was begun.

        Of one that is continued by a topic that is there, `topic` shows a signpost without partitions until that is
        deleted.
        """

    def changes(self) -> Changes:
        """Numbers that grow in the same atomic step as a topic is sealed, continued or deleted, as `Registry.changes`
        has them.

        The kind is `TOPICS`, the key the topic's name. Where registry and index share a store, they share the numbers,
        and either tells those of both.
        """

    def heads(self, places: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], Head]:
        """How far these partitions are indexed; one that never was has an empty head."""

    def extend(self, topic: str, partition: int, expected: int, head: Head, segment: Segment | None) -> bool:
        """Move a head on if its revision is still `expected`, and add the segment in between. False: it was not."""

    def segment(self, topic: str, partition: int, offset: int) -> Segment | None:
        """The last segment that begins at or before this offset. It may end before it, too."""

    def segments(self, topic: str, partition: int, start: int, limit: int) -> Sequence[Segment]:
        """The first segments that begin at or after an offset."""

    def replace(self, topic: str, partition: int, segments: Sequence[Segment], end: int) -> None:
        """Have these segments be all that begin between the first of them and `end`.

        They must cover what those there are cover. At every moment each offset is covered by the old ones or the new.
        """

    def let_go(self, topic: str, partition: int, oldest: int) -> Sequence[Location]:
        """What is before `oldest` is gone; segments wholly before it are dropped. Where their events lay."""

    def note_compacted(self, topic: str, partition: int, before: int) -> None:
        """What is before this offset is to be read from the archive alone."""

    def referred_to(self) -> Collection[str]:
        """The keys of all archive objects that a segment of a topic lies in. Those that begin to be referred to
        meanwhile may be missing.
        """

    def claim(self, name: str, owner: str, seconds: float) -> bool:
        """Be the only owner of a name for so long; an owner may claim again. False while it is somebody else's.

        All who claim a name do so for about as long: a claim that goes on for much longer does not count.
        """

    def release(self, name: str, owner: str) -> None:
        """Let somebody else claim it."""

    def progress(self, stream: str) -> Mapping[str, Progress]:
        """How far each shard is counted, for all its partitions."""

    def note_progress(self, stream: str, shard: str, progress: Progress) -> None:
        """The shard is counted so far, unless it is counted further already."""

    def close(self) -> None:
        """Give everything back. Further calls raise `Unavailable`."""


class Kept(NamedTuple):
    """An object of an archive store, and when it was put there."""

    key: str
    size: int
    written_at: datetime


class ArchiveStore(Protocol):
    """Objects under keys. What `put` returned from is durable, whole or not there, and never changes."""

    def put(self, key: str, content: bytes) -> None:
        """Keep an object. Keeping it again changes nothing."""

    def get(self, location: Location) -> bytes:
        """A range of an object. Raises `ArchiveGone` when there is no such object."""

    def remove(self, keys: Sequence[str]) -> None:
        """Let objects go, also those that are not there."""

    def listed(self, prefix: str) -> Iterator[Kept]:
        """The objects whose keys begin so, in no order, also what is left of one that was never finished.

        `prefix` ends with a slash. Of what is put meanwhile, some may be there.
        """

    def close(self) -> None:
        """Give everything back. Further calls raise `Unavailable`."""


class ArchiveGone(Exception):
    """Raised when an archive object is not there (any more)."""
