"""The fixture `nakadi_broker`: a broker for the tests of projects that have this package installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nakadi.local.broker import Broker


@pytest.fixture
def nakadi_broker() -> Iterator[Broker]:
    """An empty broker in memory on a free port, one for each test; its address is `nakadi_broker.url`."""
    from nakadi.local.broker import Broker  # noqa: PLC0415  # tests that do not ask for it should not pay for it

    with Broker() as broker:
        yield broker
