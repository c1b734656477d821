"""Storing records: the events of one append and partition travel in one record batch, which Kafka stores whole.

The library collects records and decides by itself where a batch ends. It is kept from deciding here: a producer holds
back what it is given until it is flushed, and a flush sends what waits for a partition as one batch, as long as it is
smaller than the largest batch. So events that were appended together lie next to each other, whatever other processes
append, and are stored together or not at all. Only an append of more than `MOST_BYTES` to one partition is stored in
parts, each after the one in front of it was acknowledged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, Producer
from msgspec import Struct, field

from nakadi.engines.kafka.cluster import MOST_BYTES, UNKNOWN, Address, Place, producer
from nakadi.engines.kafka.records import headers_of, milliseconds_from, size_of
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable

LANES = 4
"""Producers of a process. A partition always uses the same one, so its events lie in the order of their times."""

BATCH_BYTES = MOST_BYTES - 64 * 1024
BATCH_RECORDS = 50_000
WAITING_BYTES = 64 * 1024 * 1024
"""How much may wait in a lane. Beyond it appends are refused at once, so that a slow cluster costs bounded memory."""

FLUSH = 0.02
"""Seconds that a lane waits for partitions without an answer before it goes on with others."""

_log = logging.getLogger(__name__)

Clock = Callable[[], datetime]
LatestTime = Callable[[str, int], int]
Outcome: TypeAlias = Any
"""How a write ended: the `KafkaError`, or None when it is durable."""


class _Part(Struct, eq=False):
    """Records that are stored in one batch."""

    place: Place
    records: Sequence[Record]
    size: int
    added: float = 0.0
    outcome: Future[Outcome] = field(default_factory=Future)
    unanswered: int = 0
    failure: KafkaError | None = None

    def answered(self, error: KafkaError | None, _message: object) -> None:
        self.failure = self.failure or error
        self.unanswered -= 1
        if not self.unanswered:
            self.outcome.set_result(self.failure)


class Writer:
    """`name` is what the cluster calls a topic, `latest_time` the greatest time of the records in a partition."""

    def __init__(self, address: Address, clock: Clock, name: Callable[[str], str], latest_time: LatestTime) -> None:
        self._lanes = [_Lane(address, clock, name, latest_time) for _ in range(LANES)]

    def write(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, Outcome]:
        """Store records and wait for the outcome of each partition."""
        parts = {number: list(_parts((topic, number), records)) for number, records in batches.items()}
        outcomes: dict[int, Outcome] = dict.fromkeys(batches)
        for number in batches:
            outcomes[number] = self._lane((topic, number)).learn_time((topic, number))
        going_on = [number for number, each in parts.items() if each and outcomes[number] is None]
        turn = 0
        while going_on:
            for number in going_on:
                self._lane((topic, number)).add(parts[number][turn])
            for number in going_on:
                outcomes[number] = parts[number][turn].outcome.result()
            turn += 1
            going_on = [number for number in going_on if outcomes[number] is None and turn < len(parts[number])]
        return outcomes

    def forget(self, topic: str) -> None:
        for lane in self._lanes:
            lane.forget(topic)

    def close(self) -> None:
        """Finish what has begun."""
        for lane in self._lanes:
            lane.close()

    def _lane(self, place: Place) -> _Lane:
        return self._lanes[hash(place) % LANES]


def _parts(place: Place, records: Sequence[Record]) -> Iterator[_Part]:
    part: list[Record] = []
    size = 0
    for record in records:
        more = size_of(record)
        if part and (size + more > BATCH_BYTES or len(part) == BATCH_RECORDS):
            yield _Part(place, part, size)
            part, size = [], 0
        part.append(record)
        size += more
    if part:
        yield _Part(place, part, size)


class _Lane:
    """A producer and its thread. While one flush is under way the parts that come meanwhile wait for the next one."""

    def __init__(self, address: Address, clock: Clock, name: Callable[[str], str], latest_time: LatestTime) -> None:
        self._address = address
        self._clock = clock
        self._name = name
        self._latest_time = latest_time
        self._changed = threading.Condition()
        self._waiting: deque[_Part] = deque()
        self._waiting_bytes = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        # The greatest time of the records of each partition, for the partitions that were written already.
        self._times: dict[Place, int] = {}
        # Only the thread of the lane uses what follows.
        self._under_way: dict[Place, list[_Part]] = {}
        self._producer: Producer | None = None

    def learn_time(self, place: Place) -> Outcome:
        """Find out where the times of a partition have got to, before it is written for the first time.

        The thread that appends asks, so that a partition without a leader keeps no other one waiting. It does no harm
        that two threads ask, or that the topic is forgotten meanwhile: the first answer stays, and clocks go on.
        """
        if place not in self._times:
            try:
                self._times.setdefault(place, self._latest_time(*place))
            except Unavailable as error:
                return _as_kafka_error(error.__cause__)
        return None

    def add(self, part: _Part) -> None:
        with self._changed:
            if self._closed:
                raise Unavailable("The event log is closed.")
            if self._waiting and self._waiting_bytes + part.size > WAITING_BYTES:
                part.outcome.set_result(KafkaError(KafkaError._QUEUE_FULL))  # noqa: SLF001  # the library's own name
                return
            part.added = time.monotonic()
            self._waiting.append(part)
            self._waiting_bytes += part.size
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-writer", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self, topic: str) -> None:
        # A plain pop of each: the thread of the lane may add others meanwhile, and never one of this topic.
        for place in [place for place in list(self._times) if place[0] == topic]:
            self._times.pop(place, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (parts := self._next_parts()) is not None:
            for part in parts:
                try:
                    self._produce(part)
                except Exception as error:  # noqa: BLE001  # the lane goes on with other partitions
                    _log.exception("Append to Kafka failed: %s/%s", *part.place)
                    part.failure = part.failure or _as_kafka_error(error)
                    if not part.outcome.done():
                        part.outcome.set_result(part.failure)
            if self._producer is not None:
                self._producer.flush(FLUSH)
            self._complete_all()

    def _next_parts(self) -> Sequence[_Part] | None:
        """Parts for the next flush; None when the lane is closed and everything is finished.

        A partition whose last flush has no answer yet gets no new parts: the library may send that batch again at any
        moment, and would put the beginning of a new part behind it.
        """
        with self._changed:
            while not self._waiting and not self._under_way:
                if self._closed:
                    return None
                self._changed.wait()
            self._refuse_expired()
            taken, left = [], []
            sizes: dict[Place, int] = {}
            counts: dict[Place, int] = {}
            full = set(self._under_way)
            for part in self._waiting:
                size = sizes.get(part.place, 0) + part.size
                count = counts.get(part.place, 0) + len(part.records)
                if part.place in full or (part.place in sizes and (size > BATCH_BYTES or count > BATCH_RECORDS)):
                    # Parts of one partition stay in their order.
                    full.add(part.place)
                    left.append(part)
                else:
                    sizes[part.place], counts[part.place] = size, count
                    taken.append(part)
            self._waiting = deque(left)
            self._waiting_bytes = sum(part.size for part in left)
        for part in taken:
            self._under_way.setdefault(part.place, []).append(part)
        return taken

    def _refuse_expired(self) -> None:
        """Refuse what has waited for as long as an answer may take: it was not sent, and is not sent any more."""
        oldest = time.monotonic() - self._address.timeout
        while self._waiting and self._waiting[0].added < oldest:
            self._waiting.popleft().outcome.set_result(KafkaError(KafkaError._MSG_TIMED_OUT))  # noqa: SLF001  # as above

    def _produce(self, part: _Part) -> None:
        """Give the records to the library. The first and the last one report the outcome of the whole part.

        When the library gives up, it gives up on the oldest records first, so no other one can fail alone.
        """
        topic, partition = part.place
        moment = self._time(part.place)
        into = self._open_producer()
        name, last = self._name(topic), len(part.records) - 1
        part.unanswered = 1 if last == 0 else 2
        for index, record in enumerate(part.records):
            more: dict[str, Any] = {}
            if record.owner is not None or record.directed_to is not None:
                more["headers"] = headers_of(record)
            if index in (0, last):
                more["on_delivery"] = part.answered
            into.produce(name, record.value, _key(record), partition, timestamp=moment, **more)

    def _time(self, place: Place) -> int:
        """The time of the next records: now, and never before that of an earlier record of the partition."""
        moment = max(self._times.get(place, 0), milliseconds_from(self._clock()))
        self._times[place] = moment
        return moment

    def _open_producer(self) -> Producer:
        if self._producer is None:
            # When the time is over, the library removes a record from its queue and does not send it later; only a
            # request that was on its way already may still be carried out.
            timeout = int(self._address.timeout * 1000)
            self._producer = producer(
                self._address,
                enable_idempotence=True,
                acks="all",
                compression_type="zstd",
                linger_ms=timeout - 1,
                message_timeout_ms=timeout,
                request_timeout_ms=timeout - 1,
                message_max_bytes=MOST_BYTES,
                batch_size=MOST_BYTES,
                batch_num_messages=BATCH_RECORDS * 2,
                queue_buffering_max_messages=0,
                queue_buffering_max_kbytes=2 * WAITING_BYTES // 1024,
            )
        return self._producer

    def _complete_all(self) -> None:
        fatal = False
        for place, parts in list(self._under_way.items()):
            open_parts = [part for part in parts if not part.outcome.done()]
            fatal = fatal or any(part.failure is not None and part.failure.fatal() for part in parts)
            if any(part.failure is not None and part.failure.code() in UNKNOWN for part in parts):
                self._times.pop(place, None)
            if open_parts:
                self._under_way[place] = open_parts
            else:
                del self._under_way[place]
        if fatal and not self._under_way:
            # A producer that has met a fatal error refuses everything from then on; another one starts afresh.
            self._producer = None


def _key(record: Record) -> bytes | None:
    return None if record.key is None else record.key.encode()


def _as_kafka_error(error: BaseException | None) -> KafkaError:
    if error is not None and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    timed_out = isinstance(error, TimeoutError)
    return KafkaError(KafkaError._TIMED_OUT if timed_out else KafkaError._FAIL)  # noqa: SLF001  # as above
