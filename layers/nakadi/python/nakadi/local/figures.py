"""Reports between workers and the supervisor: their counts, and their leases.

The process that receives a request for metrics answers for all. A worker asks the supervisor, which asks all workers
for their counts. The last known counts of a worker stay in the sums after its end, so that no counter goes back. The
supervisor releases the lease of a worker that has died, so that its partitions are free at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.client_metrics import RequestKey, StreamKey
from nakadi.common.counting import Distribution, Histogram, Labels, MetricRows
from nakadi.common.metrics import Metrics
from nakadi.engines.sqlite.sharing import BYTES_RECEIVED_AT_ONCE, encode_length_prefixed, take_whole_messages
from nakadi.model.outcomes import TryLater

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=tuple[str, ...])

# If a worker does not answer within this time, its last known counts are used.
WORKER_SNAPSHOT_TIMEOUT_SECONDS = 1.0
# The time for the supervisor, which waits for workers.
SUPERVISOR_ANSWER_TIMEOUT_SECONDS = 3.0
# The names may include many deleted event types, because only workers, which read the registry, omit these.
MAX_NAMES_OF_ENDED_PROCESSES = 2000


class DistributionSnapshot(Struct, frozen=True, array_like=True):
    bucket_counts: list[int]
    value_count: int
    sum_of_values: float
    recent_values: list[float]

    def distribution(self) -> Distribution:
        return Distribution(self.bucket_counts, self.value_count, self.sum_of_values, deque(self.recent_values))


class MetricsSnapshot(Struct, frozen=True, array_like=True):
    """The counts of a process, by the names of metrics. `process` is its number, or None if it has ended."""

    process: int | None
    started: float
    cpu_seconds: float
    counters: dict[str, list[tuple[Labels, float]]]
    gauges: dict[str, list[tuple[Labels, float]]]
    histograms: dict[str, list[tuple[Labels, DistributionSnapshot]]]
    client_requests: list[tuple[RequestKey, DistributionSnapshot]]
    client_sent_bytes: list[tuple[StreamKey, int]]


def take_snapshot(metrics: Metrics) -> MetricsSnapshot:
    numbers: dict[str, dict[str, list[tuple[Labels, float]]]] = {"counter": {}, "gauge": {}}
    histograms: dict[str, list[tuple[Labels, DistributionSnapshot]]] = {}
    for metric in metrics.all:
        name = metric.definition.name
        if isinstance(metric, Histogram):
            histograms[name] = _distribution_snapshots(metric.rows())
        else:
            numbers[metric.kind][name] = list(metric.rows().items())
    return MetricsSnapshot(
        process=os.getpid(),
        started=metrics.started,
        cpu_seconds=metrics.cpu_seconds(),
        counters=numbers["counter"],
        gauges=numbers["gauge"],
        histograms=histograms,
        client_requests=_distribution_snapshots(metrics.clients.requests()),
        client_sent_bytes=list(metrics.clients.sent_bytes().items()),
    )


def _distribution_snapshots(rows: Mapping[Key, Distribution]) -> list[tuple[Key, DistributionSnapshot]]:
    return [
        (key, DistributionSnapshot(row.bucket_counts, row.value_count, row.sum_of_values, list(row.recent_values)))
        for key, row in rows.items()
    ]


def totals_of_ended_processes(snapshots: Sequence[MetricsSnapshot], started: float) -> MetricsSnapshot:
    """The sums of processes that have ended: their counts and when something happened, without momentary values."""
    whole = take_snapshot(merged_metrics(snapshots, MAX_NAMES_OF_ENDED_PROCESSES))
    moments = {name: rows for name, rows in whole.gauges.items() if name.endswith("_timestamp_seconds")}
    return replace(whole, process=None, started=started, gauges=moments)


def merged_metrics(
    snapshots: Sequence[MetricsSnapshot],
    max_names: int = 200,
    find_deleted: Callable[[Collection[str]], Collection[str]] = lambda _: (),
) -> Metrics:
    """The sums of all processes, without the values of event types that `find_deleted` names."""
    deleted = find_deleted({name for each in snapshots for name in _event_type_names(each)})
    metrics = Metrics(min((each.started for each in snapshots), default=0.0), max_names)
    metrics.processes = [_make_process_reader(each.process) for each in snapshots if each.process is not None]
    metrics.cpu_seconds = partial(sum, [each.cpu_seconds for each in snapshots])
    for metric in metrics.all:
        name = metric.definition.name
        if isinstance(metric, Histogram):
            for each in snapshots:
                for labels, row in each.histograms.get(name, ()):
                    metric.row_for_update(labels).add_distribution(row.distribution())
        else:
            # The values of deleted event types are dropped before the sum, so that the other event types have room.
            rows = [_rows_of_metric(each, name) for each in snapshots]
            metric.replace_by_sum_of([_without_event_types(each, metric.definition.labels, deleted) for each in rows])
    for each in snapshots:
        requests = {key: row.distribution() for key, row in each.client_requests}
        metrics.clients.add(requests, dict(each.client_sent_bytes))
    return metrics


def _event_type_names(snapshot: MetricsSnapshot) -> Collection[str]:
    definitions = (metric.definition for metric in Metrics().all)
    places = {each.name: each.labels.index("event_type") for each in definitions if "event_type" in each.labels}
    return {
        labels[places[name]]
        for rows_by_name in (snapshot.counters, snapshot.gauges)
        for name, rows in rows_by_name.items()
        if name in places
        for labels, _ in rows
    }


def _without_event_types(rows: MetricRows, names: Labels, deleted: Collection[str]) -> MetricRows:
    if not deleted or "event_type" not in names:
        return rows
    place = names.index("event_type")
    return {labels: value for labels, value in rows.items() if labels[place] not in deleted}


def _make_process_reader(process: int) -> Callable[[], int]:
    return lambda: process


def _rows_of_metric(snapshot: MetricsSnapshot, name: str) -> MetricRows:
    return dict(snapshot.counters.get(name) or snapshot.gauges.get(name) or ())


class _SnapshotRequest(Struct, frozen=True, array_like=True, tag=1):
    """The supervisor's request for a worker's counts, and the worker's answer."""

    number: int
    snapshot: MetricsSnapshot | None = None


