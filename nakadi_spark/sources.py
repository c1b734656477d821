"""The sources of events that a Spark job can name: a broker, or the stores that a broker uses."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol, Self

import msgspec

from nakadi.app.settings import Settings
from nakadi_client import Connection
from nakadi_client.tokens import Token
from nakadi_spark.stores import StoreSource
from nakadi_sql.http_source import HttpSource, LogRange
from nakadi_sql.rows import LoggedEvent
from nakadi_sql.sources import EventTypeInfo

SILENCES = 10
"""After this many seconds without an event, a partition counts as finished, if the broker does not report its end. A
job can wait longer than an interactive query."""

_LOGGER = logging.getLogger("nakadi_spark")


class OpenSource(Protocol):
    """An open source, in the driver or in a task."""

    def names(self) -> Iterator[str]:
        """The names of all event types."""

    def find(self, name: str) -> EventTypeInfo | None:
        """An event type that may be read; None if it does not exist."""

    def plan(
        self, event_type: EventTypeInfo, since: datetime | None = None, until: datetime | None = None
    ) -> Sequence[LogRange]:
        """The ranges of the events that exist now and that the table lacks, each for one task. With `since` and
        `until`, they leave out events that were certainly not stored between these times.
        """

    def pin(self, event_type: EventTypeInfo, ranges: Sequence[LogRange]) -> Sequence[LogRange]:
        """The ranges with offsets instead of BEGIN. So reading them later fails if the log has removed events of them
        by then.
        """

    def first_offsets(self, event_type: EventTypeInfo, since: datetime | None = None) -> Mapping[str, str]:
        """For each partition, the offset before its first event; with `since`, its first one stored then or later."""

    def last_offsets(self, event_type: EventTypeInfo) -> Mapping[str, str]:
        """For each partition, the offset of its last event."""

    def count_events(
        self, event_type: EventTypeInfo, starts: Mapping[str, str], ends: Mapping[str, str]
    ) -> Mapping[str, int]:
        """For each partition of `ends`, the number of offsets after its start, up to and including its end. Some of
        them may not have an event.
        """

    def shift(
        self, event_type: EventTypeInfo, starts: Mapping[str, str], counts: Mapping[str, int]
    ) -> Mapping[str, str]:
        """For each partition of `starts`, the offset that comes as many events later as `counts` says."""

    def read(self, event_type: EventTypeInfo, wanted: LogRange) -> Iterator[Sequence[LoggedEvent]]:
        """The events of a range, in pieces, without those that streams do not deliver, such as tombstones."""


class Broker(msgspec.Struct, frozen=True):
    """A broker with its HTTP API, and perhaps the tables that jobs have made of its events.

    url      Where the driver and the executors reach the broker.
    token    A text, a function, or a source of `nakadi_client.tokens`. Tasks get it too, so it must be picklable:
             `TokenFile` names a file that all executors have.
    tables   The catalog and the database of the tables in the Spark session, such as `nakadi.nakadi`. Without it,
             all events are read from the log.
    """

    url: str
    token: Token = None
    tables: str = ""

    def __repr__(self) -> str:
        return f"Broker({Connection(self.url).shown_url!r}, tables={self.tables!r})"

    @contextmanager
    def open(self) -> Iterator[HttpSource]:
        with HttpSource(Connection(self.url, token=self.token), _LOGGER.warning, silences=SILENCES) as source:
            yield source


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """The stores of a broker, which need not run. The driver and the executors must reach them.

    registry, event_log, log_index, archive, kafka_properties
             As the settings of the broker: `NAKADI_REGISTRY` and so on.
    tables   As for `Broker`. Without it, the archive is read instead.
    """

    registry: str
    event_log: str
    log_index: str = ""
    archive: str = ""
    kafka_properties: str = ""
    tables: str = ""

    @classmethod
    def in_folder(cls, folder: str | Path, tables: str = "") -> Self:
        """The stores in a data folder, as `make run` makes it. All executors must have this folder."""
        place = Path(folder).absolute()
        file = f"sqlite:///{place / 'nakadi.db'}"
        return cls(registry=file, event_log=file, log_index=file, archive=str(place / "archive"), tables=tables)

    @contextmanager
    def open(self) -> Iterator[StoreSource]:
        settings = Settings(
            registry=self.registry,
            event_log=self.event_log,
            log_index=self.log_index,
            archive=self.archive,
            # A reader archives nothing.
            archiver="function",
            kafka_properties=self.kafka_properties,
        )
        with StoreSource(settings) as source:
            yield source


Source = Broker | Stores
"""The source of a job's events. It is picklable, because tasks open it too."""
