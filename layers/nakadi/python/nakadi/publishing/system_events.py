"""Events that the broker itself publishes.

The audit log and the changes of event types and subscriptions are published like all events, into the broker's own
event types (`event_types/system_event_types.py`). If publishing such an event fails, that is logged, and the request
that the event reports does not fail.

KPI events say who published, streamed and requested how much. No request waits for a KPI event: it goes into a bounded
queue, which a thread writes in batches; events for which there is no room, or that cannot be written, are dropped and
counted. The event types of KPI events themselves cause no KPI events, because each of their readers would cause more.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any
from uuid import uuid4

import orjson
from msgspec import Struct

from nakadi.auth.features import Features
from nakadi.common.client_metrics import StreamKey
from nakadi.common.metrics import Metrics
from nakadi.event_types.system_event_type_definitions import (
    ACCESS_LOG,
    BATCH_PUBLISHED,
    DATA_STREAMED,
    KPI_DEFINITIONS,
    KPI_EVENT_TYPES,
)
from nakadi.event_types.system_event_types import SystemEventTypes
from nakadi.model.authorization import Feature, Subject
from nakadi.model.outcomes import Fault, Outcome
from nakadi.ports.clock import Clock
from nakadi.publishing.batch import BatchOutcome, BatchStatus
from nakadi.publishing.publisher import Publisher

log = logging.getLogger(__name__)

BROKER_SUBJECT = Subject(name="nakadi", trusted=True)


class SystemEventPublisher(Struct, frozen=True, kw_only=True):
    event_types: SystemEventTypes
    publisher: Publisher
    clock: Clock

    def publish(self, name: str, event: Mapping[str, Any], flow_id: str) -> None:
        """Publish an event without metadata to one of the broker's own event types."""
        complete = {"metadata": _new_metadata(self.clock.now()), **event}
        try:
            self.event_types.ensure_exists(name)
            outcome = self.publisher.publish(name, orjson.dumps([complete]), BROKER_SUBJECT, flow_id)
        except (Outcome, Fault):
            log.warning("Publishing a system event to %s failed", name, exc_info=True)
            return
        if outcome.status is not BatchStatus.STORED:
            log.warning("Publishing a system event to %s failed: %s", name, outcome.items)


def name_hasher(salt: str) -> Callable[[str], str]:
    """A function that hashes the names of subjects; without the salt, nobody can find a name from its hash."""
    return lambda name: sha256((salt + name).encode()).hexdigest()


def _new_metadata(now: datetime) -> dict[str, str]:
    return {"eid": str(uuid4()), "occurred_at": now.isoformat()}


# The capacity of the queue: enough for a pause of the log at a high rate, and small compared with the memory of a
# process.
MAX_QUEUED_EVENTS = 10_000
MAX_QUEUED_BYTES = 8_000_000

MAX_EVENTS_PER_BATCH = 100
KPI_WRITE_INTERVAL_SECONDS = 1.0

# The age of the oldest queued event at which `flush_if_due` writes the queue, in a process that writes only on request.
KPI_QUEUE_MAX_AGE_SECONDS = 10.0
KPI_FLUSH_TIMEOUT_SECONDS = 1.0
KPI_CLOSE_TIMEOUT_SECONDS = 5.0

# For how long after its feature was found off no event is queued, and the feature is not read again. A process that
# writes only on request reads the feature only when it writes.
FEATURE_RECHECK_INTERVAL_SECONDS = 1.0

MAX_KPI_TEXT_LENGTH = 1_000
"""The length, in characters, to which texts that clients choose, such as queries, are cut."""

PublishKpiBatch = Callable[[str, bytes], BatchOutcome]
CountKpiEvents = Callable[[str, int], None]
"""Called with `written` or `dropped`, and the number of these KPI events."""


class _QueuedKpiEvent(Struct, frozen=True):
    event_type: str
    text: bytes


