"""Events that the broker itself publishes.

Its audit log and the changes of event types and subscriptions go the way of all events, into event types of the
broker's own, which are made when they are first needed. A failure to publish one is logged, and never fails the request
that it is about.

Figures (KPIs) say who published, streamed and asked for how much. No request waits for a figure: it is put into a
bounded memory, and a thread writes what has gathered, in batches; what finds no room or cannot be written is dropped
and counted. No figures are taken about the event types of figures, for then every reader of theirs would make more.
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

from nakadi.auth.administration import Features
from nakadi.common.metrics import Metrics
from nakadi.event_types.system_event_types import (
    ACCESS_LOG,
    BATCH_PUBLISHED,
    DATA_STREAMED,
    KPI_EVENT_TYPES,
    KPI_SCHEMAS,
    SystemEventTypes,
)
from nakadi.model.administration import Feature
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import Fault, Outcome
from nakadi.ports.clock import Clock
from nakadi.publishing.outcome import BatchOutcome, Verdict
from nakadi.publishing.publisher import Publisher

log = logging.getLogger(__name__)

BROKER = Subject(name="nakadi", trusted=True)


class SystemEvents(Struct, frozen=True, kw_only=True):
    own: SystemEventTypes
    publisher: Publisher
    clock: Clock

    def publish(self, name: str, event: Mapping[str, Any], flow_id: str) -> None:
        """Publish an event without metadata to one of the broker's own event types."""
        complete = {"metadata": _metadata(self.clock.now()), **event}
        try:
            self.own.ensure(name)
            outcome = self.publisher.publish(name, orjson.dumps([complete]), BROKER, flow_id)
        except (Outcome, Fault):
            log.warning("An event of the broker's own could not be published to %s", name, exc_info=True)
            return
        if outcome.verdict is not Verdict.STORED:
            log.warning("An event of the broker's own was not stored in %s: %s", name, outcome.items)


def hashing(salt: str) -> Callable[[str], str]:
    """Names of subjects as texts that say nothing to those who do not know the salt."""
    return lambda name: sha256((salt + name).encode()).hexdigest()


def _metadata(now: datetime) -> dict[str, str]:
    return {"eid": str(uuid4()), "occurred_at": now.isoformat()}


# Figures --------------------------------------------------------------------------------------------------------------


# What may wait: enough for a pause of the log at a high rate, and little beside what else a process holds.
MOST_WAITING = 10_000
MOST_WAITING_BYTES = 8_000_000

MOST_AT_ONCE = 100
COLLECT_SECONDS = 1.0

# How long what waits may grow old in a process that writes only when it is asked to.
OLDEST_SECONDS = 10.0
ASKED_SECONDS = 1.0
CLOSING_SECONDS = 5.0

# While a feature is off, so long nothing is taken, and the feature is not looked at either; a process that writes when
# it is asked to looks as rarely as it writes.
LOOK_AGAIN_SECONDS = 1.0

LONGEST_TEXT = 1_000
"""Characters. What clients choose, such as queries, is cut."""

Publish = Callable[[str, bytes], BatchOutcome]
Count = Callable[[str, int], None]
"""Told of figures that were `written` or `dropped`, and how many."""


class _Waiting(Struct, frozen=True):
    event_type: str
    text: bytes


