"""A broker in this process, and queries against it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from nakadi_client import Connection
from nakadi_sql import HttpSource, Limits, ask
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker

LIMITS = Limits(seconds=PATIENCE)


@pytest.fixture(scope="session")
def broker() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        yield broker


@pytest.fixture
def api(broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def notes() -> list[str]:
    """The notes that a source has added to the results."""
    return []


@pytest.fixture
def source(broker, notes) -> Iterator[HttpSource]:
    with HttpSource(Connection(broker.url), notes.append) as source:
        yield source


@pytest.fixture
def query(source):
    """A function that returns the rows of a query against the log of the broker."""

    def query(text: str, limits: Limits = LIMITS):
        with ask(text, source, None, limits) as answer:
            return [*answer.rows()]

    return query
