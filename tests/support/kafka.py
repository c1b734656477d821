"""A Kafka for the tests of a process: one of its own, or the one at `KAFKA=host:9092`.

`make test-engines` puts it there, and asks for the tests that need it.
"""

from __future__ import annotations

import atexit
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

from infra.laptop import kafka_local
from infra.laptop.kinesis_local import free_port
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
    """A server that a test may kill, pause, and start again."""

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._server = kafka_local.begun(folder, port=port, settings=settings, prefix=prefix)

    @property
    def address(self) -> str:
        return self._server.address

    def wait(self) -> None:
        kafka_local.wait_until_it_answers(self._server)

    def kill(self) -> None:
        self._server.process.kill()
        self._server.process.wait()

    def pause(self) -> None:
        """Leave its connections open, and answer nothing."""
        self._server.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._server.process.send_signal(signal.SIGCONT)

    def start(self) -> None:
        """Where it was, with what it has on its disk."""
        port = int(self.address.rpartition(":")[2])
        self._server = kafka_local.begun(self._folder, port=port, settings=self._settings)
        self.wait()

    def has_ended(self) -> bool:
        return self._server.process.poll() is not None

    def end(self) -> None:
        if not self.has_ended():
            self.go_on()
        ended(self._server.process)


@contextmanager
def a_server(folder: Path, prefix: Sequence[str] = ()) -> Iterator[OwnServer]:
    server = OwnServer(folder, prefix=prefix)
    try:
        server.wait()
        yield server
    finally:
        server.end()


@contextmanager
def three_servers(folder: Path) -> Iterator[Mapping[int, OwnServer]]:
    """A cluster, in which two of three copies make a write durable. The first server is its controller."""
    controller, servers = free_port(), {}
    try:
        for node in (1, 2, 3):
            port = free_port()
            here = f"PLAINTEXT://127.0.0.1:{port}"
            also = f",CONTROLLER://127.0.0.1:{controller}" if node == 1 else ""
            settings = {
                "node.id": str(node),
                "process.roles": "broker,controller" if node == 1 else "broker",
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listeners": here + also,
                "advertised.listeners": here,
                "min.insync.replicas": "2",
                # A server that is gone is missed soon.
                "broker.session.timeout.ms": "3000",
                "broker.heartbeat.interval.ms": "500",
                "replica.lag.time.max.ms": "3000",
            }
            servers[node] = OwnServer(folder / str(node), port, settings)
        for server in servers.values():
            server.wait()
        yield servers
    finally:
        for server in servers.values():
            server.end()
