"""The event log: topics of partitions, in which events have dense offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from nakadi.model.events import AppendResult, EventSlice, OffsetBounds, Record, TopicContinuation
from nakadi.model.log_index import ShardGap

AppendResultByPartition = Mapping[int, AppendResult]
"""The result for each partition's part of an append."""


class UnknownTopic(Exception):
    """Raised when the topic was never created, is deleted, or has no such partition."""


class SealedTopic(Exception):
    """Raised by an append to a topic that accepts no more events."""


class OffsetUnavailable(Exception):
    """Raised by a read that starts before the oldest remaining event, or after the offset of the next one."""


class EventLog(Protocol):
    """Topics with numbered partitions; in a partition events are numbered 0, 1, 2, … in the order of the log.

    * Records with the fate `AppendStored` are durable. The log stores the records of one partition in one append
      together and in order, or not at all; each partition succeeds or fails by itself. `AppendRefused` means that
      records are not stored, or not known to be stored: the log may have stored them before a call timed out.
    * An event's offset never changes, and every reader sees the same one. Offsets are dense: deleting old events moves
      `oldest`, and compaction leaves holes that reads skip. No two events ever have the same offset.
    * A read sees everything that was stored before it began.
    * Within a partition, no event was stored earlier than the one before it.
    """

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create an empty topic; do nothing if it exists. Callers never reuse the name of a deleted topic."""

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Ensure that the topic has this number of partitions; new ones start empty at offset 0."""

    def seal_topic(self, topic: str) -> None:
        """Accept no more events: an append that begins after this has returned raises `SealedTopic`."""

    def delete_topic(self, topic: str) -> None:
        """Delete the topic and its events. A repeated call changes nothing."""

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> AppendResultByPartition:
        """Store records, and return the result for each partition. A task of `nakadi.common.waiting`."""

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        limit: int = 1000,
        max_bytes: int = 4_000_000,
        wait: float = 0.0,
    ) -> EventSlice:
        """Events, beginning at offset `start`, tombstones included.

        Returns at most `limit` events with about `max_bytes`, at least one if there is one, and perhaps fewer than
        exist. If there is none, waits up to `wait` seconds for the first; an empty slice says that none came.
        """

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
        """The first and the next offset of each of these partitions."""

    def first_offset_since(self, topic: str, partition: int, moment: datetime) -> int:
        """The offset of the first event stored at or after `moment`; the next offset if there is none."""

    def trim(self, topic: str, partition: int, stored_before: datetime) -> None:
        """Remove events stored before this moment. May remove a little less than it could."""

    def compact(self, topic: str, partition: int, *, stored_before: datetime, tombstones_before: datetime) -> None:
        """Among the events stored before `stored_before`, keep the newest of each key, and those without a key.

        The newest event of the partition always stays. A tombstone that was stored before `tombstones_before` is
        removed together with the events that it covers. Offsets of the remaining events do not change. An engine whose
        store compacts by itself leaves compaction to the store; until then, obsolete events may still be read.
        """

    def add_change_listener(self, on_change: Callable[[str, int], None]) -> Callable[[], None]:
        """Arrange that `on_change(topic, partition)` is called soon after events are stored; the returned function
        removes the listener.

        It may be called more often than needed, from any thread, and must return quickly. It is called at once for
        appends by this process, and within half a second for appends by others.
        """

    def close(self) -> None:
        """Finish calls in progress, and release all resources. Waiting reads and further calls raise `Unavailable`."""


@runtime_checkable
class DelayedIndexLog(Protocol):
    """An event log whose events another process indexes and archives some time after they were stored."""

    def measure_index_lag(self) -> timedelta:
        """The age of the oldest event that is not indexed yet; zero if no event waits.

        The first answer after a search for gaps may be as old as that search.
        """


@runtime_checkable
class LossReportingLog(Protocol):
    """An indexed event log that may lose events before they are indexed, and reports such losses."""

    def gaps(self) -> Sequence[ShardGap]:
        """The places where events were lost before they were indexed. Indexing continues after a gap once the gap is
        closed.
        """

    def ensure_continuations(self, topic: str, gaps: Sequence[ShardGap]) -> Sequence[TopicContinuation]:
        """The topics that continue this one, in order; if the topic may have lost events in these gaps, the last
        continuation begins after them. The continuations receive the events that are appended to any of these topics.
        Raises `UnknownTopic`.
        """

    def close_gaps(self, gaps: Sequence[ShardGap], topics: Mapping[str, Mapping[int, int] | None]) -> None:
        """Resume the indexing of events after gaps, once all topics that may have lost events have continuations.

        `topics` are the topics of all timelines, with None for an open timeline, and for a closed one the offset after
        the last event of each partition, so that its remaining events keep their offsets.
        """


@runtime_checkable
class PushConsumerLog(Protocol):
    """An event log whose processes register as consumers with a service that pushes events to them."""

    def remove_orphaned_consumers(self) -> None:
        """Remove the registrations of processes that ended without removing them."""


@runtime_checkable
class TopicAdoptingLog(Protocol):
    """An event log that can use topics of other programs as if it had created them."""

    def adopt_topic(self, topic: str) -> int:
        """Prepare a topic for `append`, and return how many partitions it has.

        Raises `UnknownTopic`, or `SealedTopic` if it was sealed by this program.
        """


class EventLogs(Protocol):
    def for_storage(self, storage_id: str) -> EventLog:
        """The event log of a storage. Raises `Unavailable` if this broker cannot open it."""
