"""Brokers on each engine as sources of Spark: by their URL, and by their stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import httpx
from msgspec import Struct

from infra.laptop.laptop import Laptop
from infra.laptop.roles import OWNER
from nakadi_spark import Stores
from tests.support import kafka
from tests.support.laptop import FAST_SETTINGS, OPEN, STREAM, STRICTNESS, TABLES, LaptopBroker
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker

KEYS = {"AWS_ACCESS_KEY_ID": OWNER, "AWS_SECRET_ACCESS_KEY": OWNER}
"""The variables with which this process, and a Spark that it starts, may use all stores of the deployment here."""


class SparkSource(Struct, frozen=True):
    """A broker that is running, a client of it, and its stores."""

    url: str
    api: httpx.Client
    stores: Stores


@contextmanager
def _embedded_broker(folder: Path, event_log: str = "") -> Iterator[tuple[str, Stores]]:
    file = f"sqlite:///{folder / 'nakadi.db'}"
    archive = str(folder / "archive")
    places = {"registry": file, "event_log": event_log or file, "log_index": file, "archive": archive}
    folder.mkdir(exist_ok=True)
    with ServedBroker(**places) as broker:
        yield broker.url, Stores(**places)


def _kafka_broker(folder: Path) -> AbstractContextManager[tuple[str, Stores]]:
    return _embedded_broker(folder, kafka.url())


@contextmanager
def _aws_local_broker(folder: Path) -> Iterator[tuple[str, Stores]]:
    with Laptop(folder, FAST_SETTINGS, STRICTNESS) as laptop:
        front = laptop.front(authorizes=False, settings=OPEN)
        with closing(LaptopBroker(laptop, front)) as broker, patch.dict(os.environ, KEYS):
            tables = f"{TABLES}&endpoint={laptop.cloud.endpoints['dynamodb']}"
            log = f"{STREAM}&endpoint={laptop.cloud.endpoints['kinesis']}"
            yield broker.url, Stores(registry=tables, event_log=log, log_index=tables)


ENGINES = {"sqlite": _embedded_broker, "kafka": _kafka_broker, "aws-local": _aws_local_broker}


@contextmanager
def spark_source(engine: str, folder: Path) -> Iterator[SparkSource]:
    with ENGINES[engine](folder) as (url, stores), httpx.Client(base_url=url, timeout=PATIENCE) as api:
        yield SparkSource(url, api, stores)