class Figures:
    """`collect_seconds` is how long figures gather until they are written; None leaves it to those who ask for it, for
    the threads of a function stand still between two invocations."""

    def __init__(
        self,
        *,
        features: Features,
        publish: Publish,
        clock: Clock,
        hashed: Callable[[str], str],
        count: Count,
        collect_seconds: float | None = COLLECT_SECONDS,
    ) -> None:
        self._features = features
        self._publish = publish
        self._clock = clock
        self._hashed = lru_cache(maxsize=1024)(hashed)
        self._count = count
        self._collect_seconds = collect_seconds
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._oldest = 0.0
        self._dropped = 0
        # How often somebody asked for what waits to be written, and how many of these times it was.
        self._asked = 0
        self._answered = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        # Event type -> until when nothing of it is taken, since its feature was off.
        self._off: dict[str, float] = {}

    # What is told

    def batch_published(
        self, event_type: str, subject: Subject, flow_id: str, *, events: int, seconds: float, size: int
    ) -> None:
        """A batch was stored, all of it."""
        if event_type not in KPI_EVENT_TYPES and self._is_taken(BATCH_PUBLISHED):
            figure = {
                "event_type": event_type,
                **self._who(subject),
                "token_realm": subject.realm,
                "number_of_events": events,
                "ms_spent": round(seconds * 1000),
                "batch_size": size,
            }
            self._take(BATCH_PUBLISHED, figure, flow_id)

    def data_streamed(
        self, subscription: str | None, event_type: str, subject: Subject, flow_id: str, sent: Sent
    ) -> None:
        """A stream has sent so much of an event type since the last time that this was told."""
        if event_type not in KPI_EVENT_TYPES and self._is_taken(DATA_STREAMED):
            figure = {
                "api": "lola" if subscription is None else "hila",
                "subscription": subscription,
                "event_type": event_type,
                **self._who(subject),
                "token_realm": subject.realm,
                "number_of_events": sent.events,
                "bytes_streamed": sent.size,
                "batches_streamed": sent.batches,
            }
            self._take(DATA_STREAMED, figure, flow_id)

    def requested(self, figure: Mapping[str, Any], subject: Subject, flow_id: str) -> None:
        """A request was answered; `figure` has what is told of it beside who sent it."""
        if not self._is_taken(ACCESS_LOG):
            return
        cut = {name: value[:LONGEST_TEXT] if isinstance(value, str) else value for name, value in figure.items()}
        told = {**cut, **self._who(subject, nobody="-")}
        self._take(ACCESS_LOG, {name: told[name] for name in KPI_SCHEMAS[ACCESS_LOG].fields if name in told}, flow_id)

    def _who(self, subject: Subject, nobody: str | None = None) -> Mapping[str, str]:
        name = subject.name if nobody is None or not subject.trusted else nobody
        return {"app": name[:LONGEST_TEXT], "app_hashed": self._hashed(name)}

    # Waiting

    def _is_taken(self, event_type: str) -> bool:
        """Whether figures of this type are kept for now: not for a while after their feature was found to be off."""
        until = self._off.get(event_type)
        return until is None or until <= self._clock.monotonic()

    def _take(self, event_type: str, figure: Mapping[str, Any], flow_id: str) -> None:
        """Keep a figure until it is written. Never waits for anything but this lock, and never fails."""
        metadata = {"eid": str(uuid4()), "occurred_at": self._clock.now().isoformat(), "flow_id": flow_id}
        try:
            text = orjson.dumps({**figure, "metadata": metadata})
        except TypeError:
            return  # half of a surrogate pair in a header: a figure is not worth more
        with self._changed:
            if len(self._waiting) >= MOST_WAITING or self._waiting_bytes + len(text) > MOST_WAITING_BYTES:
                self._dropped += 1
                return
            if not self._waiting:
                self._oldest = self._clock.monotonic()
            self._waiting.append(_Waiting(event_type, text))
            self._waiting_bytes += len(text)
            if self._collect_seconds is not None and not self._closing:
                self._work_soon()

    def _work_soon(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="nakadi-figures", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def flush_if_due(self) -> None:
        """Have what waits written if it is much or old, and wait for that a moment."""
        with self._changed:
            age = self._clock.monotonic() - self._oldest
            due = len(self._waiting) >= MOST_AT_ONCE or age >= OLDEST_SECONDS
            if not self._waiting or not due or self._closing:
                return
            self._asked += 1
            mine = self._asked
            self._work_soon()
            self._changed.wait_for(lambda: self._answered >= mine, ASKED_SECONDS)

    def close(self) -> None:
        """Write what waits, unless it takes too long, and take nothing more."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(CLOSING_SECONDS)

    # Writing

    def _work(self) -> None:
        while True:
            with self._changed:
                self._wait_for_work()
                taken, self._waiting, self._waiting_bytes = self._waiting, [], 0
                dropped, self._dropped = self._dropped, 0
                asked, last = self._asked, self._closing
            if dropped:
                self._count("dropped", dropped)
                log.warning("%d figures were dropped, for they came faster than they could be written", dropped)
            self._write(taken)
            with self._changed:
                self._answered = asked
                self._changed.notify_all()
            if last:
                return

    def _wait_for_work(self) -> None:
        collects = self._collect_seconds is not None
        self._changed.wait_for(lambda: self._is_urgent() or (collects and bool(self._waiting)))
        self._changed.wait_for(lambda: self._is_urgent() or len(self._waiting) >= MOST_AT_ONCE, self._collect_seconds)

    def _is_urgent(self) -> bool:
        return self._closing or self._asked > self._answered

    def _write(self, taken: Sequence[_Waiting]) -> None:
        by_type: defaultdict[str, list[bytes]] = defaultdict(list)
        for each in taken:
            by_type[each.event_type].append(each.text)
        for event_type, texts in by_type.items():
            for start in range(0, len(texts), MOST_AT_ONCE):
                self._write_batch(event_type, texts[start : start + MOST_AT_ONCE])

    def _write_batch(self, event_type: str, texts: Sequence[bytes]) -> None:
        try:
            if not self._is_on(event_type):
                pause = LOOK_AGAIN_SECONDS if self._collect_seconds is not None else OLDEST_SECONDS
                self._off[event_type] = self._clock.monotonic() + pause
                return
            outcome = self._publish(event_type, b"[" + b",".join(texts) + b"]")
            if outcome.verdict is Verdict.STORED:
                self._count("written", len(texts))
                return
            why: object = outcome.items[:1]
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not end the thread
            why = error
        self._count("dropped", len(texts))
        log.warning("%d figures could not be written to %s: %s", len(texts), event_type, why)

    def _is_on(self, event_type: str) -> bool:
        features = self._features
        return features.is_on(Feature.KPI_COLLECTION) and (
            event_type != ACCESS_LOG or features.is_on(Feature.ACCESS_LOG_ENABLED)
        )


# Streams -------------------------------------------------------------------------------------------------------------

TELL_SECONDS = 30.0


class Sent(Struct):
    """What a stream has sent of an event type."""

    events: int = 0
    size: int = 0
    batches: int = 0


class StreamFigures:
    """What one stream sends, event type by event type: told every half a minute, and at its end; metrics at once."""

    def __init__(
        self,
        figures: Figures,
        clock: Clock,
        subject: Subject,
        flow_id: str,
        subscription: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._figures = figures
        self._metrics = metrics or Metrics()
        self._api = "low-level" if subscription is None else "subscription"
        self._clock = clock
        self._subject = subject
        self._flow_id = flow_id
        self._subscription = subscription
        self._sent: dict[str, Sent] = {}
        self._told = clock.monotonic()

    def batch(self, event_type: str, events: int, size: int, newest: datetime) -> None:
        """A batch is about to be sent; its newest event was stored at `newest`."""
        age = (self._clock.now() - newest).total_seconds()
        self._metrics.events_sent.add(events, self._api, event_type)
        self._metrics.sent_bytes.add(size, self._api)
        self._metrics.delivery_delay.observe(max(0.0, age), self._api)
        sent = self._sent.setdefault(event_type, Sent())
        sent.events += events
        sent.size += size
        sent.batches += 1
        self.tell_if_due()

    def tell_if_due(self) -> None:
        if self._clock.monotonic() - self._told >= TELL_SECONDS:
            self.tell()

    def tell(self) -> None:
        for event_type, sent in self._sent.items():
            self._figures.data_streamed(self._subscription, event_type, self._subject, self._flow_id, sent)
        self._sent = {}
        self._told = self._clock.monotonic()
