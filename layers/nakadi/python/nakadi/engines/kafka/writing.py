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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer
from msgspec import Struct

from nakadi.engines.kafka.client import UNKNOWN, Address, Place, producer
from nakadi.engines.kafka.cluster import MOST_BYTES
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

_Batch = tuple[Sequence[Record], int]
"""Records with the size of all."""

Completed = Callable[[Outcome], None]
Written = Callable[[Mapping[int, Outcome]], None]


class _Part(Struct, eq=False):
    """Records that are stored in one batch. `completed` is called once."""

    place: Place
    records: Sequence[Record]
    size: int
    completed: Completed
    added: float = 0.0
    unanswered: int = 0
    failure: KafkaError | None = None
    is_complete: bool = False

    def answered(self, error: KafkaError | None, _message: object) -> None:
        self.failure = self.failure or error
        self.unanswered -= 1
        if not self.unanswered:
            self.complete(self.failure)

    def complete(self, outcome: Outcome) -> None:
        if self.is_complete:
            return
        self.is_complete = True
        try:
            self.completed(outcome)
        except Exception:  # noqa: BLE001  # what it calls is code of other parts, and the lane serves others too
            _log.exception("What follows an append to Kafka failed: %s/%s", *self.place)


class _Write:
    """The outcomes of an append's partitions, which lanes report from threads of their own."""

    def __init__(self, partitions: Collection[int], done: Written) -> None:
        self._outcomes: dict[int, Outcome] = dict.fromkeys(partitions)
        self._missing = len(partitions)
        self._lock = threading.Lock()
        self._done = done

    def settle(self, partition: int, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes[partition] = outcome
            self._missing -= 1
            is_last = self._missing == 0
        if is_last:
            self._done(self._outcomes)


class Writer:
    """`name` is what the cluster calls a topic, `latest_time` the greatest time of the records in a partition."""

    def __init__(self, address: Address, clock: Clock, name: Callable[[str], str], latest_time: LatestTime) -> None:
        self._lanes = [_Lane(address, clock, name, latest_time) for _ in range(LANES)]

    def write(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, Outcome]:
        """Store records and wait for the outcome of each partition."""
        learnt = {number: self._lane((topic, number)).learn_time((topic, number)) for number in batches}
        writable = {number: records for number, records in batches.items() if learnt[number] is None}
        written: Future[Mapping[int, Outcome]] = Future()
        self.write_soon(topic, writable, written.set_result)
        return learnt | dict(written.result())

    def is_prepared(self, topic: str, partitions: Collection[int]) -> bool:
        """Whether nothing has to be asked before records can be written."""
        return all(self._lane((topic, number)).knows_time((topic, number)) for number in partitions)

    def write_soon(self, topic: str, batches: Mapping[int, Sequence[Record]], done: Written) -> None:
        """Begin to store records. `done` is called with the outcome of each partition, mostly by the thread of a lane,
        which cannot serve others before it returns."""
        if not batches:
            done({})
            return
        write = _Write(batches, done)
        for number, records in batches.items():
            self._store_next((topic, number), _in_batches(records), partial(write.settle, number), None)

    def _store_next(self, place: Place, batches: Iterator[_Batch], completed: Completed, outcome: Outcome) -> None:
        """Store the next part of what is larger than a batch, after the one in front of it was stored."""
        batch = next(batches, None) if outcome is None else None
        if batch is None:
            completed(outcome)
        else:
            self._lane(place).add(_Part(place, *batch, partial(self._store_next, place, batches, completed)))

    def forget(self, topic: str) -> None:
        for lane in self._lanes:
            lane.forget(topic)

    def close(self) -> None:
        """Finish what has begun."""
        for lane in self._lanes:
            lane.close()

    def _lane(self, place: Place) -> _Lane:
        return self._lanes[hash(place) % LANES]


def _in_batches(records: Sequence[Record]) -> Iterator[_Batch]:
    batch: list[Record] = []
    size = 0
    for record in records:
        more = size_of(record)
        if batch and (size + more > BATCH_BYTES or len(batch) == BATCH_RECORDS):
            yield batch, size
            batch, size = [], 0
        batch.append(record)
        size += more
    if batch:
        yield batch, size


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

    def knows_time(self, place: Place) -> bool:
        return place in self._times

    def add(self, part: _Part) -> None:
        refusal = self._add_unless_refused(part)
        if refusal is not None:
            part.complete(refusal)

    def _add_unless_refused(self, part: _Part) -> Outcome:
        with self._changed:
            if self._closed:
                return KafkaError(KafkaError._DESTROY)  # noqa: SLF001  # the library's own name
            if self._waiting and self._waiting_bytes + part.size > WAITING_BYTES:
                return KafkaError(KafkaError._QUEUE_FULL)  # noqa: SLF001  # as above
            part.added = time.monotonic()
            self._waiting.append(part)
            self._waiting_bytes += part.size
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-writer", daemon=True)
                self._thread.start()
            self._changed.notify()
        return None

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
                    part.complete(part.failure)
            if self._producer is not None:
                self._flush(self._producer)
            self._complete_all()

    def _flush(self, producer: Producer) -> None:
        try:
            producer.flush(FLUSH)
        except KafkaException as error:
            # So the library reports a fatal error, as when the cluster lets this process write nothing at all. It may
            # not report the outcome of records any more.
            _log.warning("Appends to Kafka failed, another producer is used from now on: %s", error)
            producer.purge()
            self._producer = None
            for part in [part for parts in self._under_way.values() for part in parts]:
                part.failure = part.failure or _as_kafka_error(error)
                part.complete(part.failure)

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
            expired = self._remove_expired()
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
        for part in expired:
            part.complete(KafkaError(KafkaError._MSG_TIMED_OUT))  # noqa: SLF001  # as above
        for part in taken:
            self._under_way.setdefault(part.place, []).append(part)
        return taken

    def _remove_expired(self) -> Sequence[_Part]:
        """What has waited for as long as an answer may take: it was not sent, and is not sent any more."""
        oldest = time.monotonic() - self._address.timeout
        expired = []
        while self._waiting and self._waiting[0].added < oldest:
            expired.append(self._waiting.popleft())
        return expired

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
            open_parts = [part for part in parts if not part.is_complete]
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
