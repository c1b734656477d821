"""An application served by a thread of this process."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import TracebackType
from typing import Self

from nakadi.http.application import Application
from nakadi.http.asgi import Limits
from nakadi.http.server import Server, listen, new_event_loop
from nakadi.local.grace import at_work
from nakadi.metrics import Metrics

log = logging.getLogger(__name__)

# For what is closed when the clients are gone.
CLOSING_SECONDS = 10.0


class Serving:
    """Serves from when it is made until it is closed. The port is a free one unless it is given."""

    def __init__(
        self,
        application: Application,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        grace_seconds: float = 2.0,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._grace_seconds = grace_seconds
        self._listening = listen(host, port)
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
        self, application: Application, grace_seconds: float, limits: Limits | None, metrics: Metrics | None
    ) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            server = Server(application, grace_seconds=grace_seconds, limits=limits, metrics=metrics)
            runner.run(server.serve(self._listening, self._stopping))


def url_of(host: str, port: int) -> str:
    """Where somebody on this machine reaches a server that listens there."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # a comparison, not a binding
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
