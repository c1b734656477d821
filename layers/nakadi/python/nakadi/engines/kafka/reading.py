"""Finding records again: at the end of a partition from memory, anywhere else from the cluster.

Most readers are at the end. For them a process has one consumer, the *tail*: it follows each partition that was read
up to its end, keeps what arrives in a window in memory, and announces it. Any number of readers share a window.
A reader that is behind its window is served by a consumer of its own, which is kept for its next read.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, TopicPartition
from msgspec import Struct, field

from nakadi.engines.kafka.client import Address, Place, consumer, fault_of, translated
from nakadi.engines.kafka.records import MARKER, event_of
from nakadi.model.events import Slice, StoredEvent
from nakadi.model.outcomes import Unavailable

WINDOW_BYTES = 4_000_000
WINDOWS_BYTES = 64_000_000
"""How much of a partition, and of all together, is kept in memory."""

UNREAD = 60.0
"""Seconds after which a window that fills and is not read is given up."""

PAUSE = 0.05
"""Seconds that the tail waits for events before it looks whether other partitions are to be followed."""

READERS = 8
"""Consumers that are kept for readers which are behind."""

RESTING = 1.0
"""Seconds after which such a consumer may be used for another place."""

QUEUE_BACKOFF = 5
"""Milliseconds after which the library looks whether its queue has room again. By default it rests for a second, in
which a reader that is quick waits for it."""

EVENT_BYTES = 200
"""About what an event takes in memory beside its value."""

_log = logging.getLogger(__name__)


class _Window(Struct):
    """The events of a partition from `begin` up to `end`, the offset that comes next."""

    begin: int
    end: int
    last_read: float
    events: list[StoredEvent] = field(default_factory=list)
    size: int = 0

    def add(self, event: StoredEvent) -> None:
        self.end = event.offset + 1
        if event.record == MARKER:
            return
        self.events.append(event)
        self.size += _size(event)

    def drop_oldest(self, wanted: int) -> None:
        """Drop the oldest events until this many bytes are left."""
        dropped = 0
        while self.size > wanted:
            self.size -= _size(self.events[dropped])
            dropped += 1
        self.begin = self.events[dropped].offset if dropped < len(self.events) else self.end
        del self.events[:dropped]

    def slice(self, start: int, limit: int, max_bytes: int) -> Slice:
        first = bisect_left(self.events, start, key=_offset)
        return _slice(self.events[first : first + max(limit, 1)], max_bytes, self.end)


class Tail:
    """`changed` is called with the topic and the partition when events arrived."""

    def __init__(self, address: Address, changed: Callable[[str, int], None]) -> None:
        self._address = address
        self._changed = changed
        self._arrived = threading.Condition()
        self._windows: dict[Place, _Window] = {}
        self._size = 0
        # What the thread of the tail has to do: only that thread uses the consumer, whose calls wait for each other.
        self._orders: deque[TopicPartition] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def slice(self, place: Place, start: int, limit: int, max_bytes: int) -> Slice | None:
        """Events in memory; None when the window does not begin in front of them or has none of them yet."""
        with self._arrived:
            window = self._windows.get(place)
            if window is None or not window.begin <= start < window.end:
                return None
            window.last_read = time.monotonic()
            return window.slice(start, limit, max_bytes)

    def follow(self, place: Place, end: int) -> None:
        """Keep what is stored from this offset on, unless the partition is being followed already."""
        with self._arrived:
            if place in self._windows or self._closed:
                return
            self._windows[place] = _Window(end, end, time.monotonic())
            self._orders.append(self._assignment_at(place, end))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-tail", daemon=True)
                self._thread.start()

    def wait(self, place: Place, start: int, seconds: float) -> None:
        """Wait until the event at `start` is in the window, if the window will have it at all."""
        end = time.monotonic() + seconds
        with self._arrived:
            while (window := self._windows.get(place)) is not None and window.begin <= start and window.end <= start:
                if self._closed or not self._arrived.wait(end - time.monotonic()):
                    return

    def forget(self, topic: str) -> None:
        with self._arrived:
            for place in [place for place in self._windows if place[0] == topic]:
                self._drop(place)

    def _forget_all(self) -> None:
        """Begin again. What was received and not kept would otherwise be missing between two events of a window,
        and could not be told from what compaction removed."""
        with self._arrived:
            for place in list(self._windows):
                self._drop(place)

    def forget_before(self, place: Place, oldest: int) -> None:
        with self._arrived:
            window = self._windows.get(place)
            if window is not None and window.begin < oldest:
                self._drop(place)

    def close(self) -> None:
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        source = consumer(
            self._address,
            fetch_wait_max_ms=250,
            queued_max_messages_kbytes=16_384,
            fetch_queue_backoff_ms=QUEUE_BACKOFF,
        )
        while not self._closed:
            try:
                self._carry_out_orders(source)
                # `consume` would wait for as many as it may return, so the first one is waited for alone.
                first = source.poll(PAUSE)
                if first is not None:
                    self._keep([first, *source.consume(1000, 0)])
            except Exception:  # noqa: BLE001  # the next round may succeed; readers look for themselves meanwhile
                _log.exception("Following partitions in Kafka failed, all of them are read from the cluster again")
                self._forget_all()
                time.sleep(PAUSE)
        source.close()

    def _carry_out_orders(self, source: Consumer) -> None:
        """Follow partitions from an offset on, and end following those whose order has no offset."""
        while self._orders:
            order = self._orders.popleft()
            if order.offset == OFFSET_INVALID:
                source.incremental_unassign([order])
            else:
                source.incremental_assign([order])

    def _keep(self, messages: Sequence[Any]) -> None:
        places: dict[Place, _Window] = {}
        with self._arrived:
            for message in messages:
                if message.topic() is None:
                    continue  # an error of a connection, which the library opens again
                place = (message.topic().removeprefix(self._address.prefix), message.partition())
                if message.error() is not None:
                    self._fail(place, message.error())
                elif (window := self._windows.get(place)) is not None and message.offset() >= window.end:
                    before = window.size
                    window.add(event_of(message))
                    self._size += window.size - before
                    places[place] = window
            self._bound(places)
            self._arrived.notify_all()
        if not self._closed:
            for place in places:
                self._changed(*place)

    def _bound(self, grown: Mapping[Place, _Window]) -> None:
        """Keep to the limits: windows without readers go, and then those that were not read for longest shrink."""
        now = time.monotonic()
        for place, window in grown.items():
            if now - window.last_read > UNREAD:
                self._drop(place)
            elif window.size > WINDOW_BYTES:
                self._drop_oldest(window, WINDOW_BYTES // 2)
        if self._size > WINDOWS_BYTES:
            for window in sorted(self._windows.values(), key=_last_read):
                if self._size > WINDOWS_BYTES // 2:
                    self._drop_oldest(window, 0)

    def _drop_oldest(self, window: _Window, wanted: int) -> None:
        self._size -= window.size
        window.drop_oldest(wanted)
        self._size += window.size

    def _fail(self, place: Place, error: Any) -> None:
        """Give a partition up that cannot be followed any more; its readers find out why, and start again."""
        if place in self._windows and not error.retriable():
            _log.warning("Following %s/%s in Kafka ended: %s", *place, error.str())
            self._drop(place)

    def _drop(self, place: Place) -> None:
        self._size -= self._windows.pop(place).size
        self._orders.append(self._assignment_at(place, OFFSET_INVALID))
        self._arrived.notify_all()

    def _assignment_at(self, place: Place, offset: int) -> TopicPartition:
        return TopicPartition(self._address.prefix + place[0], place[1], offset)


class _Reader(Struct, eq=False):
    """A consumer that has read a partition up to `position`; `ahead` is what it has fetched and not given out.

    The partition went up to `end` when its end was last asked for.
    """

    consumer: Consumer
    place: Place | None = None
    position: int = 0
    end: int = 0
    used: float = 0.0
    ahead: list[StoredEvent] = field(default_factory=list)


class CatchUp:
    """Reads anywhere in a partition."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[_Reader] = []
        self._closed = False

    def known_end(self, place: Place, start: int) -> int | None:
        """Where the partition ends as far as a reader at this place knows, if it has not come there yet.

        Such a reader need not ask the cluster: what it will find was there before its read began.
        """
        with self._lock:
            ends = [each.end for each in self._idle if (each.place, each.position) == (place, start)]
        return next((end for end in ends if start < end), None)

    def forget(self, topic: str, partition: int | None = None) -> None:
        """Have readers of the topic, or of one partition of it, begin anew: events were removed."""
        with self._lock:
            for each in self._idle:
                if each.place is not None and each.place[0] == topic and partition in (None, each.place[1]):
                    each.place = None

    def read(self, place: Place, start: int, limit: int, max_bytes: int, end: int) -> Slice:
        """Events from `start` on, of which there is at least one in front of `end`, or else a hole."""
        with self._borrow_reader(place, start) as reader, translated(place[0]):
            if (reader.place, reader.position) != (place, start):
                reader.ahead = []
                reader.consumer.assign([TopicPartition(self._address.prefix + place[0], place[1], start)])
                reader.place, reader.position = place, start
            reader.end = end
            found = self._fetch(reader, limit, end)
            slice_ = _slice(found[: max(limit, 1)], max_bytes, reader.position)
            reader.ahead = found[len(slice_.events) :]
            reader.position = slice_.next_offset
            return slice_

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.consumer.close()

    def _fetch(self, reader: _Reader, limit: int, end: int) -> list[StoredEvent]:
        """What is there already; when there is nothing, wait for something."""
        found = reader.ahead
        patience = time.monotonic() + self._address.timeout
        while not found and reader.position < end:
            if self._closed or time.monotonic() > patience:
                raise Unavailable("The event log is closed." if self._closed else "Kafka: no events came in time")
            first = reader.consumer.poll(0.1)
            messages = [] if first is None else [first, *reader.consumer.consume(min(limit, 10_000), 0)]
            for message in messages:
                error = message.error()
                if error is None:
                    event = event_of(message)
                    if event.record == MARKER:
                        reader.position = event.offset + 1
                    else:
                        found.append(event)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # the library's own name
                    # Behind the last event there may be places without any: what transactions have left.
                    reader.position = max(reader.position, message.offset())
                elif not error.retriable():
                    raise fault_of(error, str(reader.place))
        return found

    @contextmanager
    def _borrow_reader(self, place: Place, start: int) -> Iterator[_Reader]:
        with self._lock:
            if self._closed:
                raise Unavailable("The event log is closed.")
            fitting = [each for each in self._idle if (each.place, each.position) == (place, start)]
            # One that was used a moment ago will be asked for what it fetches ahead, so it is not taken from its place.
            free = [each for each in self._idle if each.place is None or time.monotonic() - each.used > RESTING]
            enough = len(self._idle) >= READERS
            reader = next(iter(fitting or free or (self._idle if enough else [])), None)
            if reader is not None:
                self._idle.remove(reader)
        reader = reader or _Reader(self._new_consumer())
        try:
            yield reader
        except BaseException:
            reader.place = None
            raise
        finally:
            self._give_back(reader)

    def _give_back(self, reader: _Reader) -> None:
        reader.used = time.monotonic()
        with self._lock:
            kept = not self._closed and len(self._idle) < READERS
            if kept:
                self._idle.append(reader)
        if not kept:
            reader.consumer.close()

    def _new_consumer(self) -> Consumer:
        return consumer(
            self._address,
            enable_partition_eof=True,
            # A partition that is given to this consumer waits for the answer to the request before.
            fetch_wait_max_ms=10,
            queued_max_messages_kbytes=8_192,
            fetch_queue_backoff_ms=QUEUE_BACKOFF,
        )


def _slice(events: Sequence[StoredEvent], max_bytes: int, end: int) -> Slice:
    """The first events, as many as fit; when there is none, an empty slice that leads to `end`."""
    total = 0
    for count, event in enumerate(events):
        total += len(event.record.value or b"")
        if total > max_bytes and count:
            events = events[:count]
            break
    return Slice(tuple(events), events[-1].offset + 1 if events else end)


def _offset(event: StoredEvent) -> int:
    return event.offset


def _last_read(window: _Window) -> float:
    return window.last_read


def _size(event: StoredEvent) -> int:
    return len(event.record.value or b"") + EVENT_BYTES
