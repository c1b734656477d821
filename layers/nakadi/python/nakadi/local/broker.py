"""A whole broker inside another program."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from nakadi.bootstrap import open_broker
from nakadi.engines.common.faults import Faults, FaultyLog
from nakadi.http.asgi import Limits
from nakadi.local.housekeeper import Housekeeper
from nakadi.local.serving import Serving
from nakadi.settings import Settings


class Broker:
    """A broker on a free port of this machine, in memory, for as long as the `with` block takes.

    Keywords are fields of `nakadi.settings.Settings`: `Broker(default_partitions=4)`. With
    `registry="sqlite:///path"` and `event_log="sqlite:///path"` what it learns is kept.

    `faults` lets things go wrong on purpose, so that a client's handling of them can be tested:
    `broker.faults.refuse(event_type="order.placed", partition="1", times=2)`.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
        self.faults = Faults(self._topics_of)
        self._inside = open_broker(Settings(**settings), around_log=lambda log: FaultyLog(log, self.faults))
        try:
            self._inside.prepare()
            limits = Limits(memory=self._inside.settings.max_request_memory_bytes)
            self._serving = Serving(
                self._inside.application, host=host, port=port, limits=limits, metrics=self._inside.metrics
            )
        except OSError:
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
