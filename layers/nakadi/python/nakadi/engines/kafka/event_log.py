"""The event log on Apache Kafka."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from confluent_kafka import KafkaError

from nakadi.common.waiting import Callback, CallThreads, ThreadCall
from nakadi.engines.common.callbacks import PartitionListeners
from nakadi.engines.kafka.client import UNKNOWN_TOPIC_ERRORS, ClusterAddress, RepeatedLineFilter, as_port_error
from nakadi.engines.kafka.cluster import Cluster, compaction_settings, is_refused_setting
from nakadi.engines.kafka.reading import CatchUpReader, TailReader
from nakadi.engines.kafka.records import SEAL_MARKER
from nakadi.engines.kafka.writing import RecordWriter, WriteOutcome
from nakadi.model.events import (
    AppendRefused,
    AppendResult,
    AppendStored,
    EventSlice,
    OffsetBounds,
    Record,
    TopicPartition,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import OffsetUnavailable, SealedTopic, UnknownTopic

TAIL_CATCH_UP_SECONDS = 0.3
"""How long a reader waits until the tail has an event that the cluster has. After that, the reader reads from the
cluster.
"""

REFUSAL_REASONS = {
    KafkaError._MSG_TIMED_OUT: "timed out",  # noqa: SLF001  # the library's own name
    KafkaError._TIMED_OUT_QUEUE: "timed out",  # noqa: SLF001  # as above
    KafkaError._TIMED_OUT: "timed out",  # noqa: SLF001  # as above
    KafkaError.REQUEST_TIMED_OUT: "timed out",
}

NOT_SENT_ERRORS = frozenset(
    {
        KafkaError._QUEUE_FULL,  # noqa: SLF001  # the library's own names
        KafkaError._DESTROY,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
    }
)
"""The errors of records that were not sent to any server."""

REFUSED_ERRORS = UNKNOWN_TOPIC_ERRORS | {
    KafkaError.MSG_SIZE_TOO_LARGE,  # also the answer of a sealed partition
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
"""The errors of records that the leader of the partition did not store. After all other errors, the leader may have
stored the records."""

_log = logging.getLogger(__name__)
_log.addFilter(RepeatedLineFilter())


MAX_KNOWN_TOPIC_SETTINGS = 10_000
"""How many topics' compaction settings are remembered."""


