"""Creates Kinesis event logs for tests: on moto, which cannot split shards, and on local services, which can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from botocore.session import Session

from nakadi.app.engines import LogDependencies, open_log_index
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.kinesis import opening
from tests.support.aws import aws
from tests.support.kinesis_local import kinesalite_there, kinesis_local
from tests.support.kinesis_pushed import start_pushing_kinesis
from tests.support.patience import until
from tests.support.shared import keep_open

REGION = "eu-central-1"
SHARDS = 2

FAST_OPTIONS = "lease=0.05&shared_for=0&poll=0.02&reads_per_second=10000"
"""The emulations do not limit reads, so tests need no delays that share the limit of a real stream among readers."""

ON_MOTO = f"kinesis://{{stream}}?region={REGION}&{FAST_OPTIONS}"
ON_LOCAL = f"kinesis://{{stream}}?region={REGION}&endpoint={{endpoint}}&{FAST_OPTIONS}"

_numbers = count()


@cache
def _session() -> Session:
    return Session()


def session(*_: object) -> Session:
    """The session that all tests share, because each new one reads long descriptions of every service."""
    return _session()


@contextmanager
def use_fast_clients() -> Iterator[None]:
    with (
        patch.object(opening, "new_session", session),
        patch("nakadi.engines.common.aws_sessions.new_session", session),
    ):
        yield


@contextmanager
def open_on_moto() -> Iterator[tuple[str, LogDependencies]]:
    """Yield the URL of a log, and its index in DynamoDB and archive in S3."""
    with aws() as emulated, use_fast_clients():
        emulated.create_tables("contract")
        stream = create_stream(session().create_client("kinesis", REGION))
        s3 = session().create_client("s3", REGION)
        s3.create_bucket(Bucket="archive", CreateBucketConfiguration={"LocationConstraint": REGION})
        beside = LogDependencies(
            open_index=lambda: open_log_index(f"dynamodb://contract?region={REGION}"),
            open_archive=lambda: open_archive(f"s3://archive/events?region={REGION}"),
        )
        yield ON_MOTO.format(stream=stream), beside


# The engines that tests can choose; each in a context that provides credentials.
SERVICES: Mapping[str, Callable[[], AbstractContextManager[str]]] = {
    "local": kinesis_local,
    "kinesalite": kinesalite_there,
}


def open_on_local(folder: Path) -> AbstractContextManager[tuple[str, LogDependencies]]:
    return open_on_service(folder, kinesis_local)


@contextmanager
def open_on_moto_with_push() -> Iterator[tuple[str, LogDependencies]]:
    """Do the same as `open_on_moto`, with a registered consumer, to which the service pushes records while the log is
    watched.
    """
    with open_on_moto() as (url, beside):
        client = session().create_client("kinesis", REGION)
        with start_pushing_kinesis(client) as kinesis:
            kinesis.active_at_once = True
            yield f"{url}&fan_out=mine", beside


@contextmanager
def open_on_service(
    folder: Path, service: Callable[[], AbstractContextManager[str]]
) -> Iterator[tuple[str, LogDependencies]]:
    """Yield the URL of a log, and its index in memory and archive in a folder."""
    with service() as endpoint, use_fast_clients():
        client = session().create_client("kinesis", REGION, endpoint_url=endpoint)
        stream = create_stream(client)
        index = keep_open(open_log_index("memory:"))
        archive = keep_open(open_archive(f"file://{folder}/archive"))
        try:
            yield (
                ON_LOCAL.format(stream=stream, endpoint=endpoint),
                LogDependencies(open_index=lambda: index, open_archive=lambda: archive),
            )
        finally:
            client.delete_stream(StreamName=stream)
            client.close()


def create_stream(client: Any, shards: int = SHARDS) -> str:
    """Create a stream that no other test uses."""
    name = f"events-{next(_numbers)}"
    client.create_stream(StreamName=name, ShardCount=shards)
    wait_until_active(client, name)
    return name


def wait_until_active(client: Any, name: str) -> None:
    until(
        lambda: client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE"
    )
