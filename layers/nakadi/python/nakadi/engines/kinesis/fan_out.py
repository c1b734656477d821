"""Enhanced fan-out: Kinesis pushes the records of a shard to a registered consumer, which has a throughput of its own.

Readers that poll a shard share two megabytes and five reads a second. A process with its own consumer gets two
megabytes a second from each shard. It registers the consumer when it first watches a stream, and removes it when it
ends. A killed process cannot remove its consumer, which costs money. So processes replace their consumers after some
hours, and housekeeping removes those that are older than any live consumer can be.

If nothing can be pushed, for example because the stream has its maximum of consumers, the watcher keeps polling.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from botocore.eventstream import ParserError
from msgspec import Struct
from urllib3.exceptions import HTTPError

from nakadi.engines.kinesis.failures import NoSuchShard, SequenceUnavailable, StreamCallFailed
from nakadi.engines.kinesis.stream import RecordPage, parse_record, translate_errors
from nakadi.model.outcomes import Unavailable

log = logging.getLogger(__name__)

CONSUMER_LIFETIME_SECONDS = 6 * 3600.0
"""The longest time that a process uses a consumer."""

ORPHAN_AGE_SECONDS = CONSUMER_LIFETIME_SECONDS + 3600.0
"""The age at which no live process uses a consumer any longer: the hour is longer than the next consumer takes to
become active.
"""

SUBSCRIPTION_RETRY_INTERVAL_SECONDS = 5.0
"""The time for which Kinesis refuses to subscribe the same consumer to the same shard again."""

REGISTRATION_RETRY_INTERVAL_SECONDS = 60.0
STATUS_CHECK_INTERVAL_SECONDS = 1.0
MAX_CONSUMERS = 20


class StreamConsumer(NamedTuple):
    arn: str
    name: str
    is_active: bool
    created_at: datetime


class StreamConsumerApi:
    """Calls to Kinesis about the consumers of one stream, through a client that does not retry."""

    def __init__(self, client: Any, stream: str) -> None:
        self._client = client
        self._stream = stream
        self._stream_arn: str | None = None

    def register(self, name: str) -> StreamConsumer:
        with translate_errors():
            answer = self._client.register_stream_consumer(StreamARN=self._read_stream_arn(), ConsumerName=name)
            return _parse_consumer(answer["Consumer"])

    def describe(self, arn: str) -> StreamConsumer:
        with translate_errors():
            answer = self._client.describe_stream_consumer(ConsumerARN=arn)
            return _parse_consumer(answer["ConsumerDescription"])

    def deregister(self, arn: str) -> None:
        with translate_errors():
            self._client.deregister_stream_consumer(ConsumerARN=arn)

    def list_all(self) -> list[StreamConsumer]:
        found: list[StreamConsumer] = []
        asked: dict[str, Any] = {"StreamARN": self._read_stream_arn()}
        while True:
            with translate_errors():
                answer = self._client.list_stream_consumers(**asked)
            found += [_parse_consumer(each) for each in answer["Consumers"]]
            if not answer.get("NextToken"):
                return found
            asked = {**asked, "NextToken": answer["NextToken"]}

    def subscribe(self, arn: str, shard: str, sequence: int | None) -> Iterator[RecordPage]:
        """Pages of the records after a given one, or from the first record on, for at most five minutes."""
        position = (
            {"Type": "TRIM_HORIZON"}
            if sequence is None
            else {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": str(sequence)}
        )
        with _translate_connection_errors(), translate_errors():
            answer = self._client.subscribe_to_shard(ConsumerARN=arn, ShardId=shard, StartingPosition=position)
            with closing(answer["EventStream"]) as events:
                for event in events:
                    if "SubscribeToShardEvent" in event:
                        yield _parse_page(shard, event["SubscribeToShardEvent"])

    def close_client(self) -> None:
        self._client.close()

    def _read_stream_arn(self) -> str:
        if self._stream_arn is None:
            with translate_errors():
                answer = self._client.describe_stream_summary(StreamName=self._stream)
            self._stream_arn = str(answer["StreamDescriptionSummary"]["StreamARN"])
        return self._stream_arn


class _ActiveConsumer(Struct, frozen=True):
    arn: str
    replace_at: float


class FanOut:
    """The consumer of this process, and the records that Kinesis pushes to it."""

    def __init__(self, consumer_api: StreamConsumerApi, prefix: str) -> None:
        self._consumer_api = consumer_api
        self._prefix = prefix
        # The thread that registers or replaces the consumer holds this lock; other threads do not wait for it.
        self._lock = threading.Lock()
        self._active: _ActiveConsumer | None = None
        self._registered: str | None = None
        self._next_step_at = float("-inf")
        self._next_subscription_at: dict[str, float] = {}
        self._closed = False

    def receive_pages(self, shard: str, sequence: int | None) -> Generator[RecordPage]:
        """The pages that Kinesis pushes after a record of a shard. Ends with the subscription, or at once if there is
        no active consumer.
        """
        consumer = self._active_consumer()
        now = time.monotonic()
        if consumer is None or now < self._next_subscription_at.get(shard, now):
            return
        self._next_subscription_at[shard] = now + SUBSCRIPTION_RETRY_INTERVAL_SECONDS
        try:
            yield from self._consumer_api.subscribe(consumer, shard, sequence)
        except NoSuchShard:
            # Either the consumer or the shard no longer exists. In the first case, a new consumer helps; in the second,
            # the watcher finds the cause, because it now polls.
            log.info("Kinesis no longer knows consumer %s or shard %s", consumer, shard)
            self._drop_consumer(consumer)
        except SequenceUnavailable:
            log.info("Shard %s cannot be pushed from record %s on", shard, sequence)
        except StreamCallFailed as trouble:
            log.info("Shard %s is not pushed at the moment, it is polled instead: %s", shard, trouble)

    def remove_orphaned_consumers(self, now: datetime) -> None:
        """Remove the consumers of killed processes."""
        for each in self._consumer_api.list_all():
            if (
                each.name.startswith(f"{self._prefix}-")
                and (now - each.created_at).total_seconds() > ORPHAN_AGE_SECONDS
            ):
                log.info("Removing consumer %s, which was registered at %s", each.name, each.created_at)
                self._deregister(each.arn)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            mine = {self._registered, self._active.arn if self._active else None} - {None}
            self._registered = self._active = None
        for arn in mine:
            self._deregister(str(arn))
        self._consumer_api.close_client()

    # The consumer of this process

    def _active_consumer(self) -> str | None:
        """The consumer if it is active; otherwise None. One thread at a time takes the next step towards an active
        consumer, and no thread waits for that.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._register_or_activate()
            finally:
                self._lock.release()
        active = self._active
        return active.arn if active else None

    def _register_or_activate(self) -> None:
        now = time.monotonic()
        if self._closed or now < self._next_step_at or (self._active and now < self._active.replace_at):
            return
        try:
            if self._registered is None:
                self._register(now)
            else:
                self._activate_if_ready(now)
        except Unavailable as trouble:
            # A limit is a likely cause: twenty consumers for each stream, five registrations per second.
            log.warning("This process has no consumer of its own and polls shards instead: %s", trouble)
            self._next_step_at = now + random.uniform(0.5, 1.5) * REGISTRATION_RETRY_INTERVAL_SECONDS  # noqa: S311  # nothing to guess

    def _register(self, now: float) -> None:
        consumer = self._consumer_api.register(f"{self._prefix}-{uuid.uuid4().hex}")
        self._registered = consumer.arn
        self._next_step_at = now + STATUS_CHECK_INTERVAL_SECONDS
        if consumer.is_active:
            self._activate(consumer.arn, now)

    def _activate_if_ready(self, now: float) -> None:
        assert self._registered is not None
        try:
            active = self._consumer_api.describe(self._registered).is_active
        except NoSuchShard:
            self._registered = None
            return
        self._next_step_at = now + STATUS_CHECK_INTERVAL_SECONDS
        if active:
            self._activate(self._registered, now)

    def _activate(self, arn: str, now: float) -> None:
        before, self._registered = self._active, None
        # Processes that were started together must not all replace their consumers at once.
        life = random.uniform(0.75, 1.0) * CONSUMER_LIFETIME_SECONDS  # noqa: S311  # nothing to guess
        self._active = _ActiveConsumer(arn, now + life)
        self._next_subscription_at.clear()
        if before:
            # This ends its subscriptions, and the watchers subscribe to the new one.
            self._deregister(before.arn)

    def _drop_consumer(self, arn: str) -> None:
        with self._lock:
            if self._active and self._active.arn == arn:
                self._active = None

    def _deregister(self, arn: str) -> None:
        try:
            self._consumer_api.deregister(arn)
        except Unavailable as trouble:
            log.warning("Consumer %s was not removed, housekeeping will do it: %s", arn, trouble)


@contextmanager
def _translate_connection_errors() -> Iterator[None]:
    """A context for reading a stream of events, which raises the errors of its connection, even if the connection falls
    silent.
    """
    try:
        yield
    except (HTTPError, OSError, ParserError) as error:
        raise StreamCallFailed(f"Kinesis: {error!r}", is_temporary=True, had_no_effect=True) from error


def _parse_consumer(described: dict[str, Any]) -> StreamConsumer:
    return StreamConsumer(
        described["ConsumerARN"],
        described["ConsumerName"],
        described["ConsumerStatus"] == "ACTIVE",
        described["ConsumerCreationTimestamp"],
    )


def _parse_page(shard: str, event: dict[str, Any]) -> RecordPage:
    """Parse a pushed event. The last event of a closed shard names its children, and no position to continue from."""
    ended = not event.get("ContinuationSequenceNumber")
    records = [parse_record(shard, each) for each in event["Records"]]
    return RecordPage(records, None if ended else event["ContinuationSequenceNumber"], event["MillisBehindLatest"] == 0)
