"""The supervisor of a broker with several processes: accepts connections, answers requests, and commits for all.

Workers also answer requests. Each worker gets connections through a socket. The process with the fewest connections
gets the next one; the supervisor serves the first connection itself, and those that publish single events, because what
it answers passes through no second process (`placement`). Workers send their appends to the supervisor, where they
share commits. Tasks that run once per broker, such as archiving events and housekeeping, also run here.

A worker that dies, or that does not answer for long (`heartbeats`), is started again; meanwhile, connections wait or go
to others, including those that were handed to the worker and not taken yet. When the supervisor dies, so do its
workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import tempfile
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from operator import itemgetter

from nakadi.app.broker import BrokerServices, open_broker, open_tracer_if_set
from nakadi.app.settings import Settings
from nakadi.app.shutdown import ShutdownDeadline, SignalHandler, serve_until_signalled
from nakadi.common.caching import CHANGE_COUNT_FORMAT, ChangeCounter
from nakadi.common.counting import MetricRows
from nakadi.common.states import Transitions, following_state
from nakadi.engines.sqlite.changes import ChangePipes
from nakadi.engines.sqlite.coordination import SqliteCoordination
from nakadi.engines.sqlite.file import SCHEME
from nakadi.engines.sqlite.sharing import AppendService
from nakadi.http.connection import Connection
from nakadi.http.server import NewConnection, Server, new_event_loop, tune_interpreter
from nakadi.local.figures import SupervisorMetricsLinks
from nakadi.local.heartbeats import BEAT_INTERVAL_SECONDS, DEFAULT_SILENCE_LIMITS, Heartbeat, Pulse, SilenceLimits
from nakadi.local.placement import FIRST_BYTES, load_of_supervisor, publishes_few_events
from nakadi.local.serving import make_server, run_chores
from nakadi.local.worker import (
    CONNECTION_ENDED,
    CONNECTION_FOLLOWS,
    CONNECTION_IN_USE_FOLLOWS,
    CONNECTION_TAKEN,
    WORKER_LEAVING,
    WORKER_READY,
    coordination_path,
)
from nakadi.model.event_type import DEFAULT_STORAGE_ID
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.clock import SystemClock

log = logging.getLogger(__name__)

KAFKA_URL_PREFIX = "kafka:"
"""The beginning of URLs of logs to which each worker connects itself, so that no event passes through the
supervisor.
"""

MAX_WORKERS = 64
EXIT_CODE_WORKERS_FAILED = 1
"""The exit code when workers end again and again."""

MAX_ACCEPTS_AT_ONCE = 32
# How long accepting pauses after a failure, for example because the process has no more descriptors.
ACCEPT_PAUSE_SECONDS = 0.1


def check_workers(settings: Settings) -> None:
    """Raise `BadSetting` unless a broker with these settings can have several processes."""
    if not 1 <= settings.workers <= MAX_WORKERS:
        raise BadSetting(f"NAKADI_WORKERS is {settings.workers}, but must be from 1 to {MAX_WORKERS}.")
    stores = (settings.registry, settings.coordination or settings.registry)
    if not all(each.startswith(SCHEME) for each in stores) or not settings.event_log.startswith(
        (SCHEME, KAFKA_URL_PREFIX)
    ):
        raise BadSetting(
            f"{settings.workers} workers need the embedded engine: everything must be in a data file. "
            "Only events may be in Kafka."
        )
    if not hasattr(socket, "send_fds"):
        raise BadSetting("Several workers need a system on which sockets can be handed to other processes.")


def worker_command(settings: Settings, variables: Mapping[str, str], logging: Sequence[str]) -> WorkerCommand:
    return WorkerCommand(settings.workers - 1, variables, logging)


class SharedDescriptors:
    """The descriptors that all processes of a broker share: the memory with the numbers of changes, and a pipe for each
    process. The supervisor is number 0."""

    def __init__(self, processes: int) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._file.truncate(processes * CHANGE_COUNT_FORMAT.size)
        self._pipes = [ChangePipes.new_nonblocking_pipe() for _ in range(processes)]
        self.counter = ChangeCounter(self._file.fileno(), 0)
        own, *others = self._pipe_ends_of(0)
        self.pipes = ChangePipes(own, others)

    def descriptors_of(self, number: int) -> Mapping[str, Sequence[int]]:
        """The descriptors for a worker, by the names of its options."""
        return {"counter": [self._file.fileno()], "changes": self._pipe_ends_of(number)}

    def _pipe_ends_of(self, number: int) -> Sequence[int]:
        """The end from which a process reads, and the ends to which it writes."""
        own, _ = self._pipes[number]
        return [own, *(entrance for each, (_, entrance) in enumerate(self._pipes) if each != number)]

    def close(self) -> None:
        self._file.close()
        for each in chain.from_iterable(self._pipes):
            os.close(each)


class WorkerCommand:
    def __init__(self, workers: int, variables: Mapping[str, str], logging: Sequence[str]) -> None:
        self.workers = workers
        self._variables = variables
        self._logging = logging

    async def start(self, number: int, shared: SharedDescriptors, **sockets: socket.socket) -> Process:
        descriptors = {**shared.descriptors_of(number), **{name: [each.fileno()] for name, each in sockets.items()}}
        named = [f"--{name}={','.join(map(str, numbers))}" for name, numbers in descriptors.items()]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "nakadi.local.worker", f"--number={number}", *named, *self._logging),
            env=self._variables,
            pass_fds=tuple(chain.from_iterable(descriptors.values())),
            # In its own session, a worker gets no Ctrl-C: that goes to the supervisor, which lets its workers finish.
            start_new_session=True,
        )


class RestartLimit:
    """How often workers may die: `max_deaths` times in `seconds`."""

    def __init__(self, max_deaths: int = 10, seconds: float = 60.0) -> None:
        self._max_deaths = max_deaths
        self._seconds = seconds
        self._deaths: deque[float] = deque()

    def allows_restart(self, now: float) -> bool:
        """Whether to start a dead worker again."""
        self._deaths.append(now)
        while self._deaths[0] <= now - self._seconds:
            self._deaths.popleft()
        return len(self._deaths) <= self._max_deaths


class WorkerState(Enum):
    STARTING = "starting"
    """The worker has not served yet. If it ends in this state, it could not start."""
    SERVING = "serving"
    LEAVING = "leaving"
    """The worker answers its requests, and gets no more connections."""


class WorkerFact(Enum):
    READY = "ready"
    """The worker says that it serves."""
    LEFT_ALONE = "left alone"
    """The worker has announced its end, or has ended, so it gets no more connections."""


WORKER_TRANSITIONS: Transitions[WorkerState, WorkerFact] = {
    (WorkerState.STARTING, WorkerFact.READY): (WorkerState.SERVING,),
    (WorkerState.STARTING, WorkerFact.LEFT_ALONE): (WorkerState.STARTING,),
    (WorkerState.SERVING, WorkerFact.LEFT_ALONE): (WorkerState.LEAVING,),
    (WorkerState.LEAVING, WorkerFact.LEFT_ALONE): (WorkerState.LEAVING,),
}


class _Worker:
    def __init__(self, number: int, process: Process, connections: socket.socket, heartbeat: Heartbeat) -> None:
        self.number = number
        self.process = process
        self.connections = connections
        self.heartbeat = heartbeat
        self.state = WorkerState.STARTING
        self.open = 0
        self.not_taken_yet: deque[socket.socket] = deque()

    @property
    def is_serving(self) -> bool:
        return self.state is WorkerState.SERVING

    @property
    def takes_connections(self) -> bool:
        return self.is_serving and self.heartbeat.pulse is Pulse.ANSWERING

    @property
    def is_silent(self) -> bool:
        return self.heartbeat.pulse in (Pulse.SILENT, Pulse.ENDED)

    @property
    def could_start(self) -> bool:
        return self.state is not WorkerState.STARTING

    def __str__(self) -> str:
        return f"Worker {self.number} (pid {self.process.pid})"

    def enter_state_after(self, fact: WorkerFact) -> None:
        self.state = following_state(WORKER_TRANSITIONS, self.state, fact)

    def hand_over(self, connection: socket.socket, kind: bytes = CONNECTION_FOLLOWS) -> bool:
        """Hand a connection over, if the worker can take it. The descriptor here stays open until the worker confirms
        that it has taken the connection.
        """
        assert self.is_serving, self.state
        try:
            # The socket does not block: if a worker has not read for long, sending fails, and the loop does not wait.
            socket.send_fds(self.connections, [kind], [connection.fileno()])
        except OSError:
            return False
        self.not_taken_yet.append(connection)
        self.open += 1
        return True

    def close_taken(self, count: int) -> None:
        """Close the connections that the worker has taken. A worker takes connections in the order in which they were
        handed over.
        """
        for _ in range(count):
            self.not_taken_yet.popleft().close()

    def stop(self) -> None:
        """Let the worker answer its requests, and end. A worker that is still starting has nothing to answer, and a
        silent one would not end by itself.
        """
        with contextlib.suppress(OSError):
            self.connections.shutdown(socket.SHUT_WR)
        if self.is_silent:
            self.kill()
        if not self.could_start:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()

    def kill(self) -> None:
        """End the process without its help. A stopped process ends too."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class OwnConnections:
    """The connections that the supervisor serves itself, counted like a worker's."""

    def __init__(self, resume_accepting: Callable[[], None], hand_on: Callable[[Connection], None]) -> None:
        self.open = 0
        self._resume_accepting = resume_accepting
        self._hand_on = hand_on
        self._loop = asyncio.get_running_loop()
        self._new_protocol: NewConnection | None = None
        self._beginning: set[asyncio.Task[None]] = set()

    def start_serving(self, new_protocol: NewConnection) -> None:
        self._new_protocol = new_protocol
        self._resume_accepting()

    @property
    def is_serving(self) -> bool:
        return self._new_protocol is not None

    def hand_over(self, connection: socket.socket) -> bool:
        """Serve a connection."""
        assert self._new_protocol is not None
        self.open += 1
        # The task is kept until it is done, because the loop itself has only weak references to its tasks.
        beginning = self._loop.create_task(self._serve_connection(self._new_protocol, connection))
        self._beginning.add(beginning)
        beginning.add_done_callback(self._beginning.discard)
        return True

    def report_connection_end(self) -> None:
        self.open -= 1

    def note_large_body(self, connection: Connection) -> None:
        self._hand_on(connection)

    def close(self) -> None:
        self._new_protocol = None

    async def _serve_connection(self, new_protocol: NewConnection, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(new_protocol, connection)
        except OSError as error:
            log.warning("A connection ended as it was accepted: %s", error)
            connection.close()
            self.report_connection_end()


class Supervisor:
    """Runs workers until it is stopped, or gives up. A supervisor belongs to the event loop in which it is created.

    All methods but `_release_leases` run on that loop, where no other code runs between two awaits, so no lock is
    needed.
    """

    def __init__(
        self,
        command: WorkerCommand,
        listening: socket.socket,
        shared: SharedDescriptors,
        broker: BrokerServices,
        server: Server,
        figures: SupervisorMetricsLinks,
        restarts: RestartLimit,
        silence: SilenceLimits,
    ) -> None:
        self._command = command
        self._server = server
        self._own = OwnConnections(self._resume_accepting, self._hand_on)
        self._listening = listening
        self._shared = shared
        self._appends = AppendService(broker.logs.for_storage(DEFAULT_STORAGE_ID))
        self._figures = figures
        self._coordination = broker.coordination
        self._restarts = restarts
        self._silence = silence
        self._clock = broker.clock
        self._worker_restarts = broker.metrics.worker_restarts
        broker.metrics.processes_expected.set(command.workers + 1)
        broker.metrics.process_silent_seconds.add_source(self._read_silent_seconds)
        self._loop = asyncio.get_running_loop()
        self._workers: dict[int, _Worker] = {}
        self._is_accepting = False
        # Connections that no process could take, or that were handed to a worker that has died.
        self._waiting: deque[socket.socket] = deque()
        self._all_ready = asyncio.Event()
        self._over = asyncio.Event()
        self._code = 0

    async def run(self, stopping: asyncio.Event, greet: Callable[[], None], begin_end: Callable[[], None]) -> int:
        """Greet when all workers serve, and return the exit code when all have ended."""
        self._listening.setblocking(False)
        _defer_accepting(self._listening)
        stop = asyncio.create_task(self._stop_workers_when(stopping))
        greeting = asyncio.create_task(self._greet_when_ready(greet))
        watching = asyncio.create_task(self._watch_workers())
        own_stopping = asyncio.Event()
        serving = asyncio.create_task(self._server.serve(self._own, own_stopping))
        keeping = [
            asyncio.create_task(self._keep_worker_running(number)) for number in range(1, self._command.workers + 1)
        ]
        try:
            await self._over.wait()
            # The order is: first start the countdown, then accept no more connections, then let workers answer their
            # requests and end.
            begin_end()
            self._pause_accepting()
            self._listening.close()
            for worker in self._workers.values():
                worker.stop()
            own_stopping.set()
            await asyncio.gather(serving, *keeping)
        finally:
            for each in (stop, greeting, watching, serving, *keeping):
                each.cancel()
            self._appends.close()
            for connection in self._waiting:
                connection.close()
        return self._code

    async def _stop_workers_when(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._over.set()

    async def _greet_when_ready(self, greet: Callable[[], None]) -> None:
        await self._all_ready.wait()
        greet()

    # Workers

    async def _keep_worker_running(self, number: int) -> None:
        """Run a worker with this number, and restart it when it ends."""
        has_ever_served = False
        while not self._over.is_set():
            try:
                has_served, code = await self._run_worker_once(number)
            except Exception:  # otherwise this worker would be missing, and no log line would say so
                log.exception("Running worker %s failed", number)
                has_served, code = False, None
            has_ever_served = has_ever_served or has_served
            if self._over.is_set():
                return
            if not has_ever_served:
                log.error("Worker %s could not start, the broker exits", number)
                self._stop_as_failed()
            elif not self._restarts.allows_restart(self._clock.monotonic()):
                log.error(
                    "Worker %s ended with %s, and workers have ended too often: the broker exits. "
                    "Start it with --workers 1 until you know why",
                    number,
                    code,
                )
                self._stop_as_failed()
            else:
                log.warning("Worker %s ended with %s and is being restarted", number, code)
                self._worker_restarts.add()

    async def _watch_workers(self) -> None:
        while True:
            await asyncio.sleep(BEAT_INTERVAL_SECONDS)
            for worker in tuple(self._workers.values()):
                if worker.heartbeat.look(self._clock.monotonic()):
                    self._handle_silence(worker)

    def _handle_silence(self, worker: _Worker) -> None:
        seconds = worker.heartbeat.silent_seconds(self._clock.monotonic())
        if worker.heartbeat.pulse is Pulse.SILENT:
            log.warning("%s has not answered for %.0f s, and gets no new connections", worker, seconds)
        else:
            # `_keep_worker_running` starts another one, as after every end. Connections that the worker has not taken
            # go to other processes only then: if it went on, it would serve them too.
            failing = "has not answered for" if worker.could_start else "has not begun to serve within"
            log.error("%s %s %.0f s and is being killed", worker, failing, seconds)
            worker.kill()

    def _read_silent_seconds(self) -> MetricRows:
        now = self._clock.monotonic()
        silent = [each for each in tuple(self._workers.values()) if each.is_silent]
        return {(str(each.process.pid),): each.heartbeat.silent_seconds(now) for each in silent}

    def _stop_as_failed(self) -> None:
        self._code = EXIT_CODE_WORKERS_FAILED
        self._over.set()

    async def _run_worker_once(self, number: int) -> tuple[bool, int]:
        """Run a worker, and return whether it ever served, and its exit code."""
        ours, theirs = zip(*(socket.socketpair() for _ in range(3)), strict=True)
        connections, appends, figures = ours
        try:
            names = ("connections", "appends", "figures")
            sockets = dict(zip(names, theirs, strict=True))
            process = await self._command.start(number, self._shared, **sockets)
        except BaseException:
            for each in ours:
                each.close()
            raise
        finally:
            # The worker has inherited copies of these. If the ones here stayed open, the connections would not close
            # when the worker ends.
            for each in theirs:
                each.close()
        connections.setblocking(False)
        worker = self._workers[number] = _Worker(number, process, connections, self._new_heartbeat())
        self._loop.add_reader(connections, self._receive_messages, worker)
        # The worker started after the end had begun, and was not among the workers stopped then.
        if self._over.is_set():
            worker.stop()
        serving = asyncio.create_task(self._appends.serve(appends)), asyncio.create_task(self._figures.serve(figures))
        code = await process.wait()
        # From now on, no connection is handed over to the worker. A connection that the worker had taken is closed when
        # it ends, as with any server that ends.
        del self._workers[number]
        self._stop_handing_over_to(worker)
        self._loop.remove_reader(connections)
        self._take_back_connections(worker)
        connections.close()
        # Both tasks end because the worker's ends of the sockets were closed when it ended. Messages that it sent
        # before are still handled.
        _, leases = await asyncio.gather(*serving)
        # Leases are released only now, because the process has ended: if it still streamed, its partitions would be
        # read twice. This runs in a thread, because the data file may be busy, and the other workers must not wait.
        await self._loop.run_in_executor(None, self._release_leases, leases)
        return worker.could_start, code

    def _new_heartbeat(self) -> Heartbeat:
        return Heartbeat(self._silence, self._clock.monotonic())

    def _release_leases(self, leases: Collection[str]) -> None:
        """Release the leases of a worker that ended, so that its partitions do not wait until the leases expire."""
        for holder in leases:
            try:
                # The worker reports a lease before it takes the lease. Releasing a lease that was never taken changes
                # nothing.
                self._coordination.release_lease(holder)
            except Unavailable:
                log.warning("Releasing the lease of a worker that ended failed, it will expire", exc_info=True)

    def _receive_messages(self, worker: _Worker) -> None:
        try:
            said = worker.connections.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            # The worker is about to end, and `_run_worker_once` waits for that.
            self._loop.remove_reader(worker.connections)
            self._stop_handing_over_to(worker)
            return
        if worker.heartbeat.note_beat(self._clock.monotonic()):
            log.info("%s answers again", worker)
        # Many connections may have been taken or have ended since the last read; the worker sends one byte for each.
        worker.close_taken(said.count(CONNECTION_TAKEN))
        worker.open -= said.count(CONNECTION_ENDED)
        if WORKER_READY in said:
            worker.enter_state_after(WorkerFact.READY)
            worker.heartbeat.note_serving(self._clock.monotonic())
            if len(self._workers) == self._command.workers and all(each.is_serving for each in self._workers.values()):
                self._all_ready.set()
        if WORKER_LEAVING in said:
            # First stop handing over, then close this end: the worker still receives the connections that were handed
            # over before, and serves them.
            self._stop_handing_over_to(worker)
            worker.stop()

    def _take_back_connections(self, worker: _Worker) -> None:
        """Let other workers serve the connections that this worker was handed, but had not taken when it ended.

        A worker reports that it takes a connection before it reads from it, and its reports can still be read after its
        end. So no connection is served twice, and none that is still in the worker's socket is lost.
        """
        with contextlib.suppress(OSError):
            while said := worker.connections.recv(4096):
                worker.close_taken(said.count(CONNECTION_TAKEN))
        self._waiting += worker.not_taken_yet
        if self._waiting and self._is_accepting:
            self._accept_for_workers()

    def _stop_handing_over_to(self, worker: _Worker) -> None:
        """Hand no more connections to a worker."""
        worker.enter_state_after(WorkerFact.LEFT_ALONE)

    # Connections

    def _resume_accepting(self) -> None:
        if not self._is_accepting and not self._over.is_set() and self._own.is_serving:
            self._is_accepting = True
            self._loop.add_reader(self._listening, self._accept_for_workers)
            # Without new connections, no event causes this for those that wait.
            self._accept_for_workers()

    def _pause_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._listening)

    def _accept_for_workers(self) -> None:
        for _ in range(MAX_ACCEPTS_AT_ONCE):
            try:
                connection = self._waiting.popleft() if self._waiting else self._listening.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("Accepting connections failed, trying again in %s s: %s", ACCEPT_PAUSE_SECONDS, error)
                self._pause_accepting_for_a_moment()
                return
            if not self._hand_over_connection(connection):
                self._waiting.appendleft(connection)
                self._pause_accepting_for_a_moment()
                return

    def _pause_accepting_for_a_moment(self) -> None:
        self._pause_accepting()
        self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume_accepting)

    def _hand_over_connection(self, connection: socket.socket) -> bool:
        """Hand over a connection, and return whether a process has it now. A worker that seems ready may have died;
        then the next process is tried.
        """
        few_events = publishes_few_events(_peek(connection))
        return any(server.hand_over(connection) for _, server in self._servers_by_load(self._own.open, few_events))

    def _servers_by_load(self, own: int, few_events: bool) -> list[tuple[float, OwnConnections | _Worker]]:
        # A worker reports its number of connections itself, so the number may be slightly outdated, which affects only
        # the balance of load.
        workers = [each for each in self._workers.values() if each.takes_connections]
        servers: list[OwnConnections | _Worker] = [self._own, *workers]
        loads = [load_of_supervisor(own, len(servers), few_events=few_events), *(each.open for each in workers)]
        return sorted(zip(loads, servers, strict=True), key=itemgetter(0))

    def _hand_on(self, connection: Connection) -> None:
        """Let a worker continue a connection of the supervisor, if a new connection of this kind would now go to a
        worker.
        """
        if self._over.is_set():
            return
        _, server = self._servers_by_load(self._own.open - 1, few_events=False)[0]
        if isinstance(server, _Worker):
            connection.hand_over(partial(server.hand_over, kind=CONNECTION_IN_USE_FOLLOWS))


