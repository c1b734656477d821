"""The event log on Apache Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from confluent_kafka import KafkaError

from nakadi.engines.common.listeners import AppendThreads, PartitionListeners, append_at_once
from nakadi.engines.kafka.client import UNKNOWN, Address, Place, fault_of
from nakadi.engines.kafka.cluster import Cluster, compaction_settings, is_refused_setting
from nakadi.engines.kafka.reading import CatchUp, Tail
from nakadi.engines.kafka.records import MARKER
from nakadi.engines.kafka.writing import Outcome, Writer
from nakadi.model.events import Bounds, Fate, Record, Refused, Slice, Stored
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import Appended, OffsetUnavailable, SealedTopic, UnknownTopic

SOON = 0.3
"""Seconds within which the tail shows what the cluster has. After that a reader looks for itself."""

REASONS = {
    KafkaError._MSG_TIMED_OUT: "timed out",  # noqa: SLF001  # the library's own name
    KafkaError._TIMED_OUT: "timed out",  # noqa: SLF001  # as above
    KafkaError.REQUEST_TIMED_OUT: "timed out",
}

_log = logging.getLogger(__name__)


class KafkaLog:
    """Compaction is Kafka's own, and happens some time after `compact` has asked for it.

    Appends of other processes are announced for partitions that this process has read to their end.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        address = Address.parse(url)
        self._clock = clock
        self._cluster = Cluster(address)
        self._writer = Writer(address, clock.now, self._cluster.name, self._cluster.latest_time)
        self._announcements = PartitionListeners()
        self._append_threads = AppendThreads(self.append)
        self._tail = Tail(address, self._announcements.announce)
        self._catch_up = CatchUp(address)
        self._compacting: dict[str, Mapping[str, str]] = {}
        self._closed = False

    # Topics

    def create_topic(self, topic: str, partitions: int) -> None:
        self._open_cluster().create(topic, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._open_cluster().add_partitions(topic, partitions)

    def seal_topic(self, topic: str) -> None:
        """Have the leaders of all partitions refuse records, and see that they do.

        A server learns of a new setting a moment after the cluster has it. Until a partition refuses it, a record is
        written there that readers step over. When it is refused, every append that begins later is refused as well.
        """
        cluster = self._open_cluster()
        cluster.check(topic, [])
        if cluster.is_known_to_be_sealed(topic):
            return
        cluster.seal(topic)
        still_open = list(range(cluster.partitions(topic)))
        while still_open:
            outcomes = self._writer.write(topic, {number: [MARKER] for number in still_open})
            for outcome in outcomes.values():
                if outcome is not None and outcome.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise fault_of(outcome, topic)
            still_open = [number for number, outcome in outcomes.items() if outcome is None]
        cluster.note_sealed(topic)

    def adopt_topic(self, topic: str) -> int:
        """Let the topic take batches as large as those of other topics. All else stays as its owner has set it."""
        cluster = self._open_cluster()
        cluster.forget(topic)
        cluster.check(topic, [])
        if cluster.is_sealed(topic):
            raise SealedTopic(topic)
        cluster.allow_largest_batches(topic)
        return cluster.partitions(topic)

    def delete_topic(self, topic: str) -> None:
        self._open_cluster().delete(topic)
        self._tail.forget(topic)
        self._catch_up.forget(topic)
        self._writer.forget(topic)
        self._compacting.pop(topic, None)

    # Events in

    def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, Fate]:
        cluster = self._open_cluster()
        cluster.check(topic, batches)
        if cluster.is_known_to_be_sealed(topic):
            raise SealedTopic(topic)
        return self._fates(topic, batches, self._writer.write(topic, batches))

    def append_soon(self, topic: str, batches: Mapping[int, Sequence[Record]], done: Appended) -> None:
        """Without a thread for it, unless the cluster has to be asked for something before or afterwards."""
        if not self._closed and self._cluster.takes(topic, batches) and self._writer.is_prepared(topic, batches):
            self._writer.write_soon(topic, batches, partial(self._finish, topic, batches, done))
        else:
            self._append_threads.append_soon(topic, batches, done)

    def _finish(
        self, topic: str, batches: Mapping[int, Sequence[Record]], done: Appended, outcomes: Mapping[int, Outcome]
    ) -> None:
        fates = partial(self._fates, topic, batches, outcomes)
        if all(outcome is None for outcome in outcomes.values()):
            append_at_once(fates, done)
        else:
            self._append_threads.call(fates, done)

    def _fates(
        self, topic: str, batches: Mapping[int, Sequence[Record]], outcomes: Mapping[int, Outcome]
    ) -> Mapping[int, Fate]:
        failures = [outcome for outcome in outcomes.values() if outcome is not None]
        if failures:
            self._explain(topic, failures, everything=len(failures) == len(batches))
        for number, records in batches.items():
            if records and outcomes[number] is None:
                self._announcements.announce(topic, number)
        return {number: _fate(outcome) for number, outcome in outcomes.items()}

    def _explain(self, topic: str, failures: Sequence[KafkaError], *, everything: bool) -> None:
        """Raise what says more than that each partition failed."""
        codes = {error.code() for error in failures}
        if codes & UNKNOWN:
            self._cluster.forget(topic)
            if everything:
                self._cluster.check(topic, [])
        if KafkaError.MSG_SIZE_TOO_LARGE in codes and self._cluster.is_sealed(topic) and everything:
            raise SealedTopic(topic)
        _log.warning("Append to the Kafka topic %s failed, outcome unknown: %s", topic, failures[0].str())

    # Events out

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
        cluster = self._open_cluster()
        cluster.check(topic, [partition])
        place = (topic, partition)
        try:
            return self._announcements.wait_for_events(
                topic, partition, lambda: self._read_once(place, start, limit, max_bytes), wait
            )
        except UnknownTopic as error:
            raise cluster.confirmed_unknown(topic, error) from error

    def _read_once(self, place: Place, start: int, limit: int, max_bytes: int) -> Slice:
        found = self._tail.slice(place, start, limit, max_bytes)
        if found is not None and found.events:
            return found
        known_end = self._catch_up.known_end(place, start)
        if known_end is not None:
            return self._read_from_cluster(place, start, limit, max_bytes, known_end)
        # The tail may be a moment behind. What was stored before this read began is seen here.
        oldest, end = self._open_cluster().bounds_of(*place)
        if not oldest <= start <= end:
            raise OffsetUnavailable(f"{start} is not between {oldest} and {end}")
        if start == end:
            self._tail.follow(place, end)
            return Slice((), end)
        self._tail.wait(place, start, SOON)
        found = self._tail.slice(place, start, limit, max_bytes)
        if found is not None and found.events:
            return found
        return self._read_from_cluster(place, start, limit, max_bytes, end)

    def _read_from_cluster(self, place: Place, start: int, limit: int, max_bytes: int, end: int) -> Slice:
        try:
            return self._catch_up.read(place, start, limit, max_bytes, end)
        except OffsetUnavailable as error:
            # Events were removed since the cluster was asked what it has. If none were, a server is mistaken.
            oldest, end = self._open_cluster().bounds_of(*place)
            if oldest <= start <= end:
                raise Unavailable(f"Kafka: {place[0]}: a server does not find the offset {start}") from error
            raise

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, Bounds]:
        cluster = self._open_cluster()
        cluster.check(topic, partitions)
        return {number: Bounds(*found) for number, found in cluster.bounds(topic, partitions).items()}

    def offset_at(self, topic: str, partition: int, moment: datetime) -> int:
        cluster = self._open_cluster()
        cluster.check(topic, [partition])
        return cluster.offset_at(topic, partition, moment)

    def watch(self, changed: Callable[[str, int], None]) -> Callable[[], None]:
        self._open_cluster()
        return self._announcements.watch(changed)

    # Cleaning

    def trim(self, topic: str, partition: int, before: datetime) -> None:
        cluster = self._open_cluster()
        cluster.check(topic, [partition])
        oldest = cluster.offset_at(topic, partition, before)
        if oldest > cluster.bounds_of(topic, partition)[0]:
            cluster.delete_records(topic, partition, oldest)
            self._tail.forget_before((topic, partition), oldest)
            self._catch_up.forget(topic, partition)

    def compact(self, topic: str, partition: int, *, upto: datetime, tombstones_before: datetime) -> None:
        """Have Kafka compact the topic. It does so in its own time, after events have the age that is asked for."""
        cluster = self._open_cluster()
        cluster.check(topic, [partition])
        now = self._clock.now()
        wanted = compaction_settings(now - upto, now - tombstones_before)
        if self._compacting.get(topic) == wanted:
            return
        found = cluster.topic_configuration(topic)
        if wanted.items() <= found.items() or self._have_keys(topic):
            if not wanted.items() <= found.items():
                self._ask_for_compaction(topic, wanted)
            self._compacting[topic] = wanted

    def _ask_for_compaction(self, topic: str, wanted: Mapping[str, str]) -> None:
        try:
            self._open_cluster().configure(topic, wanted)
        except Unavailable as error:
            if not is_refused_setting(error):
                raise
            _log.warning("The Kafka cluster does not let the topic %s be compacted: %s", topic, error)

    def _have_keys(self, topic: str) -> bool:
        """Whether the oldest events have keys. Where compaction began late, there are older events without a key in
        front; Kafka would remove them, so it does not begin before their retention has."""
        bounds = self.bounds(topic, range(self._cluster.partitions(topic)))
        oldest = {number: each.oldest for number, each in bounds.items() if each.oldest < each.next}
        found = [event for number, start in oldest.items() for event in self.read(topic, number, start, limit=1).events]
        return all(event.record.key is not None for event in found)

    def close(self) -> None:
        self._closed = True
        self._announcements.wake_all()
        self._writer.close()
        self._append_threads.close()
        self._tail.close()
        self._catch_up.close()

    def _open_cluster(self) -> Cluster:
        if self._closed:
            raise Unavailable("The event log is closed.")
        return self._cluster


def _fate(outcome: Outcome) -> Fate:
    return Stored() if outcome is None else Refused(REASONS.get(outcome.code(), "internal error"))