UNREQUESTED_SNAPSHOT_NUMBER = 0


class _AllSnapshots(Struct, frozen=True, array_like=True, tag=2):
    """A worker's request for the counts of all processes, and the supervisor's answer."""

    number: int
    snapshots: list[MetricsSnapshot] = []


class _LeaseAnnouncement(Struct, frozen=True, array_like=True, tag=3):
    """A worker takes a lease."""

    holder: str


_MESSAGE_DECODER = msgspec.msgpack.Decoder(_SnapshotRequest | _AllSnapshots | _LeaseAnnouncement)


class WorkerMetricsLink:
    """The side of a worker: a thread that answers the supervisor, and `read_merged_metrics`."""

    def __init__(self, connection: socket.socket, metrics: Metrics, max_names: int) -> None:
        self._connection = connection
        self._metrics = metrics
        self._max_names = max_names
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._latest: list[MetricsSnapshot] = []
        self._thread = threading.Thread(target=self._answer_supervisor, name="nakadi-figures", daemon=True)
        self._thread.start()

    def read_merged_metrics(self) -> Metrics:
        """The metrics of all processes. Raises `TryLater` if the supervisor does not answer."""
        with self._changed:
            self._asked += 1
            number = self._asked
        try:
            self._send(_AllSnapshots(number))
        except OSError as error:
            raise TryLater("The metrics of the other processes cannot be read") from error
        with self._changed:
            if not self._changed.wait_for(lambda: self._answered >= number, SUPERVISOR_ANSWER_TIMEOUT_SECONDS):
                raise TryLater("The metrics of the other processes cannot be read in time")
            latest = self._latest
        # The lock is not held, because this reads the registry.
        return merged_metrics(latest, self._max_names, self._metrics.find_deleted)

    def announce_lease(self, holder: str) -> None:
        """Report a lease to the supervisor. A failure is ignored: if the supervisor has died, this process will end
        too.
        """
        with contextlib.suppress(OSError):
            self._send(_LeaseAnnouncement(holder))

    def close(self) -> None:
        try:
            # Without this last report, the sums would lack the values that were counted after the previous one.
            self._send(_SnapshotRequest(UNREQUESTED_SNAPSHOT_NUMBER, take_snapshot(self._metrics)))
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("The connection to the supervisor was broken already")
        self._thread.join()
        self._connection.close()

    def _answer_supervisor(self) -> None:
        received = bytearray()
        try:
            while data := self._connection.recv(BYTES_RECEIVED_AT_ONCE):
                received += data
                for message in take_whole_messages(received):
                    self._handle_message(_MESSAGE_DECODER.decode(message))
        except OSError as error:
            log.warning("The connection to the supervisor is broken: %s", error)

    def _handle_message(self, message: _SnapshotRequest | _AllSnapshots | _LeaseAnnouncement) -> None:
        if isinstance(message, _SnapshotRequest):
            # This thread reads the counts, and may wait for the registry: the supervisor recognizes late answers.
            self._metrics.forget_deleted_event_types()
            self._send(_SnapshotRequest(message.number, take_snapshot(self._metrics)))
        elif isinstance(message, _AllSnapshots):
            with self._changed:
                self._answered, self._latest = message.number, message.snapshots
                self._changed.notify_all()

    def _send(self, message: Struct) -> None:
        # Only one thread sends at a time, because two would mix their messages.
        with self._sending:
            self._connection.sendall(encode_length_prefixed(message))