class KafkaLog:
    """The event log on a Kafka cluster.

    Kafka itself compacts a topic, some time after a call of `compact`. Appends of other processes are announced to
    listeners for partitions that this process has read to their end.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        address = ClusterAddress.parse(url)
        self._clock = clock
        self._cluster = Cluster(address)
        self._writer = RecordWriter(
            address, clock.now, self._cluster.kafka_name, self._cluster.fetch_latest_record_time_ms
        )
        self._announcements = PartitionListeners()
        self._append_threads = CallThreads("nakadi-append")
        self._tail = TailReader(address, self._announcements.announce_events)
        self._catch_up = CatchUpReader(address)
        self._compaction_settings: dict[str, Mapping[str, str]] = {}
        self._looking_for = set[str]()
        self._looking_lock = threading.Lock()
        self._closed = False

    # Topics

    def create_topic(self, topic: str, partitions: int) -> None:
        self._cluster_unless_closed().create_topic(topic, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._cluster_unless_closed().add_partitions(topic, partitions)

    def seal_topic(self, topic: str) -> None:
        """Make the leaders of all partitions refuse records, and check that they do.

        A server applies a new setting a moment after the cluster has accepted it, so test records, which readers skip,
        are written to each partition until its leader refuses one. After a refusal, the log also refuses every append
        that begins later.
        """
        cluster = self._cluster_unless_closed()
        cluster.check_partitions(topic, [])
        if cluster.is_known_to_be_sealed(topic):
            return
        cluster.seal_topic(topic)
        unsealed = list(range(cluster.partition_count(topic)))
        while unsealed:
            outcomes = self._writer.write(topic, {number: [SEAL_MARKER] for number in unsealed})
            for outcome in outcomes.values():
                if outcome is not None and outcome.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise as_port_error(outcome, topic)
            unsealed = [number for number, outcome in outcomes.items() if outcome is None]
        cluster.remember_sealed(topic)

    def adopt_topic(self, topic: str) -> int:
        """Set the topic's limit of batch sizes to that of topics that the broker creates. All other settings of the
        topic stay as its owner has set them.
        """
        cluster = self._cluster_unless_closed()
        cluster.forget_topic(topic)
        cluster.check_partitions(topic, [])
        if cluster.is_sealed(topic):
            raise SealedTopic(topic)
        cluster.allow_largest_batches(topic)
        return cluster.partition_count(topic)

    def delete_topic(self, topic: str) -> None:
        self._cluster_unless_closed().delete_topic(topic)
        self._tail.stop_following_topic(topic)
        self._catch_up.discard_reader_positions(topic)
        self._writer.forget_topic(topic)
        self._compaction_settings.pop(topic, None)

    # Events in

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        """Append records. A thread is needed only if the cluster must be asked something before or after the append."""
        if (
            self._closed
            or not self._cluster.is_known_writable(topic, batches)
            or not self._writer.can_write_without_asking(topic, batches)
        ):
            return await ThreadCall(self._append_threads, partial(self._ask_and_append, topic, batches))
        outcomes = await Callback(partial(self._writer.begin_write, topic, batches))
        if any(outcome is not None for outcome in outcomes.values()):
            return await ThreadCall(self._append_threads, partial(self._append_results, topic, batches, outcomes))
        return self._append_results(topic, batches, outcomes)

    def _ask_and_append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        cluster = self._cluster_unless_closed()
        try:
            cluster.check_partitions(topic, batches)
        except Unavailable as error:
            _log.warning("Append to the Kafka topic %s failed, nothing was sent: %s", topic, error)
            return dict.fromkeys(batches, AppendRefused("internal error"))
        if cluster.is_known_to_be_sealed(topic):
            raise SealedTopic(topic)
        return self._append_results(topic, batches, self._writer.write(topic, batches))

    def _append_results(
        self, topic: str, batches: Mapping[int, Sequence[Record]], outcomes: Mapping[int, WriteOutcome]
    ) -> Mapping[int, AppendResult]:
        failures = [outcome for outcome in outcomes.values() if outcome is not None]
        if failures:
            self._handle_failures(topic, failures, all_failed=len(failures) == len(batches))
        for number, records in batches.items():
            if records and outcomes[number] is None:
                self._announcements.announce_events(topic, number)
        return {number: _append_result(outcome) for number, outcome in outcomes.items()}

    def _handle_failures(self, topic: str, failures: Sequence[KafkaError], *, all_failed: bool) -> None:
        """Log the failures of an append. Raise `UnknownTopic` or `SealedTopic` if that explains why all partitions
        failed.
        """
        codes = {error.code() for error in failures}
        try:
            if codes & UNKNOWN_TOPIC_ERRORS:
                self._cluster.forget_topic(topic)
                if all_failed:
                    self._cluster.check_partitions(topic, [])
            if KafkaError.MSG_SIZE_TOO_LARGE in codes and self._cluster.is_sealed(topic) and all_failed:
                raise SealedTopic(topic)
        except Unavailable as error:
            _log.warning("Looking up the Kafka topic %s failed: %s", topic, error)
        if codes & {KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE}:  # noqa: SLF001  # the library's own names
            self._check_topic_in_background(topic)
        for effect, failure in {_effect(failure): failure for failure in failures}.items():
            _log.warning("Append to the Kafka topic %s failed, %s: %s", topic, effect, failure.str())

    def _check_topic_in_background(self, topic: str) -> None:
        """Check, while appends continue, whether the topic was deleted outside this process: if records time out first,
        a producer never notices that. While the cluster does not answer, there is only one such request for a topic,
        not one for each append.
        """
        with self._looking_lock:
            if topic in self._looking_for:
                return
            self._looking_for.add(topic)

        def finish_lookup(outcome: object) -> None:
            with self._looking_lock:
                self._looking_for.remove(topic)
            if isinstance(outcome, Exception):
                _log.warning("Looking up the Kafka topic %s failed: %s", topic, outcome)

        self._append_threads.call(partial(self._cluster.drop_cached_topic_if_deleted, topic), finish_lookup)

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
    ) -> EventSlice:
        cluster = self._cluster_unless_closed()
        cluster.check_partitions(topic, [partition])
        topic_partition = (topic, partition)
        try:
            return self._announcements.wait_for_events(
                topic, partition, lambda: self._read_once(topic_partition, start, limit, max_bytes), wait
            )
        except UnknownTopic as error:
            raise cluster.confirmed_unknown_topic_error(topic, error) from error

    def _read_once(self, topic_partition: TopicPartition, start: int, limit: int, max_bytes: int) -> EventSlice:
        found = self._tail.slice(topic_partition, start, limit, max_bytes)
        if found is not None and found.events:
            return found
        known_end = self._catch_up.known_end(topic_partition, start)
        if known_end is not None:
            return self._read_from_cluster(topic_partition, start, limit, max_bytes, known_end)
        # The tail may be a moment behind, but a read must return events that were stored before the read began, so the
        # end comes from the cluster.
        oldest, end = self._cluster_unless_closed().read_partition_bounds(*topic_partition)
        if not oldest <= start <= end:
            raise OffsetUnavailable(f"{start} is not between {oldest} and {end}")
        if start == end:
            self._tail.follow_partition(topic_partition, end)
            return EventSlice((), end)
        self._tail.wait_for_event(topic_partition, start, TAIL_CATCH_UP_SECONDS)
        found = self._tail.slice(topic_partition, start, limit, max_bytes)
        if found is not None and found.events:
            return found
        return self._read_from_cluster(topic_partition, start, limit, max_bytes, end)

    def _read_from_cluster(
        self, topic_partition: TopicPartition, start: int, limit: int, max_bytes: int, end: int
    ) -> EventSlice:
        try:
            return self._catch_up.read(topic_partition, start, limit, max_bytes, end)
        except OffsetUnavailable as error:
            # Events were removed after the cluster reported its offsets. If none were removed, the server's answer was
            # wrong.
            oldest, end = self._cluster_unless_closed().read_partition_bounds(*topic_partition)
            if oldest <= start <= end:
                raise Unavailable(f"Kafka: {topic_partition[0]}: a server does not find the offset {start}") from error
            raise

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
        cluster = self._cluster_unless_closed()
        cluster.check_partitions(topic, partitions)
        return {number: OffsetBounds(*found) for number, found in cluster.bounds(topic, partitions).items()}

    def first_offset_since(self, topic: str, partition: int, moment: datetime) -> int:
        cluster = self._cluster_unless_closed()
        cluster.check_partitions(topic, [partition])
        return cluster.first_offset_since(topic, partition, moment)

    def add_change_listener(self, on_change: Callable[[str, int], None]) -> Callable[[], None]:
        self._cluster_unless_closed()
        return self._announcements.add_change_listener(on_change)

    # Removing events

    def trim(self, topic: str, partition: int, stored_before: datetime) -> None:
        cluster = self._cluster_unless_closed()
        cluster.check_partitions(topic, [partition])
        oldest = cluster.first_offset_since(topic, partition, stored_before)
        if oldest > cluster.read_partition_bounds(topic, partition)[0]:
            cluster.delete_records(topic, partition, oldest)
            self._tail.drop_window_before((topic, partition), oldest)
            self._catch_up.discard_reader_positions(topic, partition)

    def compact(self, topic: str, partition: int, *, stored_before: datetime, tombstones_before: datetime) -> None:
        """Set up the topic so that Kafka compacts it, at a time of Kafka's choice, once events have reached this
        age.
        """
        cluster = self._cluster_unless_closed()
        cluster.check_partitions(topic, [partition])
        now = self._clock.now()
        wanted = compaction_settings(now - stored_before, now - tombstones_before)
        if self._compaction_settings.get(topic) == wanted:
            return
        found = cluster.read_topic_configuration(topic)
        if wanted.items() <= found.items() or self._oldest_events_have_keys(topic):
            if not wanted.items() <= found.items():
                self._configure_compaction(topic, wanted)
            if len(self._compaction_settings) >= MAX_KNOWN_TOPIC_SETTINGS:
                self._compaction_settings.clear()  # drops those of deleted topics; others are read again
            self._compaction_settings[topic] = wanted

    def _configure_compaction(self, topic: str, settings: Mapping[str, str]) -> None:
        try:
            self._cluster_unless_closed().configure_topic(topic, settings)
        except Unavailable as error:
            if not is_refused_setting(error):
                raise
            _log.warning("The Kafka cluster refuses to compact the topic %s: %s", topic, error)

    def _oldest_events_have_keys(self, topic: str) -> bool:
        """Whether the oldest events have keys. If an event type became compacted late, older events without a key come
        first. Kafka would remove these, so compaction does not begin before their retention time has passed."""
        bounds = self.bounds(topic, range(self._cluster.partition_count(topic)))
        oldest = {number: each.oldest for number, each in bounds.items() if each.oldest < each.next_offset}
        found = [event for number, start in oldest.items() for event in self.read(topic, number, start, limit=1).events]
        return all(event.record.key is not None for event in found)

    def close(self) -> None:
        self._closed = True
        self._announcements.wake_waiting_readers()
        self._writer.close()
        self._append_threads.close()
        self._tail.close()
        self._catch_up.close()

    def _cluster_unless_closed(self) -> Cluster:
        if self._closed:
            raise Unavailable("The event log is closed.")
        return self._cluster


def _append_result(outcome: WriteOutcome) -> AppendResult:
    return AppendStored() if outcome is None else AppendRefused(REFUSAL_REASONS.get(outcome.code(), "internal error"))


def _effect(failure: KafkaError) -> str:
    """What became of the records of a failed append, for the log: whether they may be stored."""
    if failure.code() in NOT_SENT_ERRORS:
        return "nothing was sent"
    return "the records were refused" if failure.code() in REFUSED_ERRORS else "outcome unknown"
