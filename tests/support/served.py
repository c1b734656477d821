"""A broker behind a socket, wired as `nakadi.local.Broker`, whose parts a test can reach."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from nakadi.app.broker import open_broker, open_tracer_if_set
from nakadi.app.core import WrapLog
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.common.tracing import Tracer
from nakadi.local.serving import ServerThread
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog


class ServedBroker:
    """A broker without a thread for housekeeping, which a test does itself when it needs to."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        wrap_log: WrapLog = lambda log: log,
        tracer: Tracer | None = None,
        **settings: Any,
    ) -> None:
        read = Settings(**settings)
        self.services = open_broker(read, clock, wrap_log=wrap_log, tracer=tracer or open_tracer_if_set(read))
        self.services.prepare_for_requests()
        self._serving = ServerThread(make_application(self.services), metrics=self.services.metrics)
        self.url = self.services.own_url = self._serving.url

    @property
    def log(self) -> EventLog:
        """The log of the storage `default`."""
        return self.services.logs.for_storage("default")

    def close(self) -> None:
        self._serving.close()
        self.services.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
