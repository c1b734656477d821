"""A Kinesis on this machine that splits and merges shards as the real one does; a node program, kept by `make test`."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".cache" / "node" / "node_modules" / "kinesis-local"
ON_LOOPBACK = Path(__file__).parent / "node" / "loopback.cjs"

REGION = "eu-central-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def kinesis_local() -> Iterator[str]:
    """The address of the one that all tests of this process share, and credentials that it takes."""
    with patch.dict(os.environ, CREDENTIALS):
        yield _started()


@cache
def _started() -> str:
    tls, plain = _free_port(), _free_port()
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
    process = subprocess.Popen(
        [_node(), "--require", str(ON_LOOPBACK), "main.js"],
        cwd=PROGRAM,
        env={"PATH": os.environ["PATH"], **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(_ended, process)
    address = f"http://127.0.0.1:{plain}"
    _wait_for(address, process)
    return address


def _node() -> str:
    if not (PROGRAM / "main.js").exists():
        raise FileNotFoundError(f"{PROGRAM} is not there: `make test` puts it there")
    found = shutil.which("node", path=f"{ROOT / '.cache' / 'node' / 'bin'}:{os.environ['PATH']}")
    if found is None:
        raise FileNotFoundError("There is no node on the path")
    return found


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            urlopen(f"{address}/healthcheck", timeout=1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
