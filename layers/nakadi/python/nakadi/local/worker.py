"""A worker: `python -m nakadi.local.worker`, which the supervisor starts.

It serves the connections that the supervisor accepts and hands over, reads the data file itself, and sends events to
the supervisor to commit. A worker ends when the supervisor closes its end of the connection or dies.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from nakadi.app import logs
from nakadi.app.broker import open_broker, open_tracer_if_set
from nakadi.app.settings import Settings
from nakadi.app.shutdown import ShutdownDeadline, SignalHandler, exit_process, serve_until_signalled
from nakadi.common.caching import ChangeCounter
from nakadi.engines.sqlite.changes import ChangePipes
from nakadi.engines.sqlite.coordination import SqliteCoordination
from nakadi.engines.sqlite.file import BadDataFile, path_in_url
from nakadi.http.connection import Connection
from nakadi.http.memory import tune_allocator
from nakadi.http.server import NewConnection, new_event_loop, tune_interpreter
from nakadi.local.figures import WorkerMetricsLink
from nakadi.local.heartbeats import BEAT_INTERVAL_SECONDS
from nakadi.local.serving import make_server
from nakadi.model.outcomes import BadSetting, Unavailable

log = logging.getLogger(__name__)

# The time from the end of the supervisor's connection, or from a signal, to the end of this process. It is shorter than
# the supervisor's own, so that workers end first.
WORKER_EXIT_TIMEOUT_SECONDS = 8.0

WORKER_READY = b"r"
"""A worker sends this when it begins to serve."""

CONNECTION_TAKEN = b"t"
"""A worker sends this for each connection that it takes."""

CONNECTION_ENDED = b"-"
"""A worker sends this when a connection has ended."""

WORKER_LEAVING = b"e"
"""A worker sends this when it must get no more connections. The supervisor then closes its end."""

WORKER_BEAT = b"b"
"""A worker sends this regularly, which shows that its event loop runs."""

CONNECTION_FOLLOWS = b"+"
"""The supervisor sends this with a connection."""

CONNECTION_IN_USE_FOLLOWS = b"*"
"""The supervisor sends this with a connection that it has served until now."""

MAX_CONNECTIONS_AT_ONCE = 16


def add_logging_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="json: one object per line")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--access-log", action="store_true", help="log every request")


def logging_options(options: argparse.Namespace) -> Sequence[str]:
    """The logging options on the command line of a worker."""
    named = [f"--log-format={options.log_format}", f"--log-level={options.log_level}"]
    return [*named, *(["--access-log"] if options.access_log else [])]


class HandedOverConnections:
    """Connections that the supervisor accepts, and sends as descriptors through a socket."""

    def __init__(self, supervisor: socket.socket, stop: Callable[[], None]) -> None:
        self._supervisor = supervisor
        self._supervisor.setblocking(False)
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._new_protocol: NewConnection | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        self._unsent = b""

    def start_serving(self, new_protocol: NewConnection) -> None:
        self._new_protocol = new_protocol
        self._loop.add_reader(self._supervisor, self._receive_connections)
        self._send_to_supervisor(WORKER_READY)

    def report_connection_end(self) -> None:
        self._send_to_supervisor(CONNECTION_ENDED)

    def note_large_body(self, connection: Connection) -> None:
        """Do nothing: connections that were handed over stay in this process."""

    def announce_leaving(self) -> None:
        """Announce the end to the supervisor. The worker still serves connections that the supervisor hands over before
        it has received the announcement.
        """
        self._send_to_supervisor(WORKER_LEAVING)

    async def beat_regularly(self) -> None:
        """Show the supervisor that this event loop runs, until the task is cancelled."""
        while True:
            self._send_to_supervisor(WORKER_BEAT)
            await asyncio.sleep(BEAT_INTERVAL_SECONDS)

    def close(self) -> None:
        self._loop.remove_reader(self._supervisor)

    def _receive_connections(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._supervisor, MAX_CONNECTIONS_AT_ONCE, MAX_CONNECTIONS_AT_ONCE
            )
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("The connection to the supervisor is broken: %s", error)
            data, descriptors = b"", []
        if not data:
            # The supervisor has shut down its end, or has died. All connections that it had handed over were received
            # before this.
            self.close()
            self._stop()
        if descriptors:
            # This is sent before anything is read from the connections: from now on, they end with this process, and
            # are not handed to another one.
            self._send_to_supervisor(CONNECTION_TAKEN * len(descriptors))
        for kind, each in zip(data, descriptors, strict=False):
            # The task is kept until it is done, because the loop itself has only weak references to its tasks.
            beginning = self._loop.create_task(
                self._serve_connection(
                    socket.socket(fileno=each), was_taken_over=kind == ord(CONNECTION_IN_USE_FOLLOWS)
                )
            )
            self._beginning.add(beginning)
            beginning.add_done_callback(self._beginning.discard)

    async def _serve_connection(self, connection: socket.socket, *, was_taken_over: bool) -> None:
        assert self._new_protocol is not None
        new_protocol = partial(self._new_protocol, was_taken_over=was_taken_over)
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(new_protocol, connection)
        except OSError as error:
            log.warning("A connection ended as it was handed over: %s", error)
            connection.close()
            self.report_connection_end()

    def _send_to_supervisor(self, what: bytes) -> None:
        """Send these bytes to the supervisor, or keep them for later if it has not read for long: only the numbers
        matter, not the times.
        """
        self._unsent += what
        try:
            self._unsent = self._unsent[self._supervisor.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # the supervisor has died, which its reader notices


def main(arguments: Sequence[str] | None = None, *, signals: SignalHandler) -> int:
    parser = argparse.ArgumentParser(prog="python -m nakadi.local.worker")
    parser.add_argument("--number", type=int, required=True)
    for each in ("--connections", "--appends", "--figures", "--counter"):
        parser.add_argument(each, type=int, required=True, help="an inherited descriptor")
    parser.add_argument(
        "--changes", type=_parse_ints, required=True, help="the pipe to read from, and the pipes of other workers"
    )
    parser.add_argument("--bound", required=True, help="the address on which the supervisor accepts connections")
    parser.add_argument("--port", type=int, required=True, help="the port there")
    add_logging_options(parser)
    options = parser.parse_args(arguments)
    tune_allocator()
    logs.set_up_logging(json_lines=options.log_format == "json", level=options.log_level, access_log=options.access_log)
    try:
        _run_worker(options, signals)
    except (BadSetting, BadDataFile, Unavailable) as reason:
        print(f"A worker cannot start. {reason}", file=sys.stderr)
        return 1
    return 0


def _parse_ints(text: str) -> Sequence[int]:
    return [int(each) for each in text.split(",")]


def coordination_path(settings: Settings) -> Path:
    return path_in_url(settings.coordination or settings.registry)


class WorkerCoordination(SqliteCoordination):
    """Coordination that reports to the supervisor which leases this process takes, before it takes them."""

    def __init__(self, path: Path, pipes: ChangePipes, announce_lease: Callable[[str], None]) -> None:
        super().__init__(path, pipes)
        self._announce_lease = announce_lease
        self._announced_holders: set[str] = set()

    def renew_lease(self, holder: str, until: datetime) -> None:
        # The lease is reported before it is taken. If this process dies in between, the supervisor releases a lease
        # that nobody holds, which does no harm. Simultaneous threads may report the same lease twice, which the
        # supervisor counts once.
        if holder not in self._announced_holders:
            self._announced_holders.add(holder)
            self._announce_lease(holder)
        super().renew_lease(holder, until)


def _run_worker(options: argparse.Namespace, signals: SignalHandler) -> None:
    settings = Settings.from_env(os.environ)
    connections, appends, figures = (
        socket.socket(fileno=each) for each in (options.connections, options.appends, options.figures)
    )
    counter = ChangeCounter(options.counter, options.number)
    with (
        ShutdownDeadline(WORKER_EXIT_TIMEOUT_SECONDS) as grace,
        contextlib.closing(connections),
        contextlib.closing(appends),  # only a log in the data file uses this connection
        contextlib.closing(
            open_broker(settings, counter=counter, committer=appends, tracer=open_tracer_if_set(settings))
        ) as broker,
        contextlib.closing(WorkerMetricsLink(figures, broker.metrics, settings.max_metric_names)) as gathered,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        broker.read_metrics = gathered.read_merged_metrics
        pipes = ChangePipes(options.changes[0], options.changes[1:])
        broker.coordination = WorkerCoordination(coordination_path(settings), pipes, gathered.announce_lease)
        server = make_server(broker, settings, (options.bound, options.port))
        tune_interpreter()

        async def serve(signalled: asyncio.Event) -> None:
            stopping = asyncio.Event()

            def stop() -> None:
                grace.begin_countdown()
                stopping.set()

            handed_over = HandedOverConnections(connections, stop)

            async def leave() -> None:
                await signalled.wait()
                handed_over.announce_leaving()

            beside = asyncio.create_task(leave()), asyncio.create_task(handed_over.beat_regularly())
            try:
                await server.serve(handed_over, stopping)
            finally:
                for each in beside:
                    each.cancel()

        runner.run(serve_until_signalled(serve, signals, grace, lambda: None))


if __name__ == "__main__":
    handler = SignalHandler()
    handler.install()
    # A Ctrl-C in a terminal may reach every process, but the supervisor ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_process(main(signals=handler))