class SupervisorMetricsLinks:
    """The side of the supervisor, on its event loop."""

    def __init__(self, metrics: Metrics, loop: asyncio.AbstractEventLoop, max_names: int) -> None:
        self._metrics = metrics
        self._loop = loop
        self._max_names = max_names
        self._workers: list[_WorkerConnection] = []
        self._ended: MetricsSnapshot | None = None

    def read_merged_metrics(self) -> Metrics:
        """The metrics of all processes. Call it in a thread that answers a request."""
        self._metrics.forget_deleted_event_types()
        snapshots = asyncio.run_coroutine_threadsafe(self.snapshots_of_processes(), self._loop)
        return merged_metrics(snapshots.result(), self._max_names, self._metrics.find_deleted)

    async def serve(self, connection: socket.socket) -> Collection[str]:
        """Answer a worker, and include its counts, until it closes its end of the connection; then return the holders
        of its leases.
        """
        loop = asyncio.get_running_loop()
        worker = _WorkerConnection(self._send_all_snapshots)
        transport, _ = await loop.create_unix_connection(lambda: worker, sock=connection)
        self._workers.append(worker)
        await worker.gone.wait()
        # There is no `await` from here on, so a sum always includes this worker exactly once, either as a living
        # process or among those that have ended.
        transport.close()
        self._workers.remove(worker)
        kept = [each for each in (self._ended, worker.latest) if each is not None]
        if kept:
            self._ended = totals_of_ended_processes(kept, self._metrics.started)
        return worker.leases

    async def snapshots_of_processes(self) -> Sequence[MetricsSnapshot]:
        """The counts of each process. Takes at most one second, even if workers do not answer."""
        asked = [asyncio.ensure_future(each.request_snapshot()) for each in self._workers]
        if asked:
            _, late = await asyncio.wait(asked, timeout=WORKER_SNAPSHOT_TIMEOUT_SECONDS)
            for each in late:
                each.cancel()
        # `_ended` is read only now, because a worker that has ended during the wait is in it by now.
        own = take_snapshot(self._metrics)
        latest = [own, self._ended, *(each.latest for each in self._workers)]
        return [each for each in latest if each is not None]

    async def _send_all_snapshots(self, worker: _WorkerConnection, number: int) -> None:
        worker.send(_AllSnapshots(number, list(await self.snapshots_of_processes())))


class _WorkerConnection(asyncio.Protocol):
    """The supervisor's end of the connection to a worker."""

    def __init__(self, answer: Callable[[_WorkerConnection, int], Coroutine[None, None, None]]) -> None:
        self.gone = asyncio.Event()
        self.latest: MetricsSnapshot | None = None
        self.leases: set[str] = set()
        self._answer = answer
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def request_snapshot(self) -> None:
        """Ask the worker, and return when `latest` is its answer."""
        self._number += 1
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = answered
        self.send(_SnapshotRequest(self._number))
        await answered

    def send(self, message: Struct) -> None:
        if self._transport is not None:
            self._transport.write(encode_length_prefixed(message))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            log.debug("The connection for the metrics of a worker is broken: %s", exc)
        self._transport = None
        self.gone.set()
        for each in (*self._waiting.values(), *self._answering):
            each.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        for raw in take_whole_messages(self._received):
            message = _MESSAGE_DECODER.decode(raw)
            if isinstance(message, _AllSnapshots):
                answering = asyncio.ensure_future(self._answer(self, message.number))
                self._answering.add(answering)
                answering.add_done_callback(self._answering.discard)
                continue
            if isinstance(message, _LeaseAnnouncement):
                self.leases.add(message.holder)
                continue
            self.latest = message.snapshot
            waiting = self._waiting.pop(message.number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
