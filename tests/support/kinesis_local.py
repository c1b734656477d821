"""Local services that replace Kinesis; the tests of a process start each of them once."""

from __future__ import annotations

import atexit
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

from infra.laptop.kinesis_local import start, wait_until_ready
from tests.support.other_engines import kinesalite
from tests.support.patience import PATIENCE

REGION = "eu-central-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def kinesis_local() -> Iterator[str]:
    """Yield the address of the kinesis-local that all tests of this process share. Inside the block, processes have
    credentials.
    """
    with patch.dict(os.environ, CREDENTIALS):
        yield _start()


@contextmanager
def kinesalite_there() -> Iterator[str]:
    """Like `kinesis_local`, but yield the address of the kinesalite that all tests of this process share."""
    with patch.dict(os.environ, CREDENTIALS):
        yield kinesalite()


@cache
def _start() -> str:
    address, process = start()
    atexit.register(_stop, process)
    wait_until_ready(address, process)
    return address


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(PATIENCE)