def _defer_accepting(listening: socket.socket) -> None:
    """Make the operating system report a new connection only when data has arrived on it, or after a second."""
    if hasattr(socket, "TCP_DEFER_ACCEPT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)


def _peek(connection: socket.socket) -> bytes:
    """The bytes that have arrived on a connection. They stay there for the process that serves it."""
    connection.setblocking(False)
    try:
        return connection.recv(FIRST_BYTES, socket.MSG_PEEK)
    except OSError:  # no data has arrived yet, or the client has left
        return b""


def supervise(
    settings: Settings,
    command: WorkerCommand,
    listening: socket.socket,
    signals: SignalHandler,
    grace: ShutdownDeadline,
    greet: Callable[[], None],
    silence: SilenceLimits = DEFAULT_SILENCE_LIMITS,
) -> int:
    """Run a broker with several processes, and return its exit code."""
    codes: list[int] = []
    with (
        contextlib.closing(SharedDescriptors(settings.workers)) as shared,
        contextlib.closing(
            open_broker(settings, SystemClock(), counter=shared.counter, tracer=open_tracer_if_set(settings))
        ) as broker,
        contextlib.ExitStack() as stack,
    ):
        broker.coordination = SqliteCoordination(coordination_path(settings), shared.pipes)
        stack.enter_context(run_chores(broker))
        runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
        figures = SupervisorMetricsLinks(broker.metrics, runner.get_loop(), settings.max_metric_names)
        broker.read_metrics = figures.read_merged_metrics
        broker.prepare_for_requests()
        server = make_server(broker, settings, listening.getsockname()[:2])
        tune_interpreter()

        async def serve(stopping: asyncio.Event) -> None:
            supervisor = Supervisor(command, listening, shared, broker, server, figures, RestartLimit(), silence)
            codes.append(await supervisor.run(stopping, greet, grace.begin_countdown))

        runner.run(serve_until_signalled(serve, signals, grace, lambda: None))
    return codes[0]
