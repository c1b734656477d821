"""The outbox: which events leave when, and in which batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from nakadi.model.subscription import EventTypePartition
from nakadi.subscriptions.api.fields import RetryPolicy
from nakadi.subscriptions.stream.actions import DropEvent, SendBatch, SendKeepAlive, SessionAction, SessionContext
from nakadi.subscriptions.stream.parameters import SubscriptionStreamLimits
from nakadi.subscriptions.stream.partition_progress import PartitionProgress

MOST_BUFFERED_BYTES = 50_000_000


class Outbox:
    """`readings` belong to the session. `last_commit` is when time began to run for the client's next commit."""

    def __init__(
        self,
        readings: Mapping[EventTypePartition, PartitionProgress],
        limits: SubscriptionStreamLimits,
        around: SessionContext,
        now: float,
        policy: RetryPolicy | None,
    ) -> None:
        self.last_commit = now
        # Told with the next line.
        self.tracking = ""
        self._readings = readings
        self._limits = limits
        self._around = around
        self._policy = policy
        self._last_line_at = now
        self._sent_events = 0
        self._started = False

    # What the session asks

    def outstanding(self) -> int:
        """How many events are sent and not committed."""
        return sum(each.outstanding for each in self._readings.values())

    def wants(self, reading: PartitionProgress) -> bool:
        """Whether more events of a partition are of use."""
        return reading.sendable and reading.count < min(self._limits.batch_limit, self._allowed())

    def all_silent(self) -> bool:
        limit, readings = self._limits.keep_alive_limit, [each for each in self._readings.values() if each.open]
        return limit > 0 and bool(readings) and all(each.keep_alives >= limit for each in readings)

    def deadline(self) -> float:
        flushes = [self._flush_at(each) for each in self._readings.values() if each.sendable]
        return min(self._last_line_at + self._limits.silence_seconds, *flushes) if flushes else inf

    # Sending

    def sent(self, reading: PartitionProgress, now: float) -> Iterator[SessionAction]:
        """Everything that is due of a partition."""
        while reading.sendable:
            flush = now >= self._flush_at(reading)
            count = self._due(reading, flush=flush)
            if count:
                yield self._batch_or_drop(reading, count, now)
            elif flush:
                yield self._keep_alive(reading, now)
            else:
                return

    def flushed(self, reading: PartitionProgress, now: float) -> Iterator[SessionAction]:
        """Whatever may be sent of a partition, before the end."""
        if reading.sendable and not reading.searching:
            while reading.count and (allowed := self._allowed()) > 0:
                yield self._batch(reading, min(self._limits.batch_limit, reading.count, allowed), now)

    def relieved(self, now: float) -> Iterator[SessionAction]:
        """The heaviest partitions go early while too much is held."""
        while sum(each.size for each in self._readings.values()) > MOST_BUFFERED_BYTES and self._allowed() > 0:
            heaviest = max(self._readings.values(), key=lambda each: each.size)
            if not heaviest.sendable or heaviest.searching:
                return
            count = min(heaviest.count, self._allowed())
            yield self._batch(heaviest, count, now, "Stream parameters are causing overflow")

    def sign_of_life(self, now: float) -> Iterator[SessionAction]:
        """A keep-alive beyond what was agreed, after a long silence; it is not counted, and no timer knows of it."""
        some = next((each for each in self._readings.values() if each.sendable), None)
        if some is not None and now >= self._last_line_at + self._limits.silence_seconds:
            self._last_line_at = now
            yield SendKeepAlive(some.place, some.sent, self._first_info(some))

    def info(self, *parts: str) -> str:
        """What is told beside events: this, and what was waiting to be told."""
        told, self.tracking = self.tracking, ""
        return "; ".join(part for part in (*parts, told) if part)

    # Decisions

    def _due(self, reading: PartitionProgress, *, flush: bool) -> int:
        """How many events of a partition have to go now."""
        limit = min(self._limits.batch_limit, self._allowed())
        if reading.searching:
            limit = min(limit, 0 if reading.outstanding else 1)
        if limit <= 0:
            return 0
        if flush or reading.count >= limit:
            return min(limit, reading.count)
        return min(limit, reading.beyond_timespan(self._limits.timespan_seconds))

    def _batch_or_drop(self, reading: PartitionProgress, count: int, now: float) -> SessionAction:
        if self._policy and reading.searching and reading.fails >= self._policy.most_fails:
            event = reading.first()
            reading.dropping = event.end
            return DropEvent(reading.place, event, reading.fails, None if reading.replay is None else reading.replay.id)
        return self._batch(reading, count, now)

    def _batch(self, reading: PartitionProgress, count: int, now: float, info: str = "") -> SessionAction:
        if not self.outstanding():
            self.last_commit = now
        runs = reading.take(count, self._around.measure)
        self._sent_events += count
        self._last_line_at = reading.flushed_at = now
        return SendBatch(reading.place, reading.sent, runs, self._first_info(reading, info))

    def _keep_alive(self, reading: PartitionProgress, now: float) -> SessionAction:
        self._last_line_at = reading.flushed_at = now
        reading.keep_alives += 1
        return SendKeepAlive(reading.place, reading.sent, self._first_info(reading))

    def _first_info(self, reading: PartitionProgress, info: str = "") -> str:
        started = ""
        if not self._started:
            self._started = True
            started = "Stream started"
            if reading.lost:
                started += f"; skipped events due to retention time passed, count: {reading.lost}"
        return self.info(started, info)

    def _flush_at(self, reading: PartitionProgress) -> float:
        return reading.flushed_at + self._limits.flush_seconds

    def _allowed(self) -> int:
        room = self._limits.window - self.outstanding()
        if self._limits.stream_limit:
            room = min(room, self._limits.stream_limit - self._sent_events)
        return room
