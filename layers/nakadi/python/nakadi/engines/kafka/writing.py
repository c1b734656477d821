"""Stores records: the events of one append and partition form one record batch, which Kafka stores as a whole.

The library collects records and decides by itself where a batch ends. This module decides it instead: a producer holds
back its records until a flush, which sends all records that wait for a partition as one batch, if they are smaller than
the largest batch. So events that were appended together are adjacent, even if other processes append meanwhile, and are
stored together or not at all. Only an append of more than `MAX_BATCH_BYTES` to one partition is stored in several
batches, each after the previous one was acknowledged.
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
from itertools import chain, repeat
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer
from msgspec import Struct

from nakadi.engines.kafka.client import (
    UNKNOWN_TOPIC_ERRORS,
    ClusterAddress,
    discard_client,
    look_up_topic,
    new_producer,
)
from nakadi.engines.kafka.cluster import MAX_BATCH_BYTES
from nakadi.engines.kafka.records import RECORD_OVERHEAD_BYTES, max_record_bytes, record_headers, to_milliseconds
from nakadi.model.events import Record, RecordLines, TopicPartition
from nakadi.model.outcomes import Unavailable

_log = logging.getLogger(__name__)

PRODUCER_THREADS = 4
"""The number of producers in a process. A partition always uses the same producer, so its events are in the order of
their times."""

TARGET_BATCH_BYTES = MAX_BATCH_BYTES - 64 * 1024
MAX_BATCH_RECORDS = 50_000
ZSTD_LEVEL = 1
"""The library's own default, 3, takes twice as long, which is more than all other work for a record, and makes batches
of events no smaller."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""How many bytes may wait for a producer. Beyond that, appends are refused at once, so that a slow cluster cannot fill
the memory."""

MAX_SECONDS_PER_FLUSH = 0.02
"""How long a producer thread waits for the answers of some partitions before it continues with others."""

TOPIC_LOOKUPS_PER_PRODUCER = 2

CurrentTime = Callable[[], datetime]
LatestRecordTime = Callable[[str, int], int]
WriteOutcome: TypeAlias = Any
"""How a write ended: the `KafkaError`, or None when it is durable."""

_SizedRecords = tuple[Sequence[Record], int]
"""Records with their total size."""

OnPartitionWriteDone = Callable[[WriteOutcome], None]
OnWriteDone = Callable[[Mapping[int, WriteOutcome]], None]


class _PendingBatch(Struct, eq=False):
    """Records that are stored in one batch. `on_completed` is called once.

    Once the batch is in the queue, only its producer's thread changes it: the library calls `on_delivery` within a
    flush.
    """

    partition: TopicPartition
    records: Sequence[Record]
    size: int
    on_completed: OnPartitionWriteDone
    added_at: float = 0.0
    missing_report_count: int = 0
    failure: KafkaError | None = None
    is_complete: bool = False
    producer: Producer | None = None

    def has_timed_out_in(self, producer: Producer | None) -> bool:
        timed_out = self.failure is not None and self.failure.code() == KafkaError._MSG_TIMED_OUT  # noqa: SLF001  # the library's own name
        return timed_out and producer is not None and self.producer is producer

    def on_delivery(self, error: KafkaError | None, _message: object) -> None:
        self.failure = self.failure or error
        self.missing_report_count -= 1
        if not self.missing_report_count:
            self.complete(self.failure)

    def complete(self, outcome: WriteOutcome) -> None:
        if self.is_complete:
            return
        self.is_complete = True
        try:
            self.on_completed(outcome)
        except Exception:  # noqa: BLE001  # the callback belongs to other batches, and the thread serves others too
            _log.exception("Work after an append to Kafka failed: %s/%s", *self.partition)


class _PendingWrite:
    """The outcomes of an append's partitions, which producer threads report."""

    def __init__(self, partitions: Collection[int], done: OnWriteDone) -> None:
        self._outcomes: dict[int, WriteOutcome] = dict.fromkeys(partitions)
        self._missing = len(partitions)
        self._lock = threading.Lock()
        self._done = done

    def record_outcome(self, number: int, outcome: WriteOutcome) -> None:
        with self._lock:
            self._outcomes[number] = outcome
            self._missing -= 1
            is_last = self._missing == 0
        # This needs no lock: only one thread is the last, and nothing changes the outcomes after it.
        if is_last:
            self._done(self._outcomes)


