"""A Kinesis on this machine that splits and merges shards as the real one does: a node program, kept by `make`."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

from infra.laptop.processes import end_with_the_starter, started

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".cache" / "node" / "node_modules" / "kinesis-local"
ON_LOOPBACK = ROOT / "tests" / "support" / "node" / "loopback.cjs"
PATIENCE = 60


def begun() -> tuple[str, subprocess.Popen[bytes]]:
    """Where it will answer, and the process."""
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
    process = started(
        [node(), "--require", str(ON_LOOPBACK), "main.js"],
        cwd=PROGRAM,
        env={"PATH": os.environ["PATH"], **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_the_starter,
    )
    return f"http://127.0.0.1:{plain}", process


def wait_until_it_answers(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
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
    """A port without a listener, and that no connection is given meanwhile: theirs are above 32768.

    The port is this process's until it ends. Between this function and the server that binds the port another process
    could be given the same one, so ports that are given are even, and this process keeps the odd one behind it bound:
    of all processes that look for a port, one can bind that.
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
            claim.detach()  # it stays open, and is closed with the process
            return port


def node() -> str:
    """The machine's, or the one that was put beside the programs that need it."""
    found = shutil.which("node", path=f"{ROOT / '.cache' / 'node' / 'bin'}:{os.environ['PATH']}")
    if found is None:
        raise FileNotFoundError("There is no node on the path")
    return found
