"""The times at which a session sends batches and keep-alives, and gives up events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from nakadi.model.subscription import EventTypePartition
from nakadi.subscriptions.api.fields import RetryPolicy
from nakadi.subscriptions.stream.actions import (
    GiveUpOnEvent,
    SendBatch,
    SendKeepAlive,
    SessionAction,
    SessionContext,
    SubscriptionStreamLimits,
)
from nakadi.subscriptions.stream.partition_progress import PartitionProgress, SessionTotals

MAX_BUFFERED_BYTES = 50_000_000


class SendSchedule:
    """Says which partitions are due at a moment, within the limits of the stream.

    `partitions` and `totals` belong to the session. `commit_by` is the end of the client's time to commit outstanding
    events.
    """

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
        self._measure_distance = context.measure_distance
        self._policy = policy
        self._last_line_at = now
        self._sent_events = 0
        # The partition whose batch used up the client's window; None if the last batch left room.
        self._served_last: EventTypePartition | None = None
        self._started = False

    # Queries by the session

    def events_allowed_now(self) -> int:
        """How many events the session may send before the client must commit, or the stream reaches its limit."""
        room = self._limits.max_uncommitted_events - self._totals.uncommitted
        if self._limits.stream_limit:
            room = min(room, self._limits.stream_limit - self._sent_events)
        return room

    def is_keep_alive_limit_reached(self) -> bool:
        """Whether as many keep-alives in a row as the client allows have been sent for every partition."""
        limit = self._limits.keep_alive_limit
        if not limit:
            return False
        opened = [each for each in self._partitions.values() if each.is_open]
        return bool(opened) and all(each.keep_alives >= limit for each in opened)

    def next_flush_at(self) -> float:
        flushed_at = inf
        for each in self._partitions.values():
            if each.flushed_at < flushed_at and each.may_send:
                flushed_at = each.flushed_at
        if flushed_at == inf:
            return inf
        return min(self._last_line_at + self._limits.max_seconds_between_lines, flushed_at + self._limits.flush_seconds)

    # Sending

    def restart_commit_timeout(self, now: float) -> None:
        """Restart the client's time for its next commit."""
        self.commit_by = now + self._limits.commit_seconds

    def all_due_actions(self, now: float) -> list[SessionAction]:
        """The actions of all partitions that are due by now."""
        return [each for partition in self._partitions_in_turn() for each in self.due_actions(partition, now)]

    def _partitions_in_turn(self) -> Iterable[PartitionProgress]:
        """The partitions, beginning after the one that used up the window. Otherwise, a busy partition would get the
        whole window each time that the client commits, and those after it nothing.
        """
        last = self._served_last
        if last is None or last not in self._partitions:
            return self._partitions.values()
        partitions = list(self._partitions.values())
        after = 1 + next(index for index, each in enumerate(partitions) if each.partition == last)
        return partitions[after:] + partitions[:after]

    def due_actions(self, partition: PartitionProgress, now: float) -> list[SessionAction]:
        """The actions of a partition that are due by now."""
        actions: list[SessionAction] = []
        may_send, policy = partition.may_send, self._policy
        while may_send:
            # Each batch or keep-alive may make the next one due. An event that has to be dropped ends the loop, because
            # later events wait until it is dropped.
            flush = now >= partition.flushed_at + self._limits.flush_seconds
            count = self._events_due(partition, flush=flush) if partition.count else 0
            if count and policy and partition.is_searching and partition.failed_streams >= policy.max_failed_streams:
                event = partition.first_waiting_event()
                partition.give_up(event)
                replay = None if partition.replay is None else partition.replay.id
                actions.append(GiveUpOnEvent(partition.partition, event, partition.failed_streams, replay))
                may_send = False
            elif count:
                actions.append(self._take_batch(partition, count, now))
            elif flush:
                self._last_line_at = partition.flushed_at = now
                partition.keep_alives += 1
                actions.append(SendKeepAlive(partition.partition, partition.sent, self._take_info_for(partition)))
            else:
                break
        return actions

    def flush(self, partition: PartitionProgress, now: float) -> Iterator[SessionAction]:
        """The actions that send everything of a partition that may be sent before the end."""
        if partition.may_send and not partition.is_searching:
            while partition.count and (allowed := self.events_allowed_now()) > 0:
                yield self._take_batch(partition, min(self._limits.batch_limit, partition.count, allowed), now)

    def batches_to_free_memory(self, now: float) -> Iterator[SessionAction]:
        """Batches of the largest partitions, sent early while too much is buffered."""
        while self._totals.buffered_bytes > MAX_BUFFERED_BYTES and self.events_allowed_now() > 0:
            largest = max(self._partitions.values(), key=lambda each: each.size)
            if not largest.may_send or largest.is_searching:
                return
            count = min(largest.count, self.events_allowed_now())
            yield self._take_batch(largest, count, now, "Stream parameters are causing overflow")

    def keep_alive_after_silence(self, now: float) -> Iterator[SessionAction]:
        """A keep-alive after a long silence, in addition to those by the flush timeout. It is not counted, and changes
        no timer.
        """
        if now < self._last_line_at + self._limits.max_seconds_between_lines:
            return
        some = next((each for each in self._partitions.values() if each.may_send), None)
        if some is not None:
            self._last_line_at = now
            yield SendKeepAlive(some.partition, some.sent, self._take_info_for(some))

    def take_line_info(self, text: str = "") -> str:
        """Return the debug information for a line, and forget it: this text, and what was waiting for the next line."""
        pending, self.pending_info = self.pending_info, ""
        return f"{text}; {pending}" if text and pending else text or pending

    # Decisions

    def _events_due(self, partition: PartitionProgress, *, flush: bool) -> int:
        """How many of the waiting events are due now."""
        limit = min(self._limits.batch_limit, self.events_allowed_now())
        if partition.search_end is not None:
            limit = min(limit, 0 if partition.uncommitted else 1)
        if self._limits.max_uncommitted_per_partition:
            limit = min(limit, self._limits.max_uncommitted_per_partition - partition.uncommitted)
        if limit <= 0:
            return 0
        if flush or self._limits.sends_at_once or partition.count >= limit:
            return min(limit, partition.count)
        return min(limit, partition.events_due_by_timespan(self._limits.batch_timespan_seconds))

    def _take_batch(self, partition: PartitionProgress, count: int, now: float, info: str = "") -> SessionAction:
        if not self._totals.uncommitted:
            self.restart_commit_timeout(now)
        runs = partition.take_runs(count, self._measure_distance)
        self._sent_events += count
        self._served_last = partition.partition if self.events_allowed_now() <= 0 else None
        self._last_line_at = partition.flushed_at = now
        return SendBatch(partition.partition, partition.sent, runs, self._take_info_for(partition, info))

    def _take_info_for(self, partition: PartitionProgress, text: str = "") -> str:
        if self._started:
            return self.take_line_info(text) if text or self.pending_info else ""
        self._started = True
        started = "Stream started"
        if partition.lost_events:
            started += f"; skipped events due to retention time passed, count: {partition.lost_events}"
        return self.take_line_info(f"{started}; {text}" if text else started)
