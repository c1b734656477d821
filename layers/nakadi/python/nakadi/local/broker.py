"""A whole broker inside another program, with faults on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.common.waiting import CallThreads, ThreadCall
from nakadi.delivery.answers import Answer
from nakadi.http.asgi import RequestLimits
from nakadi.http.console import with_console
from nakadi.local.serving import ServerThread, run_chores
from nakadi.model.events import AppendRefused, AppendResult, EventSlice, OffsetBounds, Record
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.deduplication import DeduplicatingLog, EventIds
from nakadi.ports.event_log import (
    AppendResultByPartition,
    EventLog,
    TopicAdoptingLog,
    UnknownTopic,
)

if TYPE_CHECKING:
    from nakadi.delivery.senders import Attempt, Sender

INTERNAL_ERROR_MESSAGE = "internal error"
TIMED_OUT_MESSAGE = "timed out"


class _FaultKind(Enum):
    REFUSE = auto()
    TIME_OUT = auto()
    DELAY = auto()
    THROTTLE = auto()
    THROTTLE_READS = auto()
    REPEAT = auto()
    FAIL_DELIVERY = auto()
    LOSE_ANSWER = auto()
    DELAY_DELIVERY = auto()


class _FaultOrder(Struct, eq=False):
    kind: _FaultKind
    event_type: str | None
    partition: str | None
    times_left: int
    reason: str = ""
    delay_seconds: float = 0.0
    repeated_events: int = 0
    status: int = 0


class Faults:
    """Faults that a test orders. `topics_of` returns the topics of an event type; by default, the name itself is the
    topic.

        faults = Faults()
        log = FaultyLog(log, faults)
        faults.refuse(partition="1", times=2)

    Each order names what it concerns (by default, every event type and every partition) and how many times it is
    carried out. Of several orders that concern a partition, the one that was given first is carried out first.
    """

    def __init__(self, topics_of: Callable[[str], Collection[str]] = lambda event_type: (event_type,)) -> None:
        self._topics_of = topics_of
        self._lock = threading.Lock()
        self._orders: list[_FaultOrder] = []
        self._stopped = False
        self._cleared = threading.Event()

    def refuse(
        self,
        *,
        event_type: str | None = None,
        partition: str | None = None,
        times: int = 1,
        reason: str = INTERNAL_ERROR_MESSAGE,
    ) -> None:
        """Let the next appends of this partition store nothing, and report that."""
        self._add_order(_FaultOrder(_FaultKind.REFUSE, event_type, partition, times, reason=reason))

    def time_out(self, *, event_type: str | None = None, partition: str | None = None, times: int = 1) -> None:
        """Store the events of the next appends, but report a timeout, so that a caller that retries stores them
        twice.
        """
        self._add_order(_FaultOrder(_FaultKind.TIME_OUT, event_type, partition, times, reason=TIMED_OUT_MESSAGE))

    def delay(
        self, seconds: float, *, event_type: str | None = None, partition: str | None = None, times: int = 1
    ) -> None:
        """Let the next appends wait this long before they begin."""
        self._add_order(_FaultOrder(_FaultKind.DELAY, event_type, partition, times, delay_seconds=seconds))

    def throttle(self, *, event_type: str | None = None, partition: str | None = None, times: int = 1) -> None:
        """Let the next appends fail as a whole, storing nothing."""
        self._add_order(_FaultOrder(_FaultKind.THROTTLE, event_type, partition, times))

    def throttle_reads(self, *, event_type: str | None = None, partition: str | None = None, times: int = 1) -> None:
        """Let the next reads fail."""
        self._add_order(_FaultOrder(_FaultKind.THROTTLE_READS, event_type, partition, times))

    def repeat(
        self, events: int = 1, *, event_type: str | None = None, partition: str | None = None, times: int = 1
    ) -> None:
        """Let the next reads that find events begin with this number of earlier, already delivered events."""
        self._add_order(_FaultOrder(_FaultKind.REPEAT, event_type, partition, times, repeated_events=events))

    def fail_deliveries(
        self, status: int = 500, *, event_type: str | None = None, partition: str | None = None, times: int = 1
    ) -> None:
        """Let the next deliveries to sinks be answered with this status; the sinks are not called."""
        self._add_order(_FaultOrder(_FaultKind.FAIL_DELIVERY, event_type, partition, times, status=status))

    def lose_answers(self, *, event_type: str | None = None, partition: str | None = None, times: int = 1) -> None:
        """Deliver the next batches to sinks, but drop the answers, so that the sinks get these events again."""
        self._add_order(_FaultOrder(_FaultKind.LOSE_ANSWER, event_type, partition, times))

    def delay_deliveries(
        self, seconds: float, *, event_type: str | None = None, partition: str | None = None, times: int = 1
    ) -> None:
        """Let the next deliveries to sinks wait this long before they begin."""
        self._add_order(_FaultOrder(_FaultKind.DELAY_DELIVERY, event_type, partition, times, delay_seconds=seconds))

    def stop(self) -> None:
        """Let every use of the event log fail until `resume`."""
        self._stopped = True

    def resume(self) -> None:
        self._stopped = False

    def clear(self) -> None:
        """Forget every order, and end delays in progress."""
        with self._lock:
            self._orders.clear()
            self._stopped = False
            self._cleared.set()
            self._cleared = threading.Event()

    @property
    def are_stopped(self) -> bool:
        return self._stopped

    def require_running(self) -> None:
        if self._stopped:
            raise Unavailable("The event log was stopped on purpose.")

    def make_delay(self, seconds: float) -> Callable[[], object]:
        """A function that waits this long when it is called, or until a later call of `clear`."""
        return partial(self._cleared.wait, seconds)

    def take_fault_for(self, topic: str, partition: int, *kinds: _FaultKind) -> _FaultOrder | None:
        """Take the first order of these kinds for this partition, and reduce its remaining count by one."""
        with self._lock:
            orders = [order for order in self._orders if order.kind in kinds]
        for order in orders:
            if self._applies_to(order, topic, partition) and self._use_once(order):
                return order
        return None

    def take_delivery_fault(self, event_type: str, partition: str) -> _FaultOrder | None:
        """Take the first order for deliveries of a partition, and reduce its remaining count by one."""
        kinds = (_FaultKind.FAIL_DELIVERY, _FaultKind.LOSE_ANSWER, _FaultKind.DELAY_DELIVERY)
        with self._lock:
            orders = [order for order in self._orders if order.kind in kinds]
        for order in orders:
            is_meant = order.event_type in (None, event_type) and order.partition in (None, partition)
            if is_meant and self._use_once(order):
                return order
        return None

    def _add_order(self, order: _FaultOrder) -> None:
        with self._lock:
            self._orders.append(order)

    def _applies_to(self, order: _FaultOrder, topic: str, partition: int) -> bool:
        if order.partition not in (None, str(partition)):
            return False
        return order.event_type is None or topic in self._topics_of(order.event_type)

    def _use_once(self, order: _FaultOrder) -> bool:
        with self._lock:
            if order not in self._orders:
                return False
            order.times_left -= 1
            if order.times_left <= 0:
                self._orders.remove(order)
            return True


class FaultyLog:
    """An event log that carries out the orders of `Faults`, and otherwise passes calls on."""

    def __init__(self, log: EventLog, faults: Faults) -> None:
        self._log = log
        self._faults = faults
        self._threads = CallThreads("nakadi-faulty-append")
        if isinstance(log, DeduplicatingLog):
            self.append_once = partial(self._append_once, log)

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        return await self._append(topic, batches, partial(self._log.append, topic))

    async def _append_once(
        self, log: DeduplicatingLog, topic: str, batches: Mapping[int, Sequence[Record]], ids: EventIds
    ) -> Mapping[int, AppendResult]:
        return await self._append(topic, batches, partial(log.append_once, topic, ids=ids))

    def _orders_for(self, topic: str, partitions: Collection[int]) -> Mapping[int, _FaultOrder]:
        if self._faults.are_stopped:
            return {}
        kinds = (_FaultKind.REFUSE, _FaultKind.TIME_OUT, _FaultKind.DELAY, _FaultKind.THROTTLE)
        found = {partition: self._faults.take_fault_for(topic, partition, *kinds) for partition in partitions}
        return {partition: order for partition, order in found.items() if order is not None}

    async def _append(
        self,
        topic: str,
        batches: Mapping[int, Sequence[Record]],
        append: Callable[[Mapping[int, Sequence[Record]]], Coroutine[Any, Any, AppendResultByPartition]],
    ) -> Mapping[int, AppendResult]:
        orders = self._orders_for(topic, batches)
        self._faults.require_running()
        if not orders:
            return await append(batches)
        if any(order.kind is _FaultKind.THROTTLE for order in orders.values()):
            raise Unavailable("The event log was throttled on purpose.")
        delay = self._faults.make_delay(sum(order.delay_seconds for order in orders.values()))
        await ThreadCall(self._threads, delay)
        refused = {partition for partition, order in orders.items() if order.kind is _FaultKind.REFUSE}
        fates = dict(await append({each: records for each, records in batches.items() if each not in refused}))
        failed = {partition: AppendRefused(order.reason) for partition, order in orders.items() if order.reason}
        return {partition: failed.get(partition) or fates[partition] for partition in batches}

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
        self._faults.require_running()
        if self._faults.take_fault_for(topic, partition, _FaultKind.THROTTLE_READS):
            raise Unavailable("The event log was throttled on purpose.")
        found = self._log.read(topic, partition, start, limit=limit, max_bytes=max_bytes, wait=wait)
        self._faults.require_running()
        if found.events and (order := self._faults.take_fault_for(topic, partition, _FaultKind.REPEAT)):
            return self._with_repeated_events(found, topic, partition, start - order.repeated_events)
        return found

    def create_topic(self, topic: str, partitions: int) -> None:
        self._log_unless_stopped().create_topic(topic, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._log_unless_stopped().add_partitions(topic, partitions)

    def seal_topic(self, topic: str) -> None:
        self._log_unless_stopped().seal_topic(topic)

    def adopt_topic(self, topic: str) -> int:
        log = self._log_unless_stopped()
        if not isinstance(log, TopicAdoptingLog):
            raise UnknownTopic(topic)  # no other program has topics in this log
        return log.adopt_topic(topic)

    def delete_topic(self, topic: str) -> None:
        self._log_unless_stopped().delete_topic(topic)

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
        return self._log_unless_stopped().bounds(topic, partitions)

    def first_offset_since(self, topic: str, partition: int, moment: datetime) -> int:
        return self._log_unless_stopped().first_offset_since(topic, partition, moment)

    def trim(self, topic: str, partition: int, stored_before: datetime) -> None:
        self._log_unless_stopped().trim(topic, partition, stored_before)

    def compact(self, topic: str, partition: int, *, stored_before: datetime, tombstones_before: datetime) -> None:
        self._log_unless_stopped().compact(
            topic, partition, stored_before=stored_before, tombstones_before=tombstones_before
        )

    def add_change_listener(self, on_change: Callable[[str, int], None]) -> Callable[[], None]:
        return self._log.add_change_listener(on_change)

    def close(self) -> None:
        self._log.close()

    def _log_unless_stopped(self) -> EventLog:
        self._faults.require_running()
        return self._log

    def _with_repeated_events(self, found: EventSlice, topic: str, partition: int, start: int) -> EventSlice:
        oldest = self._log.bounds(topic, [partition])[partition].oldest
        first = max(start, oldest)
        earlier = self._log.read(topic, partition, first, limit=found.events[0].offset - first or 1).events
        again = tuple(event for event in earlier if event.offset < found.events[0].offset)
        return EventSlice((*again, *found.events), found.next_offset)


class FaultInjectingSender:
    """Delivers to sinks, and carries out the orders of `Faults`."""

    def __init__(self, sender: Sender, faults: Faults) -> None:
        self._sender = sender
        self._faults = faults

    async def deliver(self, attempt: Attempt) -> Answer:
        order = None
        if attempt.batch is not None:
            partition = attempt.batch.partition
            order = self._faults.take_delivery_fault(partition.event_type, partition.partition)
        if order is None:
            return await self._sender.deliver(attempt)
        if order.kind is _FaultKind.FAIL_DELIVERY:
            return Answer(order.status, "It failed on purpose")
        await asyncio.sleep(order.delay_seconds)
        answer = await self._sender.deliver(attempt)
        return Answer(None, "Its answer was lost on purpose") if order.kind is _FaultKind.LOSE_ANSWER else answer

    async def close(self) -> None:
        await self._sender.close()


class Broker:
    """A broker on a free port of this machine, in memory, until the end of the `with` block.

    Keywords are fields of `nakadi.app.settings.Settings`: `Broker(default_partitions=4)`. With
    `registry="sqlite:///path"` and `event_log="sqlite:///path"`, its data is kept.

    `faults` makes things go wrong on purpose, so that a client's handling of them can be tested:
    `broker.faults.refuse(event_type="order.placed", partition="1", times=2)`. A receiver of deliveries is tested with
    `broker.faults.lose_answers()`.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
        self.faults = Faults(self._topics_of)
        self._inside = open_broker(
            Settings(**settings),
            wrap_log=lambda log: FaultyLog(log, self.faults),
            wrap_sender=lambda sender: FaultInjectingSender(sender, self.faults),
        )
        try:
            self._inside.prepare_for_requests()
            limits = RequestLimits(max_memory_bytes=self._inside.settings.max_request_memory_bytes)
            application = with_console(
                make_application(self._inside),
                self._inside.settings.console,
                dict(self._inside.settings.console_sign_in),
                queries=self._inside.settings.queries,
            )
            self._serving = ServerThread(
                application,
                host=host,
                port=port,
                limits=limits,
                metrics=self._inside.metrics,
                choose_hosts=self._inside.settings.served_hosts_at,
                side_tasks=self._inside.side_tasks,
            )
        except (OSError, BadSetting):
            self._inside.close()
            raise
        self._chores = ExitStack()
        self._chores.enter_context(run_chores(self._inside))
        self.url = self._inside.own_url = self._serving.url

    def close(self) -> None:
        """Let open streams finish, and release all resources. Further calls change nothing."""
        self._serving.close()
        self._chores.close()
        self._inside.close()

    def _topics_of(self, event_type: str) -> list[str]:
        found = self._inside.event_types.find(event_type)
        return [] if found is None else [timeline.topic for timeline in found.timelines]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
