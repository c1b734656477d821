"""Enhanced fan-out: Kinesis pushes the records of a shard to a registered consumer, which takes nothing from others.

Readers of a shard that ask share two megabytes and five reads a second. A process with a consumer of its own has two
megabytes a second of each shard for itself. It registers the consumer when it watches a stream for the first time, and
takes it away when it ends. A process that is killed cannot do that, and what it registered is paid for: so consumers
are replaced by new ones after some hours, and housekeeping removes those that are older than any live one can be.

Where nothing can be pushed, be it that the stream has all the consumers that it may have, the watcher goes on asking.
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

from nakadi.engines.kinesis.stream import (
    NoSuchShard,
    RecordPage,
    SequenceUnavailable,
    StreamCallFailed,
    arrived,
    as_trouble,
)
from nakadi.model.outcomes import Unavailable

log = logging.getLogger(__name__)

RENEWED_AFTER = 6 * 3600.0
"""Seconds that a consumer is used at most."""

ORPHANED_AFTER = RENEWED_AFTER + 3600.0
"""Seconds after which no live process can use a consumer any more: its successor takes a moment to become active."""

SUBSCRIBE_AGAIN_AFTER = 5.0
"""Seconds within which Kinesis refuses to subscribe the same consumer to the same shard again."""

REGISTER_AGAIN_AFTER = 60.0
LOOK_AGAIN_AFTER = 1.0
MOST_CONSUMERS = 20


class Consumer(NamedTuple):
    arn: str
    name: str
    active: bool
    created: datetime


class Consumers:
    """The calls to Kinesis that are about the consumers of one stream, through a client that tries nothing again."""

    def __init__(self, client: Any, stream: str) -> None:
        self._client = client
        self._stream = stream
        self._stream_arn: str | None = None

    def register(self, name: str) -> Consumer:
        with as_trouble():
            answer = self._client.register_stream_consumer(StreamARN=self._arn(), ConsumerName=name)
            return _consumer(answer["Consumer"])

    def look(self, arn: str) -> Consumer:
        with as_trouble():
            answer = self._client.describe_stream_consumer(ConsumerARN=arn)
            return _consumer(answer["ConsumerDescription"])

    def deregister(self, arn: str) -> None:
        with as_trouble():
            self._client.deregister_stream_consumer(ConsumerARN=arn)

    def all(self) -> list[Consumer]:
        found: list[Consumer] = []
        asked: dict[str, Any] = {"StreamARN": self._arn()}
        while True:
            with as_trouble():
                answer = self._client.list_stream_consumers(**asked)
            found += [_consumer(each) for each in answer["Consumers"]]
            if not answer.get("NextToken"):
                return found
            asked = {**asked, "NextToken": answer["NextToken"]}

    def pushed(self, arn: str, shard: str, sequence: int | None) -> Iterator[RecordPage]:
        """What comes behind a record of a shard, from the first record if none is given, for five minutes at most."""
        place = (
            {"Type": "TRIM_HORIZON"}
            if sequence is None
            else {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": str(sequence)}
        )
        with _translate_connection_errors(), as_trouble():
            answer = self._client.subscribe_to_shard(ConsumerARN=arn, ShardId=shard, StartingPosition=place)
            with closing(answer["EventStream"]) as events:
                for event in events:
                    if "SubscribeToShardEvent" in event:
                        yield _page(shard, event["SubscribeToShardEvent"])

    def close(self) -> None:
        self._client.close()

    def _arn(self) -> str:
        if self._stream_arn is None:
            with as_trouble():
                answer = self._client.describe_stream_summary(StreamName=self._stream)
            self._stream_arn = str(answer["StreamDescriptionSummary"]["StreamARN"])
        return self._stream_arn


class _Used(Struct, frozen=True):
    arn: str
    until: float


class FanOut:
    """The consumer of this process, and what is pushed to it."""

    def __init__(self, consumers: Consumers, prefix: str) -> None:
        self._consumers = consumers
        self._prefix = prefix
        # Held by the thread that looks after the consumer; others do not wait for it.
        self._lock = threading.Lock()
        self._used: _Used | None = None
        self._registered: str | None = None
        self._look_at = float("-inf")
        self._subscribe_at: dict[str, float] = {}
        self._closed = False

    def pages(self, shard: str, sequence: int | None) -> Generator[RecordPage]:
        """What is pushed of a shard from behind a record. Ends when the subscription does, or when there is none."""
        consumer = self._consumer()
        now = time.monotonic()
        if consumer is None or now < self._subscribe_at.get(shard, now):
            return
        self._subscribe_at[shard] = now + SUBSCRIBE_AGAIN_AFTER
        try:
            yield from self._consumers.pushed(consumer, shard, sequence)
        except NoSuchShard:
            # The consumer or the shard. A new consumer helps in the first case; in the second the watcher, who asks
            # now, finds out.
            log.info("Kinesis knows consumer %s or shard %s no more", consumer, shard)
            self._lost(consumer)
        except SequenceUnavailable:
            log.info("Shard %s cannot be pushed from record %s on", shard, sequence)
        except StreamCallFailed as trouble:
            log.info("Shard %s is not pushed at the moment, it is asked instead: %s", shard, trouble)

    def remove_orphans(self, now: datetime) -> None:
        """Take away what processes registered that were killed."""
        for each in self._consumers.all():
            if each.name.startswith(f"{self._prefix}-") and (now - each.created).total_seconds() > ORPHANED_AFTER:
                log.info("Removing consumer %s, which was registered at %s", each.name, each.created)
                self._deregister(each.arn)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            mine = {self._registered, self._used.arn if self._used else None} - {None}
            self._registered = self._used = None
        for arn in mine:
            self._deregister(str(arn))
        self._consumers.close()

    # The consumer of this process

    def _consumer(self) -> str | None:
        """The consumer that can be used. One thread at a time takes the next step towards it, and none waits."""
        if self._lock.acquire(blocking=False):
            try:
                self._register_or_use()
            finally:
                self._lock.release()
        used = self._used
        return used.arn if used else None

    def _register_or_use(self) -> None:
        now = time.monotonic()
        if self._closed or now < self._look_at or (self._used and now < self._used.until):
            return
        try:
            if self._registered is None:
                self._register(now)
            else:
                self._use_when_active(now)
        except Unavailable as trouble:
            # Limits are as likely as anything: twenty consumers for each stream, five registered in a second.
            log.warning("No consumer of its own for this process, shards are asked instead: %s", trouble)
            self._look_at = now + random.uniform(0.5, 1.5) * REGISTER_AGAIN_AFTER  # noqa: S311  # nothing to guess

    def _register(self, now: float) -> None:
        consumer = self._consumers.register(f"{self._prefix}-{uuid.uuid4().hex}")
        self._registered = consumer.arn
        self._look_at = now + LOOK_AGAIN_AFTER
        if consumer.active:
            self._use(consumer.arn, now)

    def _use_when_active(self, now: float) -> None:
        assert self._registered is not None
        try:
            active = self._consumers.look(self._registered).active
        except NoSuchShard:
            self._registered = None
            return
        self._look_at = now + LOOK_AGAIN_AFTER
        if active:
            self._use(self._registered, now)

    def _use(self, arn: str, now: float) -> None:
        before, self._registered = self._used, None
        # Not all processes at once: they were started together.
        life = random.uniform(0.75, 1.0) * RENEWED_AFTER  # noqa: S311  # nothing to guess
        self._used = _Used(arn, now + life)
        self._subscribe_at.clear()
        if before:
            # This ends its subscriptions, and the watchers subscribe to the new one.
            self._deregister(before.arn)

    def _lost(self, arn: str) -> None:
        with self._lock:
            if self._used and self._used.arn == arn:
                self._used = None

    def _deregister(self, arn: str) -> None:
        try:
            self._consumers.deregister(arn)
        except Unavailable as trouble:
            log.warning("Consumer %s was not removed, housekeeping will do it: %s", arn, trouble)


@contextmanager
def _translate_connection_errors() -> Iterator[None]:
    """Around a stream of events, whose reading raises what its connection raises: also for one that is silent."""
    try:
        yield
    except (HTTPError, OSError, ParserError) as error:
        raise StreamCallFailed(f"Kinesis: {error!r}", passing=True, undone=True) from error


def _consumer(described: dict[str, Any]) -> Consumer:
    return Consumer(
        described["ConsumerARN"],
        described["ConsumerName"],
        described["ConsumerStatus"] == "ACTIVE",
        described["ConsumerCreationTimestamp"],
    )


def _page(shard: str, event: dict[str, Any]) -> RecordPage:
    """The last event of a closed shard names its children, and no place to continue from."""
    ended = not event.get("ContinuationSequenceNumber")
    records = [arrived(shard, each) for each in event["Records"]]
    return RecordPage(records, None if ended else event["ContinuationSequenceNumber"], event["MillisBehindLatest"] == 0)
