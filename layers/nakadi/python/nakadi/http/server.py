"""The HTTP server under the ASGI edge: accepts connections, and ends in an orderly way.

docs/decisions/0002-http-server.md explains why the broker has its own server, with figures.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from email.utils import formatdate
from typing import Protocol

from nakadi.common.metrics import Metrics
from nakadi.http.asgi import AsgiApplication, RequestLimits
from nakadi.http.connection import Connection, ServerState
from nakadi.http.direct import AnsweringApp
from nakadi.http.hosts import ServedHosts

# How long an idle connection stays open: longer than load balancers keep it, so that the server never closes it just
# when a request is sent.
KEEP_ALIVE_TIMEOUT_SECONDS = 75
LISTEN_BACKLOG = 2048

MEMORY_TRIM_INTERVAL_SECONDS = 60.0
"""How often a process returns freed memory. Otherwise the allocator would keep it, in gaps between the memory of many
threads, and under lasting load memory would grow for hours, although the process does not need more."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed."""
    try:
        import uvloop  # noqa: PLC0415  # not there on every system
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def tune_interpreter() -> None:
    """Prepare the interpreter for a process that only serves, once everything is loaded.

    Requests are threads that each need the interpreter for a moment: they wait less if threads switch more often.
    Loaded modules stay until the end, and most objects of a request are freed at once: the garbage collector need not
    scan both repeatedly. The collector finds only objects in cycles that a cache has dropped, such as the types of a
    schema, and still runs often enough that these do not accumulate.
    """
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 1, 0)


def open_listening_socket(host: str, port: int) -> socket.socket:
    """A socket that accepts connections from now on; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)


SideTask = Callable[[], Coroutine[object, object, None]]
"""Runs on the loop of a server until the server cancels it, and then finishes."""


class NewConnection(Protocol):
    """Creates the protocol of a connection; `was_taken_over` is true if another process has served it until now."""

    def __call__(self, *, was_taken_over: bool = False) -> asyncio.Protocol: ...


class ConnectionSource(Protocol):
    """Connections that another process accepts, and hands over."""

    def start_serving(self, new_protocol: NewConnection) -> None:
        """Serve every connection that is handed over, each with its own protocol."""

    def report_connection_end(self) -> None:
        """Called when one of these connections has ended."""

    def note_large_body(self, connection: Connection) -> None:
        """Call this when a connection has carried a long request, which is answered: another process may take over."""

    def close(self) -> None:
        """Take no further connections."""


class Server:
    """Serves an application until it is stopped. When it stops, open streams are asked to end first, and may finish.

    Behind a proxy that keeps connections, `closes_after_streams` has to be False.
    """

    def __init__(  # noqa: PLR0913  # every part by its name
        self,
        application: AnsweringApp,
        *,
        threads: int = 64,
        grace_seconds: float = 10.0,
        keep_alive_seconds: int = KEEP_ALIVE_TIMEOUT_SECONDS,
        limits: RequestLimits | None = None,
        metrics: Metrics | None = None,
        served_hosts: ServedHosts | None = None,
        closes_after_streams: bool = True,
        side_tasks: Sequence[SideTask] = (),
    ) -> None:
        self._side_tasks = side_tasks
        self._edge = AsgiApplication(application, threads=threads, limits=limits, metrics=metrics)
        self._grace_seconds = grace_seconds
        self._state = ServerState(
            self._edge,
            keep_alive_seconds,
            self._count_connection_end,
            served_hosts,
            closes_after_streams=closes_after_streams,
        )
        self._all_gone = asyncio.Event()
        self._note_connection_end: Callable[[], None] = lambda: None

    async def serve(
        self,
        listening: socket.socket | ConnectionSource,
        stopping: asyncio.Event,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        listener: asyncio.Server | ConnectionSource
        if isinstance(listening, socket.socket):
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(
                self._new_connection, sock=listening, backlog=LISTEN_BACKLOG, ssl=ssl_context
            )
        else:
            self._note_connection_end = listening.report_connection_end
            self._state.note_large_body = listening.note_large_body
            listening.start_serving(self._new_connection)
            listener = listening
        regular_tasks = [
            asyncio.create_task(self._keep_date_header_current()),
            asyncio.create_task(self._trim_memory_regularly()),
        ]
        beside = [asyncio.create_task(each()) for each in self._side_tasks]
        try:
            await stopping.wait()
        finally:
            for each in regular_tasks:
                each.cancel()
            ending = asyncio.create_task(_end_side_tasks(beside, self._grace_seconds))
            await self._shut_down(listener)
            await ending

    def _new_connection(self, *, was_taken_over: bool = False) -> Connection:
        return Connection(self._state, self._edge.quick_answerer, was_taken_over=was_taken_over)

    def _count_connection_end(self) -> None:
        self._note_connection_end()
        if not self._state.connections:
            self._all_gone.set()

    async def _keep_date_header_current(self) -> None:
        while True:
            self._state.date_header = f"date: {formatdate(usegmt=True)}\r\n".encode()
            await asyncio.sleep(1)

    async def _trim_memory_regularly(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_TRIM_INTERVAL_SECONDS)
            await self._edge.trim_memory()

    async def _shut_down(self, listener: asyncio.Server | ConnectionSource) -> None:
        # 1. No new connections.
        self._state.is_closing = True
        listener.close()
        # 2. Streams are asked to end; idle connections close, and others close after their response.
        self._edge.announce_shutdown()
        for connection in tuple(self._state.connections):
            connection.shut_down()
        # 3. Requests and streams in progress may finish.
        await self._wait_until_connections_end()
        # 4. The remaining connections are cut off, and the work for them ends.
        for connection in tuple(self._state.connections):
            connection.abort()
        await self._wait_until_tasks_end()
        # 5. The threads end once they have nothing more to do.
        self._edge.shut_down_threads()

    async def _wait_until_connections_end(self) -> None:
        self._all_gone.clear()
        if not self._state.connections:
            return
        try:
            async with asyncio.timeout(self._grace_seconds):
                await self._all_gone.wait()
        except TimeoutError:
            pass

    async def _wait_until_tasks_end(self) -> None:
        if not self._state.tasks:
            return
        _, late = await asyncio.wait(self._state.tasks, timeout=1)
        for task in late:
            task.cancel()
        if late:
            # A task that releases resources at its end may wait for a store that does not answer, so the server waits
            # only a little.
            await asyncio.wait(late, timeout=1)


async def _end_side_tasks(tasks: Sequence[asyncio.Task[None]], grace_seconds: float) -> None:
    """Cancel tasks and wait until they finish; cancel them again after the grace time."""
    if not tasks:
        return
    for timeout in (grace_seconds, 1.0):
        for task in tasks:
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=timeout)
        if not late:
            return
