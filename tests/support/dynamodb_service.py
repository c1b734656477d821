"""DynamoDB and S3 for several processes: moto on a port of this machine, with the tables that a deployment creates."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from botocore.session import Session

from infra.laptop.kinesis_local import free_port
from nakadi.engines.dynamodb.tables import TABLES
from tests.support.aws import REGION
from tests.support.other_engines import dynamodb_local
from tests.support.patience import until
from tests.support.processes import ENVIRONMENT, is_listening

ROOT = Path(__file__).parents[2]
PREFIX = "shared"
_numbers = count()
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def a_dynamodb() -> Iterator[str]:
    """Yield the URL of the tables. Inside the block, this process and those that it starts have the credentials."""
    with aws_service() as endpoint, tables(endpoint, PREFIX) as url:
        yield url


@contextmanager
def a_bucket(*arguments: str) -> Iterator[tuple[str, Any]]:
    """Yield the URL of a bucket as an archive, and a client of its S3. `arguments` are for `aws_service`."""
    with (
        aws_service(*arguments) as endpoint,
        closing(Session().create_client("s3", REGION, endpoint_url=endpoint)) as client,
    ):
        client.create_bucket(Bucket=PREFIX, CreateBucketConfiguration={"LocationConstraint": REGION})
        yield f"s3://{PREFIX}/?region={REGION}&endpoint={endpoint}", client


@contextmanager
def aws_service(*roles: str) -> Iterator[str]:
    """Yield the endpoint of an emulated AWS, on a port of this machine. With a file of roles, it enforces them."""
    port = free_port()
    with (
        patch.dict(os.environ, CREDENTIALS),
        subprocess.Popen(
            [sys.executable, "-m", "infra.laptop.moto_service", str(port), *roles], cwd=ROOT, env=ENVIRONMENT
        ) as process,
    ):
        try:
            until(lambda: is_listening(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@contextmanager
def start_dynamodb_local() -> Iterator[str]:
    """Yield the URL of tables on DynamoDB Local that no other test uses. Inside the block, processes have
    credentials.
    """
    with patch.dict(os.environ, CREDENTIALS), tables(dynamodb_local(), f"contract-{next(_numbers)}") as url:
        yield url


@contextmanager
def tables(endpoint: str, prefix: str) -> Iterator[str]:
    with closing(Session().create_client("dynamodb", REGION, endpoint_url=endpoint)) as client:
        for table in TABLES:
            client.create_table(**table.create_request(prefix))
        yield f"dynamodb://{prefix}?region={REGION}&endpoint={endpoint}"
        for table in TABLES:
            client.delete_table(TableName=table.full_name(prefix))
