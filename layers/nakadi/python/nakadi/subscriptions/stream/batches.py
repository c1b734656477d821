"""What a client asks of a stream, and the outbox: which events leave when, and in which batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from msgspec import Struct

from nakadi.model.outcomes import Invalid
from nakadi.model.subscription import EventTypePartition
from nakadi.streaming.session import (
    DEFAULT_FLUSH_TIMEOUT_SECONDS,
    DEFAULT_STREAM_SECONDS_RANGE,
    MAX_STREAM_SECONDS,
    PickSeconds,
    shortened_seconds,
)
from nakadi.subscriptions.api.fields import RetryPolicy
from nakadi.subscriptions.stream.actions import GiveUpOnEvent, SendBatch, SendKeepAlive, SessionAction, SessionContext
from nakadi.subscriptions.stream.partition_progress import PartitionProgress, SessionTotals

DEFAULT_WINDOW = 10

# Clients take a connection for dead that is silent for half a minute, whatever flush timeout they asked for.
MAX_SECONDS_BETWEEN_LINES = 25.0


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
    partitions: tuple[EventTypePartition, ...] = ()


class SubscriptionStreamLimits(Struct, frozen=True, kw_only=True):
    """How a stream goes. Times are in seconds; a limit or a timespan of 0 is none.

    `window` is how many events may be sent and not yet committed, all partitions together.
    """

    batch_limit: int = 1
    window: int = DEFAULT_WINDOW
    stream_limit: int = 0
    flush_seconds: float = DEFAULT_FLUSH_TIMEOUT_SECONDS
    timespan_seconds: float = 0
    stream_seconds: float = MAX_STREAM_SECONDS
    keep_alive_limit: int = 0
    commit_seconds: float = 60
    max_seconds_between_lines: float = MAX_SECONDS_BETWEEN_LINES


def limits_of(
    asked: SubscriptionStreamParameters,
    most_commit_seconds: int,
    pick_seconds: PickSeconds,
    longest_seconds: int | None = None,
) -> SubscriptionStreamLimits:
    """The limits of a stream, or `Invalid` for the first rule that they break.

    Zeros mean what leaving the parameter out means, because there are clients that always name everything.
    """
    batch_limit = 1 if asked.batch_limit is None else asked.batch_limit
    commit_timeout = asked.commit_timeout or most_commit_seconds
    _require(batch_limit >= 1, "batch_limit can't be lower than 1")
    _require(commit_timeout <= most_commit_seconds, f"commit_timeout can not be more than {most_commit_seconds}")
    _require(commit_timeout >= 0, "commit_timeout can not be less than 0")
    for name in ("max_uncommitted_events", "stream_limit", "batch_flush_timeout", "batch_timespan"):
        _check_not_negative(name, getattr(asked, name))
    _check_not_negative("stream_keep_alive_limit", asked.stream_keep_alive_limit)
    seconds = _stream_seconds(asked.stream_timeout, pick_seconds)
    return SubscriptionStreamLimits(
        batch_limit=batch_limit,
        window=asked.max_uncommitted_events or DEFAULT_WINDOW,
        stream_limit=asked.stream_limit or 0,
        flush_seconds=asked.batch_flush_timeout or DEFAULT_FLUSH_TIMEOUT_SECONDS,
        timespan_seconds=asked.batch_timespan or 0,
        stream_seconds=shortened_seconds(seconds, longest_seconds, pick_seconds),
        keep_alive_limit=asked.stream_keep_alive_limit or 0,
        commit_seconds=commit_timeout,
    )


def _stream_seconds(asked: int | None, pick_seconds: PickSeconds) -> int:
    return (
        asked if asked is not None and 0 < asked <= MAX_STREAM_SECONDS else pick_seconds(*DEFAULT_STREAM_SECONDS_RANGE)
    )


def _check_not_negative(name: str, value: int | None) -> None:
    _require((value or 0) >= 0, f"{name} can't be lower than 0")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Invalid(otherwise)


# The outbox -----------------------------------------------------------------------------------------------------------


MAX_BUFFERED_BYTES = 50_000_000


class Outbox:
    """`partitions` and `totals` belong to the session. `commit_by` is when the client's time is over to commit what is
    outstanding."""

    def __init__(
        self,
        partitions: Mapping[EventTypePartition, PartitionProgress],
        totals: SessionTotals,
        limits: SubscriptionStreamLimits,
        context: SessionContext,
        now: float,
        policy: RetryPolicy | None,
    ) -> None:
        self.commit_by = now + limits.commit_seconds
        # Debug information that is sent with the next line.
        self.pending_info = ""
        self._partitions = partitions
        self._totals = totals
        self._limits = limits
        self._measure = context.measure
        self._policy = policy
        self._last_line_at = now
        self._sent_events = 0
        self._started = False

    # What the session asks

    def wants(self, partition: PartitionProgress) -> bool:
        """Whether more events of a partition are of use."""
        return partition.sendable and partition.count < min(self._limits.batch_limit, self._events_allowed_now())

    def all_silent(self) -> bool:
        """Whether as many keep-alives in a row as the client allows have been sent for every partition."""
        limit = self._limits.keep_alive_limit
        if not limit:
            return False
        opened = [each for each in self._partitions.values() if each.open]
        return bool(opened) and all(each.keep_alives >= limit for each in opened)

    def deadline(self) -> float:
        flushed_at = inf
        for each in self._partitions.values():
            if each.flushed_at < flushed_at and each.sendable:
                flushed_at = each.flushed_at
        if flushed_at == inf:
            return inf
        return min(self._last_line_at + self._limits.max_seconds_between_lines, flushed_at + self._limits.flush_seconds)

    # Sending

    def expect_commit(self, now: float) -> None:
        """The client's time for its next commit begins."""
        self.commit_by = now + self._limits.commit_seconds

    def due(self, partition: PartitionProgress, now: float) -> list[SessionAction]:
        """Everything of a partition that has to be sent by now."""
        actions: list[SessionAction] = []
        sendable = partition.sendable
        while sendable:
            # One batch or keep-alive after the other, each of which may make the next one due, until an event is to be
            # dropped, which everything else waits for.
            flush = now >= partition.flushed_at + self._limits.flush_seconds
            count = self._events_due(partition, flush=flush) if partition.count else 0
            if count and self._policy and partition.searching and partition.fails >= self._policy.max_failed_streams:
                event = partition.first()
                partition.dropping = event.end
                replay = None if partition.replay is None else partition.replay.id
                actions.append(GiveUpOnEvent(partition.partition, event, partition.fails, replay))
                sendable = False
            elif count:
                actions.append(self._batch(partition, count, now))
            elif flush:
                self._last_line_at = partition.flushed_at = now
                partition.keep_alives += 1
                actions.append(SendKeepAlive(partition.partition, partition.sent, self._line_info(partition)))
            else:
                break
        return actions

    def flushed(self, partition: PartitionProgress, now: float) -> Iterator[SessionAction]:
        """Everything of a partition that may be sent before the end."""
        if partition.sendable and not partition.searching:
            while partition.count and (allowed := self._events_allowed_now()) > 0:
                yield self._batch(partition, min(self._limits.batch_limit, partition.count, allowed), now)

    def batches_to_free_memory(self, now: float) -> Iterator[SessionAction]:
        """Batches of the largest partitions, sent early while too much is buffered."""
        while self._totals.buffered_bytes > MAX_BUFFERED_BYTES and self._events_allowed_now() > 0:
            largest = max(self._partitions.values(), key=lambda each: each.size)
            if not largest.sendable or largest.searching:
                return
            count = min(largest.count, self._events_allowed_now())
            yield self._batch(largest, count, now, "Stream parameters are causing overflow")

    def keep_alives(self, now: float) -> Iterator[SessionAction]:
        """A keep-alive beyond what was agreed, after a long silence; it is not counted, and changes no timer."""
        if now < self._last_line_at + self._limits.max_seconds_between_lines:
            return
        some = next((each for each in self._partitions.values() if each.sendable), None)
        if some is not None:
            self._last_line_at = now
            yield SendKeepAlive(some.partition, some.sent, self._line_info(some))

    def info(self, text: str = "") -> str:
        """Debug information for a line: this, and what was waiting to be sent."""
        pending, self.pending_info = self.pending_info, ""
        return f"{text}; {pending}" if text and pending else text or pending

    # Decisions

    def _events_due(self, partition: PartitionProgress, *, flush: bool) -> int:
        """How many of the events that wait have to be sent now."""
        limit = min(self._limits.batch_limit, self._events_allowed_now())
        if partition.search_end is not None:
            limit = min(limit, 0 if partition.outstanding else 1)
        if limit <= 0:
            return 0
        if flush or partition.count >= limit:
            return min(limit, partition.count)
        return min(limit, partition.beyond_timespan(self._limits.timespan_seconds))

    def _batch(self, partition: PartitionProgress, count: int, now: float, info: str = "") -> SessionAction:
        if not self._totals.outstanding:
            self.expect_commit(now)
        runs = partition.take_runs(count, self._measure)
        self._sent_events += count
        self._last_line_at = partition.flushed_at = now
        return SendBatch(partition.partition, partition.sent, runs, self._line_info(partition, info))

    def _line_info(self, partition: PartitionProgress, text: str = "") -> str:
        if self._started:
            return self.info(text) if text or self.pending_info else ""
        self._started = True
        started = "Stream started"
        if partition.lost:
            started += f"; skipped events due to retention time passed, count: {partition.lost}"
        return self.info(f"{started}; {text}" if text else started)

    def _events_allowed_now(self) -> int:
        """How many events may be sent before the client commits, or before the stream reaches its limit."""
        room = self._limits.window - self._totals.outstanding
        if self._limits.stream_limit:
            room = min(room, self._limits.stream_limit - self._sent_events)
        return room
