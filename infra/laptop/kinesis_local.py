"""A local Kinesis that splits and merges shards like the real one: a node program that `make` installs."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

from infra.laptop.processes import end_with_parent, start_process

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".cache" / "node" / "node_modules" / "kinesis-local"
LOOPBACK_SCRIPT = ROOT / "tests" / "support" / "node" / "loopback.cjs"
TIMEOUT_SECONDS = 60


def start() -> tuple[str, subprocess.Popen[bytes]]:
    """Start the local Kinesis; return its address and its process."""
    if not (PROGRAM / "main.js").exists():
        raise FileNotFoundError(f"{PROGRAM} is not there: `make test` puts it there")
    tls, plain = free_port(), free_port()
    settings = {
        "KINESIS_MOCK_PLAIN_PORT": str(plain),
        "KINESIS_MOCK_TLS_PORT": str(tls),
        "SHARD_LIMIT": "5000",
        "CREATE_STREAM_DURATION": "1ms",
        "DELETE_STREAM_DURATION": "1ms",
        "SPLIT_SHARD_DURATION": "20ms",
        "MERGE_SHARDS_DURATION": "20ms",
        "LOG_LEVEL": "ERROR",
    }
    process = start_process(
        [find_node(), "--require", str(LOOPBACK_SCRIPT), "main.js"],
        cwd=PROGRAM,
        env={"PATH": os.environ["PATH"], **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    )
    return f"http://127.0.0.1:{plain}", process


def wait_until_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            urlopen(f"{address}/healthcheck", timeout=1).close()  # noqa: S310  # an address of our own
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def free_port() -> int:
    """A port without a listener, below the range of outgoing connections, which begins at 32768.

    The port belongs to this process until it ends. Another process could choose the same port before a server binds it,
    so this function chooses an even port and keeps the odd port after it bound, which only one process can do.
    """
    while True:
        port = 10_000 + 2 * secrets.randbelow(10_000)
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", port + 1))
            with socket.socket() as server:
                server.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
        else:
            claim.detach()  # the socket stays open until the process ends
            return port


def find_node() -> str:
    """The machine's node, or the one that `make` installed."""
    found = shutil.which("node", path=f"{ROOT / '.cache' / 'node' / 'bin'}:{os.environ['PATH']}")
    if found is None:
        raise FileNotFoundError("There is no node on the path")
    return found
