"""A broker, as a Spark job names it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from nakadi_client import Connection
from nakadi_client.tokens import Token
from nakadi_sql.http_source import HttpSource

SILENCES = 10
"""Seconds without an event after which a partition has no more. A job waits longer than a person who asks a query."""

_LOGGER = logging.getLogger("nakadi_spark")


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
        """Connect to the broker, in the driver or in a task."""
        with HttpSource(Connection(self.url, token=self.token), _LOGGER.warning, silences=SILENCES) as source:
            yield source
