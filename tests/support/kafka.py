"""A Kafka for the tests of a process: one of its own, or the one at `KAFKA=host:9092`.

`make test-engines` puts it there, and asks for the tests that need it.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

from infra.laptop import kafka_local
from infra.laptop.processes import ended
from tests.support.other_engines import WANTED as OTHERS_WANTED

OWN = os.environ.get("KAFKA", "")

WANTED = OTHERS_WANTED or bool(OWN)

CAN_START = kafka_local.is_there()


def url() -> str:
    """An event log with no topics yet: others' topics have other names."""
    return f"kafka://{servers()}?prefix={uuid4().hex[:12]}-"


def servers() -> str:
    return OWN or _begun()


@cache
def _begun() -> str:
    folder = tempfile.TemporaryDirectory(prefix="kafka-")
    broker = kafka_local.begun(folder.name)
    atexit.register(folder.cleanup)
    atexit.register(ended, broker.process)
    kafka_local.wait_until_it_answers(broker)
    return broker.address


class OwnServer:
    """A server that a test may kill and start again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = kafka_local.begun(folder)
        kafka_local.wait_until_it_answers(self._server)

    @property
    def address(self) -> str:
        return self._server.address

    def kill(self) -> None:
        self._server.process.kill()
        self._server.process.wait()

    def start(self) -> None:
        """Where it was, with what it has on its disk."""
        self._server = kafka_local.begun(self._folder, port=int(self.address.rpartition(":")[2]))
        kafka_local.wait_until_it_answers(self._server)

    def end(self) -> None:
        ended(self._server.process)


@contextmanager
def a_server(folder: Path) -> Iterator[OwnServer]:
    server = OwnServer(folder)
    try:
        yield server
    finally:
        server.end()
