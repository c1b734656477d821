"""A DynamoDB for several processes: moto behind a port of this machine, with the tables that a deployment makes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from botocore.session import Session

from infra.laptop.kinesis_local import free_port
from nakadi.dynamodb.tables import TABLES
from tests.support.aws import REGION
from tests.support.patience import until
from tests.support.processes import ENVIRONMENT

ROOT = Path(__file__).parents[2]
PREFIX = "shared"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def a_dynamodb() -> Iterator[str]:
    """The URL of its tables. Inside, this process and those that it starts have the credentials."""
    port = free_port()
    with (
        patch.dict(os.environ, CREDENTIALS),
        subprocess.Popen(
            [sys.executable, "-m", "infra.laptop.moto_service", str(port)], cwd=ROOT, env=ENVIRONMENT
        ) as process,
    ):
        try:
            until(lambda: _answers(port))
            endpoint = f"http://127.0.0.1:{port}"
            client = Session().create_client("dynamodb", REGION, endpoint_url=endpoint)
            for table in TABLES:
                client.create_table(**table.request(PREFIX))
            client.close()
            yield f"dynamodb://{PREFIX}?region={REGION}&endpoint={endpoint}"
        finally:
            process.kill()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