class RecordWriter:
    """Stores records. `name` returns the cluster's name of a topic, and `latest_time` the greatest time of the records
    in a partition.
    """

    def __init__(
        self, address: ClusterAddress, clock: CurrentTime, name: Callable[[str], str], latest_time: LatestRecordTime
    ) -> None:
        self._threads = [_ProducerThread(address, clock, name, latest_time) for _ in range(PRODUCER_THREADS)]

    def write(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, WriteOutcome]:
        """Store records and wait for the outcome of each partition."""
        failures = {
            number: self._producer_thread((topic, number)).ensure_latest_time_known((topic, number))
            for number in batches
        }
        writable = {number: records for number, records in batches.items() if failures[number] is None}
        written: Future[Mapping[int, WriteOutcome]] = Future()
        self.begin_write(topic, writable, written.set_result)
        return failures | dict(written.result())

    def can_write_without_asking(self, topic: str, partitions: Collection[int]) -> bool:
        """Whether records can be written without a prior request to the cluster. If a topic is dropped from the cache
        after this check, its records are still written: their timestamps are taken from the clock, and the cluster
        refuses records for a deleted topic.
        """
        return all(self._producer_thread((topic, number)).knows_latest_time((topic, number)) for number in partitions)

    def begin_write(self, topic: str, batches: Mapping[int, Sequence[Record]], done: OnWriteDone) -> None:
        """Begin to store records. `done` is called with the outcome of each partition, mostly by a producer thread,
        which cannot serve others until `done` returns.
        """
        if not batches:
            done({})
            return
        write = _PendingWrite(batches, done)
        for number, records in batches.items():
            self._write_next_batch(
                (topic, number), _split_into_batches(records), partial(write.record_outcome, number), None
            )

    def _write_next_batch(
        self,
        partition: TopicPartition,
        batches: Iterator[_SizedRecords],
        completed: OnPartitionWriteDone,
        outcome: WriteOutcome,
    ) -> None:
        """Store the next batch of a partition's records, after the previous one ended with `outcome`. After the last
        batch, or a failure, call `completed`.
        """
        batch = next(batches, None) if outcome is None else None
        if batch is None:
            completed(outcome)
        else:
            self._producer_thread(partition).enqueue(
                _PendingBatch(partition, *batch, partial(self._write_next_batch, partition, batches, completed))
            )

    def forget_topic(self, topic: str) -> None:
        for thread in self._threads:
            thread.forget_topic(topic)

    def close(self) -> None:
        for thread in self._threads:
            thread.close()

    def _producer_thread(self, partition: TopicPartition) -> _ProducerThread:
        return self._threads[hash(partition) % PRODUCER_THREADS]


def _split_into_batches(records: Sequence[Record]) -> Iterator[_SizedRecords]:
    if isinstance(records, RecordLines):
        # Most appends are one batch of lines. Their records need not be created, because the library takes its input
        # from the lines.
        size = len(records.text) + RECORD_OVERHEAD_BYTES * len(records) + 4 * sum(map(len, records.keys or ()))
        if size <= TARGET_BATCH_BYTES and len(records) <= MAX_BATCH_RECORDS:
            yield records, size
            return
    batch: list[Record] = []
    size = 0
    for record in records:
        more = max_record_bytes(record)
        if batch and (size + more > TARGET_BATCH_BYTES or len(batch) == MAX_BATCH_RECORDS):
            yield batch, size
            batch, size = [], 0
        batch.append(record)
        size += more
    if batch:
        yield batch, size


