"""A whole broker inside another program."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.app.shutdown import at_work
from nakadi.common.metrics import Metrics
from nakadi.engines.common.faults import Faults, FaultyLog
from nakadi.http.asgi import AnsweringApp, RequestLimits
from nakadi.http.console import PACKAGED_FOLDER, ApplicationWithConsole, ConsoleFiles
from nakadi.http.server import Server, new_event_loop, open_listening_socket
from nakadi.model.outcomes import BadSetting

# Server thread --------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

# For what is closed when the clients are gone.
CLOSING_SECONDS = 10.0


class Serving:
    """Serves from when it is made until it is closed. The port is a free one unless it is given."""

    def __init__(
        self,
        application: AnsweringApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        grace_seconds: float = 2.0,
        limits: RequestLimits | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._grace_seconds = grace_seconds
        self._listening = open_listening_socket(host, port)
        self.port: int = self._listening.getsockname()[1]
        self.url = url_of(host, self.port)
        self._loop = new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(application, grace_seconds, limits, metrics), name="nakadi-server", daemon=True
        )
        # The socket listens already: who connects before the thread runs waits a moment and is served.
        self._thread.start()

    def close(self) -> None:
        """Let open streams come to their end, close every connection, and return when all is done."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(self._grace_seconds + CLOSING_SECONDS)
        if self._thread.is_alive():
            log.warning("The server is left behind, for it does not end. %s", at_work())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(
        self, application: AnsweringApp, grace_seconds: float, limits: RequestLimits | None, metrics: Metrics | None
    ) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            server = Server(application, grace_seconds=grace_seconds, limits=limits, metrics=metrics)
            runner.run(server.serve(self._listening, self._stopping))


def console_of(application: AnsweringApp, settings: Settings) -> ApplicationWithConsole:
    """The application with the console in front of it, a wheel's own if no other is named. Raises `BadSetting`."""
    folder = settings.console or (str(PACKAGED_FOLDER) if PACKAGED_FOLDER.is_dir() else "")
    try:
        return ApplicationWithConsole(application, ConsoleFiles(folder, dict(settings.console_sign_in)))
    except ValueError as error:
        raise BadSetting(f"NAKADI_CONSOLE_SIGN_IN cannot be used: {error}") from error


def url_of(host: str, port: int) -> str:
    """The URL of a server that listens there, for clients on this machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # a comparison, not a binding
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


# Housekeeping thread --------------------------------------------------------------------------------------------------


LAST_ROUND_SECONDS = 30.0


class Housekeeper:
    def __init__(
        self, chores: Callable[[], object], *, stop: Callable[[], None] = lambda: None, every_seconds: float = 60.0
    ) -> None:
        """`stop` has chores that are under way come to their end soon."""
        self._chores = chores
        self._stop = stop
        self._every_seconds = every_seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="nakadi-housekeeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what is being done, and do no more. A chore that waits for something for too long is left behind."""
        self._closing.set()
        self._stop()
        self._thread.join(LAST_ROUND_SECONDS)
        if self._thread.is_alive():
            log.warning("The housekeeping is left behind, for it does not end")

    def _work(self) -> None:
        while not self._closing.wait(self._every_seconds):
            try:
                self._chores()
            except Exception:  # the next attempt may succeed, and this is the only place to log it
                log.exception("The housekeeping failed")


# Broker ---------------------------------------------------------------------------------------------------------------


class Broker:
    """A broker on a free port of this machine, in memory, for as long as the `with` block takes.

    Keywords are fields of `nakadi.app.settings.Settings`: `Broker(default_partitions=4)`. With
    `registry="sqlite:///path"` and `event_log="sqlite:///path"` what it learns is kept.

    `faults` lets things go wrong on purpose, so that a client's handling of them can be tested:
    `broker.faults.refuse(event_type="order.placed", partition="1", times=2)`.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
        self.faults = Faults(self._topics_of)
        self._inside = open_broker(Settings(**settings), around_log=lambda log: FaultyLog(log, self.faults))
        try:
            self._inside.prepare()
            limits = RequestLimits(memory=self._inside.settings.max_request_memory_bytes)
            application = console_of(self._inside.application, self._inside.settings)
            self._serving = Serving(application, host=host, port=port, limits=limits, metrics=self._inside.metrics)
        except (OSError, BadSetting):
            self._inside.close()
            raise
        self._housekeeper = Housekeeper(self._inside.keep_house, stop=self._inside.housekeeping.stop)
        self.url = self._serving.url

    def close(self) -> None:
        """Let open streams come to their end, and give everything back. Doing it again changes nothing."""
        self._serving.close()
        self._housekeeper.close()
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