class KpiCollector:
    """Queues KPI events, which a thread writes in batches.

    `write_interval_seconds` is how long events gather until they are written. With None, only `flush_if_due` writes
    them, because the threads of a function are suspended between two invocations.

    `_changed` guards the queue and the counters. Requests hold it only to append, never while anything is written.
    """

    event_types = KPI_EVENT_TYPES
    request_event_type = ACCESS_LOG

    def __init__(
        self,
        *,
        features: Features,
        publish: PublishKpiBatch,
        clock: Clock,
        hash_name: Callable[[str], str],
        count: CountKpiEvents,
        write_interval_seconds: float | None = KPI_WRITE_INTERVAL_SECONDS,
    ) -> None:
        self._features = features
        self._publish = publish
        self._clock = clock
        self._hash_name = lru_cache(maxsize=1024)(hash_name)
        self._count = count
        self._write_interval_seconds = write_interval_seconds
        self._changed = threading.Condition()
        self._queue: list[_QueuedKpiEvent] = []
        self._queue_bytes = 0
        self._oldest = 0.0
        self._dropped = 0
        # The number of requests to flush. A request is done when the thread has written everything that was queued
        # before it, so each has a number.
        self._flushes_requested = 0
        self._flushes_done = 0
        # Whether the writing thread must now check if a feature is on again.
        self._is_probing = False
        self._closing = False
        self._thread: threading.Thread | None = None
        # By event type, the time until which none of its events are queued, because its feature was off. Read without
        # the lock: a thread that sees an old time queues one event too many or too few.
        self._not_collecting_until: dict[str, float] = {}

    # Recording

    def is_collecting(self, event_type: str) -> bool:
        """Whether events of this type are queued now: not for a while after their feature was found to be off."""
        until = self._not_collecting_until.get(event_type)
        return until is None or until <= self._clock.monotonic()

    def record_batch(
        self, event_type: str, subject: Subject, flow_id: str, *, events: int, seconds: float, size: int
    ) -> None:
        if event_type not in KPI_EVENT_TYPES and self.is_collecting(BATCH_PUBLISHED):
            figure = {
                "event_type": event_type,
                **self._subject_fields(subject),
                "token_realm": subject.realm,
                "number_of_events": events,
                "ms_spent": round(seconds * 1000),
                "batch_size": size,
            }
            self._enqueue(BATCH_PUBLISHED, figure, flow_id)

    def record_sent_events(
        self, subscription: str | None, event_type: str, subject: Subject, flow_id: str, sent: SentEventTotals
    ) -> None:
        if event_type not in KPI_EVENT_TYPES and self.is_collecting(DATA_STREAMED):
            figure = {
                "api": "lola" if subscription is None else "hila",
                "subscription": subscription,
                "event_type": event_type,
                **self._subject_fields(subject),
                "token_realm": subject.realm,
                "number_of_events": sent.event_count,
                "bytes_streamed": sent.byte_count,
                "batches_streamed": sent.batch_count,
            }
            self._enqueue(DATA_STREAMED, figure, flow_id)

    def record_request(self, figure: Mapping[str, Any], subject: Subject, flow_id: str) -> None:
        if not self.is_collecting(ACCESS_LOG):
            return
        cut = {name: value[:MAX_KPI_TEXT_LENGTH] if isinstance(value, str) else value for name, value in figure.items()}
        fields = {**cut, **self._subject_fields(subject, without_name="-")}
        ordered = {name: fields[name] for name in KPI_DEFINITIONS[ACCESS_LOG].fields if name in fields}
        self._enqueue(ACCESS_LOG, ordered, flow_id)

    def _subject_fields(self, subject: Subject, without_name: str | None = None) -> Mapping[str, str]:
        name = subject.name if without_name is None or not subject.trusted else without_name
        return {"app": name[:MAX_KPI_TEXT_LENGTH], "app_hashed": self._hash_name(name)}

    # The queue

    def _enqueue(self, event_type: str, figure: Mapping[str, Any], flow_id: str) -> None:
        """Add an event to the queue. This never fails, and waits only for the lock."""
        metadata = {"eid": str(uuid4()), "occurred_at": self._clock.now().isoformat(), "flow_id": flow_id}
        try:
            text = orjson.dumps({**figure, "metadata": metadata})
        except TypeError:
            return  # a header has half of a surrogate pair, which cannot be stored
        with self._changed:
            if len(self._queue) >= MAX_QUEUED_EVENTS or self._queue_bytes + len(text) > MAX_QUEUED_BYTES:
                self._dropped += 1
                return
            if not self._queue:
                self._oldest = self._clock.monotonic()
            self._queue.append(_QueuedKpiEvent(event_type, text))
            self._queue_bytes += len(text)
            if self._write_interval_seconds is None or self._closing:
                return
            if event_type in self._not_collecting_until:
                # The feature was off. The writing thread checks it at once, and until then no other event is queued.
                self._not_collecting_until[event_type] = self._clock.monotonic() + FEATURE_RECHECK_INTERVAL_SECONDS
                self._is_probing = True
            # The writing thread is woken only for these: otherwise it waits for the first event, and then until a batch
            # is full or the interval has passed.
            if self._is_probing or len(self._queue) in (1, MAX_EVENTS_PER_BATCH):
                self._wake_writer()

    def _wake_writer(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_until_closed, name="nakadi-kpi-events", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def flush_if_due(self) -> None:
        """Let the thread write the queue if it is long or old, and wait a little for that."""
        with self._changed:
            age = self._clock.monotonic() - self._oldest
            due = len(self._queue) >= MAX_EVENTS_PER_BATCH or age >= KPI_QUEUE_MAX_AGE_SECONDS
            if not self._queue or not due or self._closing:
                return
            self._flushes_requested += 1
            number = self._flushes_requested
            self._wake_writer()
            self._changed.wait_for(lambda: self._flushes_done >= number, KPI_FLUSH_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Write queued events, unless that takes too long, and end the thread."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(KPI_CLOSE_TIMEOUT_SECONDS)

    # Writing

    def _write_until_closed(self) -> None:
        while True:
            with self._changed:
                self._wait_for_events()
                taken, self._queue, self._queue_bytes = self._queue, [], 0
                dropped, self._dropped = self._dropped, 0
                requested, last, self._is_probing = self._flushes_requested, self._closing, False
            if dropped:
                self._count("dropped", dropped)
                log.warning("Queueing KPI events failed: the queue is full, %d events were dropped", dropped)
            self._write_events(taken)
            with self._changed:
                self._flushes_done = requested
                self._changed.notify_all()
            if last:
                return

    def _wait_for_events(self) -> None:
        collects = self._write_interval_seconds is not None
        self._changed.wait_for(lambda: self._must_write_now() or (collects and bool(self._queue)))
        self._changed.wait_for(
            lambda: self._must_write_now() or len(self._queue) >= MAX_EVENTS_PER_BATCH, self._write_interval_seconds
        )

    def _must_write_now(self) -> bool:
        return self._closing or self._is_probing or self._flushes_requested > self._flushes_done

    def _write_events(self, taken: Sequence[_QueuedKpiEvent]) -> None:
        by_type: defaultdict[str, list[bytes]] = defaultdict(list)
        for each in taken:
            by_type[each.event_type].append(each.text)
        for event_type, texts in by_type.items():
            for start in range(0, len(texts), MAX_EVENTS_PER_BATCH):
                self._write_batch(event_type, texts[start : start + MAX_EVENTS_PER_BATCH])

    def _write_batch(self, event_type: str, texts: Sequence[bytes]) -> None:
        try:
            if not self._is_collection_on(event_type):
                pause = (
                    FEATURE_RECHECK_INTERVAL_SECONDS
                    if self._write_interval_seconds is not None
                    else KPI_QUEUE_MAX_AGE_SECONDS
                )
                self._not_collecting_until[event_type] = self._clock.monotonic() + pause
                return
            self._not_collecting_until.pop(event_type, None)
            outcome = self._publish(event_type, b"[" + b",".join(texts) + b"]")
            if outcome.status is BatchStatus.STORED:
                self._count("written", len(texts))
                return
            why: object = outcome.items[:1]
        except Exception as error:  # noqa: BLE001  # no error may end the thread
            why = error
        self._count("dropped", len(texts))
        log.warning("Writing %d KPI events to %s failed: %s", len(texts), event_type, why)

    def _is_collection_on(self, event_type: str) -> bool:
        features = self._features
        return features.is_on(Feature.KPI_COLLECTION) and (
            event_type != ACCESS_LOG or features.is_on(Feature.ACCESS_LOG_ENABLED)
        )


STREAM_KPI_REPORT_INTERVAL_SECONDS = 30.0


class SentEventTotals(Struct):
    event_count: int = 0
    byte_count: int = 0
    batch_count: int = 0


class StreamKpis:
    """Counts the events that one stream sends of each event type: in metrics at once, and in KPI events at each call of
    `report`.

    Call `report` at `next_report_at`, and when the stream has ended.
    """

    def __init__(
        self,
        collector: KpiCollector,
        clock: Clock,
        subject: Subject,
        flow_id: str,
        subscription: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._collector = collector
        self._metrics = metrics or Metrics()
        self._api = "low-level" if subscription is None else "subscription"
        self._clock = clock
        self._subject = subject
        self._flow_id = flow_id
        self._subscription = subscription
        self._subscription_key: StreamKey | None = ("hila", subject.name, subscription) if subscription else None
        self._sent: dict[str, SentEventTotals] = {}
        self.next_report_at = clock.monotonic() + STREAM_KPI_REPORT_INTERVAL_SECONDS

    def record_sent_batch(
        self,
        event_type: str,
        events: int,
        size: int,
        newest: datetime,
        runs: Sequence[object] = (),  # noqa: ARG002  # for those that look into events
    ) -> None:
        """Record that a batch is about to be sent; its newest event was stored at `newest`."""
        age = (self._clock.now() - newest).total_seconds()
        self._metrics.sent(self._api, event_type, events, size, max(0.0, age))
        key: StreamKey = self._subscription_key or ("lola", self._subject.name, event_type)
        self._metrics.clients.count_sent_bytes(key, size)
        sent = self._sent.setdefault(event_type, SentEventTotals())
        sent.event_count += events
        sent.byte_count += size
        sent.batch_count += 1

    def report(self) -> None:
        for event_type, sent in self._sent.items():
            self._collector.record_sent_events(self._subscription, event_type, self._subject, self._flow_id, sent)
        self._sent = {}
        self.next_report_at = self._clock.monotonic() + STREAM_KPI_REPORT_INTERVAL_SECONDS
