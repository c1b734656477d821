"""Reads records: from memory at the end of a partition, from the cluster anywhere else.

Most readers are at the end. For them, a process has one consumer, the *tail*: it follows each partition that was read
to its end, keeps the partition's new records in a window in memory, and announces them. Any number of readers share a
window. A reader at a position before the window gets its own consumer, which is kept for its next read.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition
from msgspec import Struct, field

from nakadi.engines.kafka.client import (
    ClusterAddress,
    as_port_error,
    discard_client,
    look_up_topic,
    new_consumer,
    translate_errors,
)
from nakadi.engines.kafka.records import SEAL_MARKER, event_from_message, events_from_messages
from nakadi.model.events import EventSlice, StoredEvent, TopicPartition
from nakadi.model.outcomes import Unavailable

_log = logging.getLogger(__name__)

TAIL_WINDOW_BYTES = 4_000_000
ALL_TAIL_WINDOWS_BYTES = 64_000_000
"""How many bytes are kept in memory for a partition, and for all partitions together."""

UNREAD_WINDOW_TIMEOUT_SECONDS = 60.0
"""The time after which a window that receives events but has no reader is dropped."""

TAIL_POLL_TIMEOUT_SECONDS = 0.05
"""How long the tail waits for events before it checks for changes of the followed partitions."""

MAX_IDLE_READERS = 8
"""How many consumers are kept for readers that are not at the end of their partition."""

READER_REUSE_DELAY_SECONDS = 1.0
"""The time after its last use at which such a consumer may be used for another position."""

UNUSED_READER_TIMEOUT_SECONDS = 10.0
"""The time after its last use at which such a consumer is closed. Until then, it fetches ahead: at the end of its
partition, with a hundred requests a second."""

QUEUE_BACKOFF_MILLISECONDS = 5
"""The time after which the library checks again whether its queue has room. By default, it waits for a second, and
delays fast readers."""

EVENT_OVERHEAD_BYTES = 200
"""About how much memory an event takes in addition to its value."""


class _EventWindow(Struct):
    """The events of a partition from `start_offset` up to, but not including, `end_offset`."""

    start_offset: int
    end_offset: int
    last_read_at: float
    late_since: float | None = None
    events: list[StoredEvent] = field(default_factory=list)
    size_bytes: int = 0

    def add_event(self, event: StoredEvent) -> None:
        self.end_offset = event.offset + 1
        self.late_since = None
        if event.record == SEAL_MARKER:
            return
        self.events.append(event)
        self.size_bytes += _memory_bytes(event)

    def drop_oldest_events(self, bytes_to_keep: int) -> None:
        dropped = 0
        while self.size_bytes > bytes_to_keep:
            self.size_bytes -= _memory_bytes(self.events[dropped])
            dropped += 1
        self.start_offset = self.events[dropped].offset if dropped < len(self.events) else self.end_offset
        del self.events[:dropped]

    def slice(self, start: int, limit: int, max_bytes: int) -> EventSlice:
        first = bisect_left(self.events, start, key=_event_offset)
        return _slice_to_fit(self.events[first : first + max(limit, 1)], max_bytes, self.end_offset)


class TailReader:
    """Follows the ends of partitions with one consumer. It calls `changed` with the topic and the partition when events
    have arrived.
    """

    def __init__(self, address: ClusterAddress, changed: Callable[[str, int], None]) -> None:
        self._address = address
        self._changed = changed
        self._arrived = threading.Condition()
        self._windows: dict[TopicPartition, _EventWindow] = {}
        self._size = 0
        # Changes for the tail's thread to make: only that thread uses the consumer, whose calls wait for each other. A
        # change is added under the lock, together with the change of the partition's window; the thread takes it
        # without the lock.
        self._assignment_changes: deque[KafkaPartition] = deque()
        self._thread: threading.Thread | None = None
        self._is_lost = False
        self._closed = False

    def slice(self, partition: TopicPartition, start: int, limit: int, max_bytes: int) -> EventSlice | None:
        """Events from `start` on; None if `start` is before the window, or not in it yet."""
        with self._arrived:
            window = self._windows.get(partition)
            if window is None or not window.start_offset <= start < window.end_offset:
                return None
            window.last_read_at = time.monotonic()
            return window.slice(start, limit, max_bytes)

    def follow_partition(self, partition: TopicPartition, end_offset: int) -> None:
        """Keep the events that are stored from this offset on, unless the partition is already being followed."""
        with self._arrived:
            if partition in self._windows or self._closed:
                return
            self._windows[partition] = _EventWindow(end_offset, end_offset, time.monotonic())
            self._assignment_changes.append(self._kafka_partition(partition, end_offset))
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow_until_closed, name="kafka-tail", daemon=True)
                self._thread.start()

    def wait_for_event(self, partition: TopicPartition, start: int, seconds: float) -> None:
        """Wait until the event at `start` is in the window, the time has passed, or the window can no longer receive
        that event.
        """
        end = time.monotonic() + seconds
        with self._arrived:
            while (
                (window := self._windows.get(partition)) is not None
                and window.start_offset <= start
                and window.end_offset <= start
            ):
                if self._closed:
                    return
                if not self._arrived.wait(end - time.monotonic()):
                    self._mark_window_late(window)
                    return

    def _mark_window_late(self, window: _EventWindow) -> None:
        """Note that events of a window are late. If they stay late, the consumer is replaced: after an outage of the
        servers, the library may never find them again.
        """
        window.late_since = window.late_since or time.monotonic()
        self._is_lost = self._is_lost or time.monotonic() - window.late_since > self._address.timeout_seconds

    def stop_following_topic(self, topic: str) -> None:
        with self._arrived:
            for partition in [partition for partition in self._windows if partition[0] == topic]:
                self._drop_window(partition)

    def _drop_all_windows(self) -> None:
        """Drop all windows after an error. Otherwise, events that were received but not kept would be missing within a
        window, as if compaction had removed them.
        """
        with self._arrived:
            for partition in list(self._windows):
                self._drop_window(partition)

    def drop_window_before(self, partition: TopicPartition, oldest: int) -> None:
        with self._arrived:
            window = self._windows.get(partition)
            if window is not None and window.start_offset < oldest:
                self._drop_window(partition)

    def close(self) -> None:
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _follow_until_closed(self) -> None:
        consumer = self._new_consumer()
        while not self._closed:
            try:
                if self._is_lost:
                    discard_client(consumer)
                    consumer = self._restart_consumer()
                self._change_assignment(consumer)
                # `consume` would wait for as many messages as it may return, so this waits for the first one alone.
                first = consumer.poll(TAIL_POLL_TIMEOUT_SECONDS)
                if first is not None:
                    self._add_to_windows([first, *consumer.consume(1000, 0)])
            except Exception:  # noqa: BLE001  # the next round may succeed; readers look for themselves meanwhile
                _log.exception("Following partitions in Kafka failed, all of them start over from the cluster")
                self._drop_all_windows()
                time.sleep(TAIL_POLL_TIMEOUT_SECONDS)
        consumer.close()

    def _restart_consumer(self) -> Consumer:
        _log.warning("Events from Kafka did not arrive in time, a new consumer follows the partitions")
        with self._arrived:
            self._drop_all_windows()
            self._assignment_changes.clear()
            self._is_lost = False
        return self._new_consumer()

    def _new_consumer(self) -> Consumer:
        return new_consumer(
            self._address,
            # A newly followed partition is fetched only after the answer to the previous request, so answers must come
            # soon.
            fetch_wait_max_ms=50,
            queued_max_messages_kbytes=16_384,
            fetch_queue_backoff_ms=QUEUE_BACKOFF_MILLISECONDS,
        )

    def _change_assignment(self, consumer: Consumer) -> None:
        """Make the noted changes: follow each partition from the offset of its change on, or stop following it if the
        change has no offset.
        """
        looked_up: set[str] = set()
        can_look_up = True
        while self._assignment_changes:
            change = self._assignment_changes.popleft()
            if change.offset == OFFSET_INVALID:
                consumer.incremental_unassign([change])
                continue
            if can_look_up and change.topic not in looked_up:
                # While the cluster is unreachable, each further look-up would delay all other partitions.
                can_look_up = look_up_topic(consumer, change.topic)
                looked_up.add(change.topic)
            consumer.incremental_assign([change])

    def _add_to_windows(self, messages: Sequence[Any]) -> None:
        grown_windows: dict[TopicPartition, _EventWindow] = {}
        with self._arrived:
            # During the wait for these messages, a window may have been dropped, and a new one may have begun at an
            # offset before these messages, which were fetched for the old window. Then the events in between are still
            # missing, so these messages are ignored: the next round assigns the partition again, and gets all events.
            changing = {(change.topic, change.partition) for change in self._assignment_changes}
            for message in messages:
                if message.topic() is None or (message.topic(), message.partition()) in changing:
                    continue  # an error without a topic concerns a connection, which the library opens again
                partition = (message.topic().removeprefix(self._address.prefix), message.partition())
                if message.error() is not None:
                    self._drop_failed_window(partition, message.error())
                elif (window := self._windows.get(partition)) is not None and message.offset() >= window.end_offset:
                    before = window.size_bytes
                    window.add_event(event_from_message(message))
                    self._size += window.size_bytes - before
                    grown_windows[partition] = window
            self._limit_memory(grown_windows)
            self._arrived.notify_all()
        if not self._closed:
            for partition in grown_windows:
                self._changed(*partition)

    def _limit_memory(self, grown_windows: Mapping[TopicPartition, _EventWindow]) -> None:
        """Keep the windows within the limits: drop windows without readers, then empty those that have been unread the
        longest.
        """
        now = time.monotonic()
        for partition, window in grown_windows.items():
            if now - window.last_read_at > UNREAD_WINDOW_TIMEOUT_SECONDS:
                self._drop_window(partition)
            elif window.size_bytes > TAIL_WINDOW_BYTES:
                self._drop_oldest_events(window, TAIL_WINDOW_BYTES // 2)
        if self._size > ALL_TAIL_WINDOWS_BYTES:
            for window in sorted(self._windows.values(), key=lambda window: window.last_read_at):
                if self._size > ALL_TAIL_WINDOWS_BYTES // 2:
                    self._drop_oldest_events(window, 0)

    def _drop_oldest_events(self, window: _EventWindow, bytes_to_keep: int) -> None:
        self._size -= window.size_bytes
        window.drop_oldest_events(bytes_to_keep)
        self._size += window.size_bytes

    def _drop_failed_window(self, partition: TopicPartition, error: Any) -> None:
        """Drop the window of a partition that can no longer be followed. Its readers then read from the cluster, and
        get the error there.
        """
        if partition in self._windows and not error.retriable():
            _log.warning("Following %s/%s in Kafka ended: %s", *partition, error.str())
            self._drop_window(partition)

    def _drop_window(self, partition: TopicPartition) -> None:
        self._size -= self._windows.pop(partition).size_bytes
        self._assignment_changes.append(self._kafka_partition(partition, OFFSET_INVALID))
        self._arrived.notify_all()

    def _kafka_partition(self, partition: TopicPartition, offset: int) -> KafkaPartition:
        return KafkaPartition(self._address.prefix + partition[0], partition[1], offset)


class _PositionedReader(Struct, eq=False):
    """A consumer that has read a partition up to `next_offset`; `unread` are the messages that it has fetched and not
    returned.

    `known_end` is the end of the partition when that was last read.
    """

    consumer: Consumer
    partition: TopicPartition | None = None
    next_offset: int = 0
    known_end: int = 0
    last_used: float = 0.0
    is_lost: bool = False
    unread: Sequence[Any] = ()


class CatchUpReader:
    def __init__(self, address: ClusterAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[_PositionedReader] = []
        self._closed = False
        self._closing = threading.Event()
        self._closer: threading.Thread | None = None

    def known_end(self, partition: TopicPartition, start: int) -> int | None:
        """The last known end of the partition, if a reader at this position has not reached it yet.

        Such a reader need not ask the cluster, because the events that it will find existed before its read began.
        """
        with self._lock:
            ends = [each.known_end for each in self._idle if (each.partition, each.next_offset) == (partition, start)]
        return next((end for end in ends if start < end), None)

    def discard_reader_positions(self, topic: str, number: int | None = None) -> None:
        """Make consumers of the topic, or of one of its partitions, find their positions again, because events were
        removed.
        """
        with self._lock:
            for each in self._idle:
                if each.partition is not None and each.partition[0] == topic and number in (None, each.partition[1]):
                    each.partition = None

    def read(self, partition: TopicPartition, start: int, limit: int, max_bytes: int, end: int) -> EventSlice:
        """Events from `start` on. If there is none before `end`, the result is empty, and leads past a gap in the
        offsets.
        """
        with self._borrow_reader(partition, start) as reader, translate_errors(partition[0]):
            if (reader.partition, reader.next_offset) != (partition, start):
                reader.unread = ()
                topic = self._address.prefix + partition[0]
                look_up_topic(reader.consumer, topic)
                reader.consumer.assign([KafkaPartition(topic, partition[1], start)])
                reader.partition, reader.next_offset = partition, start
            reader.known_end = end
            messages = self._fetch_messages(reader, limit, end)
            taken = _messages_to_fit(messages[: max(limit, 1)], max_bytes)
            reader.unread = messages[len(taken) :]
            if not taken:
                return EventSlice((), reader.next_offset)
            reader.next_offset = taken[-1].offset() + 1
            return EventSlice(events_from_messages(taken), reader.next_offset)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            closer = self._closer
        self._closing.set()
        for reader in idle:
            reader.consumer.close()
        if closer is not None:
            closer.join()

    def _fetch_messages(self, reader: _PositionedReader, limit: int, end: int) -> Sequence[Any]:
        """The messages that have already arrived; if there are none before `end`, wait for some."""
        if reader.unread:
            return reader.unread
        found: list[Any] = []
        patience = time.monotonic() + self._address.timeout_seconds
        while not found and reader.next_offset < end:
            if self._closed or time.monotonic() > patience:
                reader.is_lost = not self._closed
                raise Unavailable("The event log is closed." if self._closed else "Kafka: no events came in time")
            first = reader.consumer.poll(0.1)
            messages = [] if first is None else [first, *reader.consumer.consume(min(limit, 10_000), 0)]
            for message in messages:
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # the library's own name
                    # After the last event there may be offsets without events: the markers of transactions.
                    reader.next_offset = max(reader.next_offset, message.offset())
                elif not error.retriable():
                    raise as_port_error(error, str(reader.partition))
        return found

    @contextmanager
    def _borrow_reader(self, partition: TopicPartition, start: int) -> Iterator[_PositionedReader]:
        with self._lock:
            if self._closed:
                raise Unavailable("The event log is closed.")
            fitting = [each for each in self._idle if (each.partition, each.next_offset) == (partition, start)]
            # The events that a recently used consumer fetches ahead will soon be needed, so it keeps its position.
            free = [
                each
                for each in self._idle
                if each.partition is None or time.monotonic() - each.last_used > READER_REUSE_DELAY_SECONDS
            ]
            enough = len(self._idle) >= MAX_IDLE_READERS
            reader = next(iter(fitting or free or (self._idle if enough else [])), None)
            if reader is not None:
                self._idle.remove(reader)
        reader = reader or _PositionedReader(self._new_consumer())
        try:
            yield reader
        except BaseException:
            reader.partition = None
            raise
        finally:
            self._return_reader(reader)

    def _return_reader(self, reader: _PositionedReader) -> None:
        reader.last_used = time.monotonic()
        with self._lock:
            kept = not self._closed and not reader.is_lost and len(self._idle) < MAX_IDLE_READERS
            if kept:
                self._idle.append(reader)
                self._begin_closing_unused_readers()
        if reader.is_lost:
            # The servers may be unavailable, and this consumer may not find them when they return.
            discard_client(reader.consumer)
        elif not kept:
            reader.consumer.close()

    def _begin_closing_unused_readers(self) -> None:
        """Ensure that a thread runs that closes unused readers, as long as there are idle readers. The caller holds the
        lock.
        """
        if self._closer is None:
            self._closer = threading.Thread(target=self._close_unused_readers, name="kafka-unused-readers", daemon=True)
            self._closer.start()

    def _close_unused_readers(self) -> None:
        while not self._closing.wait(UNUSED_READER_TIMEOUT_SECONDS):
            unused_since = time.monotonic() - UNUSED_READER_TIMEOUT_SECONDS
            with self._lock:
                unused = [each for each in self._idle if each.last_used <= unused_since]
                self._idle = [each for each in self._idle if each.last_used > unused_since]
                is_last = not self._idle
                if is_last:
                    # Under the same lock as the check, so that a reader which is returned from now on starts another
                    # thread.
                    self._closer = None
            for each in unused:
                each.consumer.close()
            if is_last:
                return

    def _new_consumer(self) -> Consumer:
        return new_consumer(
            self._address,
            enable_partition_eof=True,
            # A newly assigned partition is fetched only after the answer to the previous request, so answers must come
            # soon.
            fetch_wait_max_ms=10,
            queued_max_messages_kbytes=8_192,
            fetch_queue_backoff_ms=QUEUE_BACKOFF_MILLISECONDS,
        )


def _slice_to_fit(events: Sequence[StoredEvent], max_bytes: int, end: int) -> EventSlice:
    """The first of these events, as many as fit; without events, an empty slice that leads to `end`."""
    total = 0
    for count, event in enumerate(events):
        total += len(event.record.value or b"")
        if total > max_bytes and count:
            events = events[:count]
            break
    return EventSlice(tuple(events), events[-1].offset + 1 if events else end)


def _messages_to_fit(messages: Sequence[Any], max_bytes: int) -> Sequence[Any]:
    """The first of these messages, as many as fit, and at least one."""
    sizes = accumulate(len(message.value() or b"") for message in messages)
    fitting = next((index for index, size in enumerate(sizes) if size > max_bytes), len(messages))
    return messages[: max(fitting, 1)]


def _event_offset(event: StoredEvent) -> int:
    return event.offset


def _memory_bytes(event: StoredEvent) -> int:
    return len(event.record.value or b"") + EVENT_OVERHEAD_BYTES
