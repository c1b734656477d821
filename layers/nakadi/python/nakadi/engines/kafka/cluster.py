"""Requests to a Kafka cluster other than writing and reading records: about its topics and their offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from nakadi.engines.kafka.client import (
    TRANSIENT_ERRORS,
    UNKNOWN_TOPIC_ERRORS,
    ClusterAddress,
    as_port_error,
    discard_client,
    kafka_error_code,
    new_admin_client,
    new_consumer,
    translate_errors,
)
from nakadi.engines.kafka.records import EPOCH, to_milliseconds
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import OffsetUnavailable, UnknownTopic

T = TypeVar("T")
NO_ANSWER_ERRORS = {
    KafkaError._TRANSPORT,  # noqa: SLF001  # the library's own names
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
}
MAX_BATCH_BYTES = 8 * 1024 * 1024
"""The largest batch of records that topics accept: the maximum of MSK Serverless."""

HOUR_MILLISECONDS = 3_600_000

LATEST_SEARCHED_TIME_MS = 1 << 42
"""The upper bound of a search for the time of a record: a moment in the year 2109, in milliseconds."""

SEALED_BATCH_BYTES = "1"
"""The `max.message.bytes` of a sealed topic. No record fits, so its leaders refuse every write."""

TOPIC_CONFIGURATION = {
    "cleanup.policy": "delete",
    # Kafka deletes nothing by age. Housekeeping deletes old events, because it knows the retention time of the event
    # type, which may change.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(MAX_BATCH_BYTES),
    "message.timestamp.type": "CreateTime",
}


def compaction_settings(age: timedelta, tombstones_age: timedelta) -> Mapping[str, str]:
    """Settings of a topic that Kafka compacts once events have this age. The age is rounded, so that the settings
    seldom change.
    """
    lag = _rounded_up_ms(age)
    return {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(lag),
        # Without this bound, Kafka would not touch the newest segment for a week.
        "max.compaction.lag.ms": str(lag + HOUR_MILLISECONDS),
        "delete.retention.ms": str(_rounded_up_ms(tombstones_age)),
    }


def _rounded_up_ms(time: timedelta) -> int:
    """The time, rounded up to whole minutes or, above an hour, to whole hours: an age that depends on waiting tables
    grows all the time.
    """
    hour = timedelta(hours=1)
    unit = timedelta(minutes=1) if time <= hour else hour
    return max(-(-time // unit), 0) * (unit // timedelta(milliseconds=1))


def is_refused_setting(error: Unavailable) -> bool:
    """Whether the error means that the cluster does not allow this setting. MSK Serverless has few settings, and some
    only for new topics.
    """
    return kafka_error_code(error) in {
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_REQUEST,
    }


class Cluster:
    """The topics of a cluster, by the names that the broker gives them. This class caches the number of partitions of
    each.
    """

    def __init__(self, address: ClusterAddress) -> None:
        self.address = address
        self._timeout = address.timeout_seconds
        self._admin = new_admin_client(address)
        self._offset_consumer = new_consumer(address)
        self._replacing = threading.Lock()
        self._partitions: dict[str, int] = {}
        self._sealed: set[str] = set()

    def kafka_name(self, topic: str) -> str:
        return self.address.prefix + topic

    def close(self) -> None:
        self._offset_consumer.close()

    # Topics

    def check_partitions(self, topic: str, partitions: Collection[int]) -> None:
        known = self._partitions.get(topic)
        highest, lowest = max(partitions, default=0), min(partitions, default=0)
        if known is None or highest >= known:
            known = self._count_partitions(topic)
            if known is None:
                raise UnknownTopic(topic)
            self._partitions[topic] = known
        if lowest < 0 or (partitions and highest >= known):
            raise UnknownTopic(f"{topic} has no partition {lowest if lowest < 0 else highest}")

    def is_known_writable(self, topic: str, partitions: Collection[int]) -> bool:
        """Whether it is known, without a request, that the topic has all of these partitions, and not known that it is
        sealed.
        """
        known = self._partitions.get(topic, 0)
        return all(0 <= number < known for number in partitions) and topic not in self._sealed

    def forget_topic(self, topic: str) -> None:
        self._partitions.pop(topic, None)
        self._sealed.discard(topic)

    def drop_cached_topic_if_deleted(self, topic: str) -> None:
        """Ask the cluster whether the topic still exists, and drop it from the cache if not."""
        if self._count_partitions(topic) is None:
            self.forget_topic(topic)

    def partition_count(self, topic: str) -> int:
        return self._partitions[topic]

    def remember_sealed(self, topic: str) -> None:
        self._sealed.add(topic)

    def is_known_to_be_sealed(self, topic: str) -> bool:
        return topic in self._sealed

    def is_sealed(self, topic: str) -> bool:
        """Whether the topic is sealed. If that is not known, the cluster is asked."""
        if (
            topic not in self._sealed
            and self.read_topic_configuration(topic).get("max.message.bytes") == SEALED_BATCH_BYTES
        ):
            self._sealed.add(topic)
        return topic in self._sealed

    def create_topic(self, topic: str, partitions: int) -> None:
        new = NewTopic(
            self.kafka_name(topic),
            num_partitions=partitions,
            replication_factor=self.address.replication_factor,
            config=TOPIC_CONFIGURATION,
        )
        self._await_answers(
            topic, self._admin.create_topics([new], request_timeout=self._timeout), KafkaError.TOPIC_ALREADY_EXISTS
        )
        self._wait_until_visible(topic, lambda: self._count_partitions(topic) is not None)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.forget_topic(topic)
        self.check_partitions(topic, [])
        if partitions <= self._partitions[topic]:
            return
        grown = NewPartitions(self.kafka_name(topic), partitions)
        # INVALID_PARTITIONS: another process has added the partitions meanwhile.
        self._await_answers(
            topic, self._admin.create_partitions([grown], request_timeout=self._timeout), KafkaError.INVALID_PARTITIONS
        )
        self._wait_until_visible(topic, lambda: (self._count_partitions(topic) or 0) >= partitions)
        self.forget_topic(topic)

    def allow_largest_batches(self, topic: str) -> None:
        if int(self.read_topic_configuration(topic)["max.message.bytes"]) < MAX_BATCH_BYTES:
            self.configure_topic(topic, {"max.message.bytes": str(MAX_BATCH_BYTES)})

    def seal_topic(self, topic: str) -> None:
        self.configure_topic(topic, {"max.message.bytes": SEALED_BATCH_BYTES})

    def delete_topic(self, topic: str) -> None:
        deleting = self._admin.delete_topics([self.kafka_name(topic)], request_timeout=self._timeout)
        with suppress(UnknownTopic):
            self._await_answers(topic, deleting)
        self._wait_until_visible(topic, lambda: self._count_partitions(topic) is None)
        self.forget_topic(topic)

    def read_topic_configuration(self, topic: str) -> Mapping[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, self.kafka_name(topic))
        with translate_errors(topic):
            found = self._admin.describe_configs([resource], request_timeout=self._timeout)[resource].result(
                2 * self._timeout
            )
        return {name: entry.value for name, entry in found.items()}

    def configure_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.kafka_name(topic), incremental_configs=entries)
        self._await_answers(topic, self._admin.incremental_alter_configs([resource], request_timeout=self._timeout))
        self._wait_until_visible(topic, lambda: settings.items() <= self.read_topic_configuration(topic).items())

    # Offsets

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        oldest = self._request_offsets(topic, partitions, OffsetSpec.earliest())
        following = self._request_offsets(topic, partitions, OffsetSpec.latest())
        return {number: (oldest[number][0], following[number][0]) for number in partitions}

    def read_partition_bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The bounds of one partition, with the fewest requests."""
        kafka_partition = KafkaPartition(self.kafka_name(topic), partition)

        def ask() -> tuple[int, int]:
            found: tuple[int, int] | None = self._offset_consumer.get_watermark_offsets(
                kafka_partition, timeout=self._timeout, cached=False
            )
            if found is None:
                raise TimeoutError
            return found

        return self._call_with_retries(topic, ask)

    def fetch_latest_record_time_ms(self, topic: str, partition: int) -> int:
        """The greatest time that any record of the partition has, in milliseconds; 0 if there is no record."""
        try:
            return max(self._request_offsets(topic, [partition], OffsetSpec.max_timestamp())[partition][1], 0)
        except Unavailable as error:
            if kafka_error_code(error) not in {KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE}:  # noqa: SLF001  # the library's own name
                raise
        return self._search_latest_record_time_ms(topic, partition)

    def _search_latest_record_time_ms(self, topic: str, partition: int) -> int:
        """The greatest time that any record has, for clusters older than Kafka 3.0, which cannot report it: a search
        finds the last moment at or after which there is a record.
        """
        beyond = self.read_partition_bounds(topic, partition)[1]
        lowest, highest = 0, LATEST_SEARCHED_TIME_MS
        while lowest < highest:
            middle = (lowest + highest + 1) // 2
            if self.first_offset_since(topic, partition, EPOCH + timedelta(milliseconds=middle)) < beyond:
                lowest = middle
            else:
                highest = middle - 1
        return lowest

    def first_offset_since(self, topic: str, partition: int, moment: datetime) -> int:
        wanted = KafkaPartition(self.kafka_name(topic), partition, max(to_milliseconds(moment), 0))

        def ask() -> int:
            found = self._offset_consumer.offsets_for_times([wanted], timeout=self._timeout)[0]
            if found.error is not None:
                raise KafkaException(found.error)
            return int(found.offset)

        if (offset := self._call_with_retries(topic, ask)) >= 0:
            return offset
        # No event is that late, so the result is the end of the partition. An event that arrives before the end is read
        # may be late enough, and would be trimmed with the earlier ones. So the end is read first, and then the search
        # is repeated.
        end = self.read_partition_bounds(topic, partition)[1]
        return found if (found := self._call_with_retries(topic, ask)) >= 0 else end

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        boundary = KafkaPartition(self.kafka_name(topic), partition, before_offset)
        deleting = self._admin.delete_records(
            [boundary], request_timeout=self._timeout, operation_timeout=self._timeout
        )
        # OFFSET_OUT_OF_RANGE: another process has deleted more records meanwhile.
        self._await_answers(topic, deleting, KafkaError.OFFSET_OUT_OF_RANGE)

    def _request_offsets(
        self, topic: str, partitions: Sequence[int], offset_spec: OffsetSpec
    ) -> Mapping[int, tuple[int, int]]:
        if not partitions:
            return {}
        wanted = {KafkaPartition(self.kafka_name(topic), number): offset_spec for number in partitions}

        def ask() -> Mapping[int, tuple[int, int]]:
            answers = self._admin.list_offsets(wanted, request_timeout=self._timeout)
            found = {each.partition: answer.result(2 * self._timeout) for each, answer in answers.items()}
            return {number: (each.offset, each.timestamp) for number, each in found.items()}

        return self._call_with_retries(topic, ask)

    # Requests

    def _call_with_retries(self, topic: str, call: Callable[[], T]) -> T:
        """The answer of the cluster to `call`, which is repeated because the library may first have to find the leader
        of a partition.
        """
        end = time.monotonic() + self._timeout
        while True:
            try:
                with self._translate_errors_and_replace_clients(topic):
                    return call()
            except UnknownTopic as error:
                failure = self.confirmed_unknown_topic_error(topic, error)
                if failure is error or time.monotonic() > end:
                    raise failure from error
            except Unavailable as error:
                cause = error.__cause__
                passing = isinstance(cause, KafkaException) and cause.args[0].code() in TRANSIENT_ERRORS
                if not passing or time.monotonic() > end:
                    raise
                # The error does not make the library look for another leader, but reading metadata does.
                with suppress(Unavailable):
                    self._count_partitions(topic)
            time.sleep(0.02)

    def confirmed_unknown_topic_error(self, topic: str, error: UnknownTopic) -> UnknownTopic | Unavailable:
        """The given error if there is no such topic; `Unavailable` if the topic exists after all.

        A server that has just started has no topics for a moment, and readers must not treat their topic as deleted
        then. The library's own answer comes from its latest metadata.
        """
        self.forget_topic(topic)
        if self._count_partitions(topic) is None:
            return error
        return Unavailable(f"Kafka: {topic}: a server does not know it yet")

    def _count_partitions(self, topic: str) -> int | None:
        name = self.kafka_name(topic)
        with self._translate_errors_and_replace_clients(topic):
            answer = self._admin.list_topics(name, timeout=self._timeout)
        found = answer.topics[name]
        if found.error is None:
            return len(found.partitions)
        if found.error.code() not in UNKNOWN_TOPIC_ERRORS:
            raise as_port_error(found.error, topic)
        if not answer.brokers:
            # The server lists no servers, not even itself: it has started, but has not read the cluster's state yet.
            raise Unavailable(f"Kafka: {topic}: the server that was asked is starting")
        return None

    @contextmanager
    def _translate_errors_and_replace_clients(self, topic: str) -> Iterator[None]:
        """Translate the errors of requests in the block. If there was no answer, use new clients from now on: after an
        outage of the servers, the library may never find them again.
        """
        used = self._admin, self._offset_consumer
        try:
            with translate_errors(topic):
                yield
        except Unavailable as error:
            if kafka_error_code(error) in NO_ANSWER_ERRORS or isinstance(error.__cause__, TimeoutError):
                self._replace_clients(used[0])
            raise
        finally:
            _flush_client_log_lines(used)

    def _replace_clients(self, used: AdminClient) -> None:
        with self._replacing:
            if self._admin is not used:
                return  # another thread was faster
            replaced = self._admin, self._offset_consumer
            self._admin, self._offset_consumer = new_admin_client(self.address), new_consumer(self.address)
        for client in replaced:
            discard_client(client)

    @contextmanager
    def _translate_errors_and_confirm(self, topic: str) -> Iterator[None]:
        try:
            with translate_errors(topic):
                yield
        except UnknownTopic as error:
            raise self.confirmed_unknown_topic_error(topic, error) from error

    def _await_answers(self, topic: str, answers: Mapping[Any, Future[Any]], already_done: int | None = None) -> None:
        """Wait for the answers of the cluster. An error with the code `already_done` means that nothing is left to
        do.
        """
        try:
            with self._translate_errors_and_confirm(topic):
                for answer in answers.values():
                    answer.result(2 * self._timeout)
        except (UnknownTopic, OffsetUnavailable, Unavailable) as error:
            cause = error.__cause__
            if not isinstance(cause, KafkaException) or already_done is None or cause.args[0].code() != already_done:
                raise

    def _wait_until_visible(self, topic: str, condition: Callable[[], bool]) -> None:
        """Wait until the servers show a change that the cluster has made, because each server applies it a moment
        later.
        """
        end = time.monotonic() + self._timeout
        while not condition():
            if time.monotonic() > end:
                raise Unavailable(f"Kafka: {topic}: a change was not seen in time")
            time.sleep(0.02)


def _flush_client_log_lines(clients: Iterable[AdminClient | Consumer]) -> None:
    """Poll clients, because the library passes on its log lines only when it is polled, while answers to requests need
    no poll. Only these lines say why a cluster refuses its clients.
    """
    for client in clients:
        # A consumer that was closed meanwhile has no more lines.
        with suppress(RuntimeError):
            client.poll(0)
