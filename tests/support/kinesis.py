"""Kinesis event logs for tests: on moto, which cannot split shards, and on local services, which can."""

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
from tests.support.kinesis_pushed import pushing
from tests.support.patience import until
from tests.support.shared import kept_open

REGION = "eu-central-1"
SHARDS = 2

HURRIED = "lease=0.05&shared_for=0&poll=0.02&reads_per_second=10000"
"""Neither service limits reads, and no test waits for what a production system shares among its readers."""

ON_MOTO = f"kinesis://{{stream}}?region={REGION}&{HURRIED}"
ON_LOCAL = f"kinesis://{{stream}}?region={REGION}&endpoint={{endpoint}}&{HURRIED}"

_numbers = count()


@cache
def _session() -> Session:
    return Session()


def session(*_: object) -> Session:
    """One for all, for it reads long descriptions of every service anew."""
    return _session()


@contextmanager
def quick_clients() -> Iterator[None]:
    with (
        patch.object(opening, "new_session", session),
        patch("nakadi.engines.common.aws_sessions.new_session", session),
    ):
        yield


@contextmanager
def on_moto() -> Iterator[tuple[str, LogDependencies]]:
    """A log's URL, with the index in DynamoDB and the archive in S3."""
    with aws() as world, quick_clients():
        world.made_tables("contract")
        stream = made_stream(session().create_client("kinesis", REGION))
        s3 = session().create_client("s3", REGION)
        s3.create_bucket(Bucket="archive", CreateBucketConfiguration={"LocationConstraint": REGION})
        beside = LogDependencies(
            open_index=lambda: open_log_index(f"dynamodb://contract?region={REGION}"),
            open_archive=lambda: open_archive(f"s3://archive/events?region={REGION}"),
        )
        yield ON_MOTO.format(stream=stream), beside


# Those that tests can choose among; each in a context, inside which there are credentials.
SERVICES: Mapping[str, Callable[[], AbstractContextManager[str]]] = {
    "local": kinesis_local,
    "kinesalite": kinesalite_there,
}


def on_local(folder: Path) -> AbstractContextManager[tuple[str, LogDependencies]]:
    return on_service(folder, kinesis_local)


@contextmanager
def on_moto_pushed() -> Iterator[tuple[str, LogDependencies]]:
    """The same with a consumer of its own, to which records are pushed while the log is watched."""
    with on_moto() as (url, beside):
        client = session().create_client("kinesis", REGION)
        with pushing(client) as kinesis:
            kinesis.active_at_once = True
            yield f"{url}&fan_out=mine", beside


@contextmanager
def on_service(
    folder: Path, service: Callable[[], AbstractContextManager[str]]
) -> Iterator[tuple[str, LogDependencies]]:
    """A log's URL, with the index in memory and the archive in a folder."""
    with service() as endpoint, quick_clients():
        client = session().create_client("kinesis", REGION, endpoint_url=endpoint)
        stream = made_stream(client)
        index = kept_open(open_log_index("memory:"))
        archive = kept_open(open_archive(f"file://{folder}/archive"))
        try:
            yield (
                ON_LOCAL.format(stream=stream, endpoint=endpoint),
                LogDependencies(open_index=lambda: index, open_archive=lambda: archive),
            )
        finally:
            client.delete_stream(StreamName=stream)
            client.close()


def made_stream(client: Any, shards: int = SHARDS) -> str:
    """A stream that no other test uses."""
    name = f"events-{next(_numbers)}"
    client.create_stream(StreamName=name, ShardCount=shards)
    until_active(client, name)
    return name


def until_active(client: Any, name: str) -> None:
    until(
        lambda: client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE"
    )