class _ProducerThread:
    """A producer and its thread. Batches that arrive during a flush wait for the next flush."""

    def __init__(
        self, address: ClusterAddress, clock: CurrentTime, name: Callable[[str], str], latest_time: LatestRecordTime
    ) -> None:
        self._address = address
        self._clock = clock
        self._name = name
        self._latest_time = latest_time
        self._changed = threading.Condition()
        self._waiting: deque[_PendingBatch] = deque()
        self._waiting_bytes = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        # The greatest time of the records of each partition to which this process has written.
        self._latest_times: dict[TopicPartition, int] = {}
        # Only this thread uses the following attributes.
        self._under_way: dict[TopicPartition, list[_PendingBatch]] = {}
        self._producer: Producer | None = None
        # Replaced producers that have not reported every outcome yet.
        self._replaced: list[Producer] = []

    def ensure_latest_time_known(self, partition: TopicPartition) -> WriteOutcome:
        """Find the latest time in a partition before the first write to the partition.

        The appending thread sends the request, so that a partition without a leader delays no other partition. Two
        threads may do so at once, and the topic may be dropped from the cache meanwhile: then the first result stays,
        and times continue from the clock.
        """
        if partition not in self._latest_times:
            try:
                self._latest_times.setdefault(partition, self._latest_time(*partition))
            except Unavailable as error:
                return _as_kafka_error(error.__cause__)
        return None

    def knows_latest_time(self, partition: TopicPartition) -> bool:
        return partition in self._latest_times

    def enqueue(self, batch: _PendingBatch) -> None:
        refusal = self._enqueue_unless_full(batch)
        if refusal is not None:
            batch.complete(refusal)

    def _enqueue_unless_full(self, batch: _PendingBatch) -> WriteOutcome:
        with self._changed:
            if self._closed:
                return KafkaError(KafkaError._DESTROY)  # noqa: SLF001  # the library's own name
            if self._waiting and self._waiting_bytes + batch.size > MAX_WAITING_BYTES:
                return KafkaError(KafkaError._QUEUE_FULL)  # noqa: SLF001  # as above
            batch.added_at = time.monotonic()
            self._waiting.append(batch)
            self._waiting_bytes += batch.size
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-writer", daemon=True)
                self._thread.start()
            self._changed.notify()
        return None

    def forget_topic(self, topic: str) -> None:
        # Each entry is popped by itself, because other threads may change the dictionary meanwhile.
        for partition in [partition for partition in list(self._latest_times) if partition[0] == topic]:
            self._latest_times.pop(partition, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (batches := self._pop_batches_for_flush()) is not None:
            for batch in batches:
                try:
                    self._produce(batch)
                except KafkaException as error:
                    # Errors that the library detects before sending, such as an unknown topic. The caller logs the
                    # outcome.
                    batch.failure = batch.failure or _as_kafka_error(error)
                    batch.complete(batch.failure)
                except Exception as error:  # noqa: BLE001  # the thread continues with other partitions
                    _log.exception("Append to Kafka failed: %s/%s", *batch.partition)
                    batch.failure = batch.failure or _as_kafka_error(error)
                    batch.complete(batch.failure)
            for producer in (*self._replaced, *([self._producer] if self._producer is not None else ())):
                self._flush(producer)
            self._remove_completed_batches()

    def _flush(self, producer: Producer) -> None:
        try:
            producer.flush(MAX_SECONDS_PER_FLUSH)
        except KafkaException as error:
            # After a fatal error, for example when the cluster lets this process write nothing at all, the library can
            # no longer report the outcome of records.
            _log.warning("Appends to Kafka failed, a new producer takes over: %s", error)
            producer.purge()
            if producer is self._producer:
                self._producer = None
            for batch in [batch for batches in self._under_way.values() for batch in batches]:
                if batch.producer is not producer:
                    continue
                batch.failure = batch.failure or _as_kafka_error(error)
                batch.complete(batch.failure)

    def _pop_batches_for_flush(self) -> Sequence[_PendingBatch] | None:
        """Take the batches for the next flush; None when the thread is closed and everything is finished.

        A partition with a batch in progress gets no new batch: the library may send that batch again at any moment, and
        would append records of a new batch to it.
        """
        with self._changed:
            while not self._waiting and not self._under_way:
                if self._closed:
                    return None
                self._changed.wait()
            expired = self._pop_expired_batches()
            taken, left = [], []
            sizes: dict[TopicPartition, int] = {}
            counts: dict[TopicPartition, int] = {}
            full = set(self._under_way)
            for batch in self._waiting:
                size = sizes.get(batch.partition, 0) + batch.size
                count = counts.get(batch.partition, 0) + len(batch.records)
                if batch.partition in full or (
                    batch.partition in sizes and (size > TARGET_BATCH_BYTES or count > MAX_BATCH_RECORDS)
                ):
                    # Later batches of this partition wait too, so that its batches stay in order.
                    full.add(batch.partition)
                    left.append(batch)
                else:
                    sizes[batch.partition], counts[batch.partition] = size, count
                    taken.append(batch)
            self._waiting = deque(left)
            self._waiting_bytes = sum(batch.size for batch in left)
        for batch in expired:
            batch.complete(KafkaError(KafkaError._TIMED_OUT_QUEUE))  # noqa: SLF001  # as above
        for batch in taken:
            self._under_way.setdefault(batch.partition, []).append(batch)
        return taken

    def _pop_expired_batches(self) -> Sequence[_PendingBatch]:
        """Take the appends that have waited as long as an answer may take: they have not been sent, and will not be
        sent.
        """
        oldest = time.monotonic() - self._address.timeout_seconds
        expired = []
        while self._waiting and self._waiting[0].added_at < oldest:
            expired.append(self._waiting.popleft())
        return expired

    def _produce(self, batch: _PendingBatch) -> None:
        """Give the records to the library. The first and the last record report the outcome of the whole batch: the
        library gives up the oldest records first, so no record between them can fail alone.
        """
        topic, number = batch.partition
        moment = self._next_record_time_ms(batch.partition)
        name, last = self._name(topic), len(batch.records) - 1
        producer = batch.producer = self._ensure_producer(name)
        batch.missing_report_count = 1 if last == 0 else 2
        produce = producer.produce
        if isinstance(batch.records, RecordLines):
            values, texts = batch.records.text.split(b"\n"), batch.records.keys
            keys = repeat(None, len(values)) if texts is None else map(str.encode, texts)
            reports = chain((batch.on_delivery,), repeat(None, last - 1), (batch.on_delivery,))
            # Arguments are passed by position, and without a callback: naming them would cost a quarter of the call.
            for value, key, report in zip(values, keys, reports, strict=False):
                produce(name, value, key, number, report, None, moment)
            return
        for index, record in enumerate(batch.records):
            more: dict[str, Any] = {}
            if record.owner is not None or record.directed_to is not None:
                more["headers"] = record_headers(record)
            if index in (0, last):
                more["on_delivery"] = batch.on_delivery
            produce(name, record.value, _key_bytes(record), number, timestamp=moment, **more)

    def _next_record_time_ms(self, partition: TopicPartition) -> int:
        """The time of the next records: now, or the time of the partition's latest record if that is later."""
        moment = max(self._latest_times.get(partition, 0), to_milliseconds(self._clock()))
        self._latest_times[partition] = moment
        return moment

    def _ensure_producer(self, name: str) -> Producer:
        if self._producer is None:
            # When this time ends, the library removes a record from its queue and does not send it later; only a
            # request in flight may still be executed.
            timeout = int(self._address.timeout_seconds * 1000)
            self._producer = new_producer(
                self._address,
                enable_idempotence=True,
                acks="all",
                compression_type="zstd",
                compression_level=ZSTD_LEVEL,
                linger_ms=timeout - 1,
                message_timeout_ms=timeout,
                request_timeout_ms=timeout - 1,
                message_max_bytes=MAX_BATCH_BYTES,
                batch_size=MAX_BATCH_BYTES,
                batch_num_messages=MAX_BATCH_RECORDS * 2,
                queue_buffering_max_messages=0,
                queue_buffering_max_kbytes=2 * MAX_WAITING_BYTES // 1024,
            )
            _request_producer_id_early(self._producer, name)
        return self._producer

    def _remove_completed_batches(self) -> None:
        fatal = is_lost = False
        for partition, batches in list(self._under_way.items()):
            is_lost = is_lost or any(batch.has_timed_out_in(self._producer) for batch in batches)
            incomplete = [batch for batch in batches if not batch.is_complete]
            fatal = fatal or any(batch.failure is not None and batch.failure.fatal() for batch in batches)
            if any(batch.failure is not None and batch.failure.code() in UNKNOWN_TOPIC_ERRORS for batch in batches):
                self._latest_times.pop(partition, None)
            if incomplete:
                self._under_way[partition] = incomplete
            else:
                del self._under_way[partition]
        if fatal and not self._under_way:
            # After a fatal error, a producer refuses everything; another producer replaces it.
            self._producer = None
        if is_lost and self._producer is not None:
            # After an outage of the servers, this producer may never find them again.
            self._replaced.append(self._producer)
            self._producer = None
        for producer in [each for each in self._replaced if not len(each)]:
            self._replaced.remove(producer)
            discard_client(producer)


def _request_producer_id_early(producer: Producer, name: str) -> None:
    """Make a new producer request the id with which it numbers records, before it gets any records.

    The library requests the id when an answer about topics arrives or, if no server is connected at that moment, half a
    second later. The library closes the connection of its first request for metadata, and perhaps that of the first
    look-up here; the second look-up finds a connection that stays. If no server answers, nothing waits for the id.
    """
    for _ in range(TOPIC_LOOKUPS_PER_PRODUCER):
        if not look_up_topic(producer, name):
            return


def _key_bytes(record: Record) -> bytes | None:
    return None if record.key is None else record.key.encode()


def _as_kafka_error(error: BaseException | None) -> KafkaError:
    if error is not None and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    timed_out = isinstance(error, TimeoutError)
    return KafkaError(KafkaError._TIMED_OUT if timed_out else KafkaError._FAIL)  # noqa: SLF001  # as above
