"""The threads that serve a broker in this process: one runs the server, and one does the chores."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from nakadi.app.broker import BrokerServices
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.app.shutdown import describe_busy_threads
from nakadi.common.metrics import Metrics
from nakadi.http.asgi import RequestLimits
from nakadi.http.console import with_console
from nakadi.http.direct import AnsweringApp
from nakadi.http.hosts import ServedHosts
from nakadi.http.server import Server, SideTask, new_event_loop, open_listening_socket

log = logging.getLogger(__name__)

# The time for resources to close when the clients have left.
SERVER_CLOSE_TIMEOUT_SECONDS = 10.0
# How long after the signal clients may still take their answers, and streams may finish.
DRAIN_TIMEOUT_SECONDS = 7.0


class ServerThread:
    """Serves from its creation until it is closed, by default on a free port."""

    def __init__(
        self,
        application: AnsweringApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        grace_seconds: float = 2.0,
        limits: RequestLimits | None = None,
        metrics: Metrics | None = None,
        choose_hosts: Callable[[str], ServedHosts | None] = lambda _: None,
        side_tasks: Sequence[SideTask] = (),
    ) -> None:
        """`choose_hosts` is called with the address to which the server is bound."""
        self._grace_seconds = grace_seconds
        self._listening = open_listening_socket(host, port)
        self.port: int = self._listening.getsockname()[1]
        self.url = server_url(host, self.port)
        self._loop = new_event_loop()
        self._stopping = asyncio.Event()
        try:
            hosts = choose_hosts(self._listening.getsockname()[0])
        except BaseException:
            self._listening.close()
            raise
        self._thread = threading.Thread(
            target=self._serve,
            args=(application, grace_seconds, limits, metrics, hosts, side_tasks),
            name="nakadi-server",
            daemon=True,
        )
        # The socket already listens, so a client that connects before the thread runs only waits a moment.
        self._thread.start()

    def close(self) -> None:
        """Let open streams finish, close every connection, and then return."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(self._grace_seconds + SERVER_CLOSE_TIMEOUT_SECONDS)
        if self._thread.is_alive():
            log.warning("The server does not end and is left behind. %s", describe_busy_threads())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(
        self,
        application: AnsweringApp,
        grace_seconds: float,
        limits: RequestLimits | None,
        metrics: Metrics | None,
        served_hosts: ServedHosts | None,
        side_tasks: Sequence[SideTask],
    ) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            server = Server(
                application,
                grace_seconds=grace_seconds,
                limits=limits,
                metrics=metrics,
                served_hosts=served_hosts,
                side_tasks=side_tasks,
            )
            runner.run(server.serve(self._listening, self._stopping))


def make_server(broker: BrokerServices, settings: Settings, bound: tuple[str, int]) -> Server:
    """The server of a process that serves this broker, as one of `settings.workers`, at this address and port."""
    broker.own_url = server_url(*bound)
    return Server(
        with_console(
            make_application(broker), settings.console, dict(settings.console_sign_in), queries=settings.queries
        ),
        grace_seconds=DRAIN_TIMEOUT_SECONDS,
        limits=RequestLimits(max_memory_bytes=settings.max_request_memory_bytes // settings.workers),
        metrics=broker.metrics,
        served_hosts=settings.served_hosts_at(bound[0]),
        side_tasks=broker.side_tasks,
    )


def server_url(host: str, port: int) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # a comparison, not a binding
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


LAST_CHORE_TIMEOUT_SECONDS = 30.0

WIPE_INTERVAL_SECONDS = 5.0
"""How often a broker looks for a wipe of a data file that is requested or not complete."""


class Housekeeper:
    def __init__(
        self, run_chores: Callable[[], object], *, stop: Callable[[], None] = lambda: None, every_seconds: float = 60.0
    ) -> None:
        """`stop` makes chores in progress finish soon."""
        self._run_chores = run_chores
        self._stop = stop
        self._every_seconds = every_seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run_chores_until_closed, name="nakadi-housekeeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish work in progress, and accept no more. A chore that does not finish in time is abandoned."""
        self._closing.set()
        self._stop()
        self._thread.join(LAST_CHORE_TIMEOUT_SECONDS)
        if self._thread.is_alive():
            log.warning("Housekeeping does not end and is left behind")

    def _run_chores_until_closed(self) -> None:
        while not self._closing.wait(self._every_seconds):
            try:
                self._run_chores()
            except Exception:  # the next attempt may succeed, and this is the only place to log it
                log.exception("The housekeeping failed")


@contextlib.contextmanager
def run_chores(broker: BrokerServices) -> Iterator[None]:
    """Do the chores of this broker until the context ends.

    Wipes of data files have their own thread. Erasures wait for wipes, so they are retried sooner than the rest of the
    housekeeping, and a long round does not delay them.
    """
    stop = broker.housekeeping.stop
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(Housekeeper(broker.run_housekeeping, stop=stop)))
        if broker.has_data_files:
            wiper = Housekeeper(broker.wipe_data_files, stop=stop, every_seconds=WIPE_INTERVAL_SECONDS)
            stack.enter_context(contextlib.closing(wiper))
        yield
