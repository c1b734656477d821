"""The dispatcher of a process: finds the sinks that this process delivers to, and keeps a courier for each.

Every process that serves streams has one. The processes need no leader: each knows which processes have a lease, and
assigns a sink to the process with the highest hash of the sink's and the process's names, so all processes agree. When
a process starts or ends, only its share of the sinks moves. While two processes see different leases, a sink may have
two couriers, or none, for a moment: its subscription shares the partitions among their streams, as among any streams.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import TypeVar
from uuid import uuid4

from msgspec import Struct

from nakadi.delivery.answers import Answer
from nakadi.delivery.courier import Courier, CourierParts, DeliveryTally, ReportDigest
from nakadi.delivery.senders import Attempt, Sender
from nakadi.delivery.sinks import SinkRepository
from nakadi.model.outcomes import TryLater
from nakadi.model.sink import DeliveryReport, Sink, SinkType
from nakadi.ports.registry import ChangeCounters

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_INTERVAL_SECONDS = 1.0
# Deliveries without failures are reported this often, unless writing costs money.
REPORT_INTERVAL_SECONDS = 5.0
MAX_REPORTS_PER_WRITE = 99

MAX_TRIAL_SECONDS = 10.0
# How long to wait for the event loop to return the answer to a trial.
TRIAL_MARGIN_SECONDS = 5.0

NOT_DELIVERING_MESSAGE = "This process does not deliver to sinks at the moment"


def delivering_process(subscription_id: str, processes: Collection[str]) -> str:
    """The one of these processes that delivers to the sink of this subscription."""
    return max(processes, key=lambda name: hashlib.sha256(f"{name}/{subscription_id}".encode()).digest())


class KnownSinks:
    """All sinks, which are read again only when something in the registry has changed."""

    def __init__(self, repository: SinkRepository) -> None:
        self._repository = repository
        self._read: tuple[ChangeCounters, Mapping[str, Sink]] | None = None

    def read(self) -> Mapping[str, Sink]:
        """The sinks by the ids of their subscriptions; if nothing has changed, the object of the previous call."""
        # The numbers of changes are read before the sinks: if a sink changes in between, the next look reads the sinks
        # again.
        changes = self._repository.registry.change_counters()
        if self._read is None or self._read[0] != changes:
            self._read = changes, {each.subscription_id: each for each in self._repository.all()}
        return self._read[1]


class _SinkAssignments(Struct, frozen=True):
    """The result of one look-up in the stores: the name of this process, the processes that deliver, all sinks, and the
    sinks of this process.
    """

    process_id: str
    processes: Collection[str]
    known: Mapping[str, Sink]
    sinks: Mapping[str, Sink]


class _ThreadsClosed(Exception):
    """The threads of this process take no more work, because it is ending."""


class Dispatcher:
    def __init__(
        self,
        repository: SinkRepository,
        parts: CourierParts,
        live_processes: Callable[[], Collection[str]],
        report_interval_seconds: float = REPORT_INTERVAL_SECONDS,
    ) -> None:
        self._repository = repository
        self._known = KnownSinks(repository)
        self._parts = parts
        self._live_processes = live_processes
        self._report_interval_seconds = report_interval_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._couriers: dict[str, tuple[Courier, asyncio.Task[None]]] = {}
        self._reported: dict[str, ReportDigest] = {}
        # By subscription and the sink's time of creation, so a sink that was removed and registered again begins at
        # zero.
        self._tallies: dict[tuple[str, datetime], DeliveryTally] = {}
        self._found = _SinkAssignments("", (), {}, {})
        self._senders: dict[SinkType, Sender] = {}

    async def run(self) -> None:
        """Deliver until the caller cancels this; then let attempts in progress finish.

        `run` also returns when a program ends without closing its broker: the interpreter shuts down every executor
        before it waits for the rest of the program, and each later look would fail.
        """
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                await self._look_up_sinks_and_log_failure()
                await asyncio.sleep(LOOK_INTERVAL_SECONDS)
        except _ThreadsClosed:
            log.debug("Looking for sinks ends with the process")
        finally:
            self._loop = None
            await self._stop_all()

    def count_sinks(self) -> int:
        return len(self._couriers)

    def failing_seconds(self) -> Mapping[str, float]:
        """The seconds since failing sinks last accepted anything, by subscription. Threads may call this while sinks
        are added and removed.
        """
        seconds = {name: courier.failing_seconds() for name, (courier, _) in self._couriers.copy().items()}
        return {name: found for name, found in seconds.items() if found}

    def try_sink(self, sink: Sink) -> Answer:
        """Send a delivery without events, and wait for its answer. Blocks, so call it in a thread."""
        loop = self._loop
        if loop is None:
            raise TryLater(NOT_DELIVERING_MESSAGE)
        self._senders[sink.type] = self._parts.get_sender(sink.type)
        trial: Future[Answer] = asyncio.run_coroutine_threadsafe(self._send_trial(sink), loop)
        seconds = min(float(sink.timeout_seconds), MAX_TRIAL_SECONDS)
        try:
            return trial.result(seconds + TRIAL_MARGIN_SECONDS)
        except TimeoutError as error:
            trial.cancel()
            raise TryLater(NOT_DELIVERING_MESSAGE) from error

    async def _send_trial(self, sink: Sink) -> Answer:
        parts = self._parts
        secrets = await asyncio.get_running_loop().run_in_executor(parts.threads, parts.open_secrets, sink)
        attempt = Attempt(
            sink=sink,
            secrets=secrets,
            message_id=f"msg_{uuid4().hex}",
            batch=None,
            now=parts.clock.now(),
            timeout_seconds=min(float(sink.timeout_seconds), MAX_TRIAL_SECONDS),
        )
        return await parts.get_sender(sink.type).deliver(attempt)

    # Looking

    async def _look_up_sinks_and_log_failure(self) -> None:
        try:
            found = self._found = await self._run_in_thread(self._look_up_sinks)
            for courier, _ in self._couriers.values():
                courier.check_up()
            # Reports are written before `_match_couriers` drops couriers that have ended, because these still have a
            # last report.
            await self._write_reports(found.known)
            self._match_couriers(found.sinks, found.known)
        except _ThreadsClosed:
            raise
        except Exception:  # the next look may succeed; the couriers go on meanwhile
            log.warning("Looking for sinks failed, trying again in %s s", LOOK_INTERVAL_SECONDS, exc_info=True)

    async def _run_in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._parts.threads, function, *arguments)
        except RuntimeError as error:
            # This error comes from the executor, which is shut down; an exception of the function would come from
            # `running`.
            raise _ThreadsClosed from error
        return await running

    def _look_up_sinks(self) -> _SinkAssignments:
        known, before = self._known.read(), self._found
        active = {name: each for name, each in known.items() if each.pause is None}
        if not active:
            return _SinkAssignments(before.process_id, (), known, {})
        for each in {sink.type for sink in active.values()}:
            self._senders[each] = self._parts.get_sender(each)
        # Take the lease before reading the leases, so that assignments include this process.
        name = self._parts.streams.ensure_process_lease()
        processes = {*self._live_processes(), name}
        if known is before.known and name == before.process_id and processes == before.processes:
            return before
        own = {each: sink for each, sink in active.items() if delivering_process(each, processes) == name}
        return _SinkAssignments(name, processes, known, own)

    def _match_couriers(self, sinks: Mapping[str, Sink], known: Mapping[str, Sink]) -> None:
        """Have a courier for each of these sinks in its present configuration, and for no other.

        A paused sink has no courier, but its tally stays, because this process may deliver to it again.
        """
        for name, (courier, task) in tuple(self._couriers.items()):
            wanted = sinks.get(name)
            if task.done():
                del self._couriers[name]
            elif wanted is None or wanted.configured_at != courier.sink.configured_at:
                # A successor begins only when the courier has ended, so two couriers of this process never share a
                # sink.
                courier.stop()
        for name, sink in sinks.items():
            if name not in self._couriers:
                tally = self._tallies.setdefault((name, sink.created_at), DeliveryTally())
                courier = Courier(sink, self._parts, tally)
                self._couriers[name] = (courier, asyncio.create_task(courier.run()))
        kept = {(name, each.created_at) for name, each in known.items() if name in sinks or each.pause is not None}
        for gone in self._tallies.keys() - kept:
            del self._tallies[gone]

    async def _stop_all(self) -> None:
        for courier, _ in self._couriers.values():
            courier.stop()
        tasks = [task for _, task in self._couriers.values()]
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            # After a second cancellation, there is no time to wait for answers, but the streams can still give up their
            # partitions.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # The senders may be closed: this process never delivers again.
            for sender in tuple(self._senders.values()):
                await sender.close()

    # Reporting

    async def _write_reports(self, known: Collection[str]) -> None:
        due: dict[str, DeliveryReport] = {}
        digests: dict[str, ReportDigest] = {}
        for name, (courier, task) in self._couriers.items():
            if name not in known:
                continue  # the sink was removed, and its report with it
            digest, before = courier.report_digest(), self._reported.get(name)
            if before is None or task.done() or self._is_worth_reporting(before, digest):
                due[name] = courier.report(self._found.process_id)
                digests[name] = digest
        names = list(due)
        for start in range(0, len(names), MAX_REPORTS_PER_WRITE):
            part = [(name, due[name]) for name in names[start : start + MAX_REPORTS_PER_WRITE]]
            await self._run_in_thread(self._repository.write_reports, part)
        self._reported = {name: each for name, each in {**self._reported, **digests}.items() if name in self._couriers}

    def _is_worth_reporting(self, before: ReportDigest, digest: ReportDigest) -> bool:
        """Whether to write the report now: a change between working and failing is written at once, any other change
        once the reporting interval has passed.
        """
        if before.condition != digest.condition:
            return True
        waited = (digest.at - before.at).total_seconds()
        return before.figures != digest.figures and waited >= self._report_interval_seconds
