"""Fixtures of the attacks: each test module attacks a broker in a separate process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.attacked import AttackedBroker, start_attacked_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[AttackedBroker]:
    """A broker that the tests of a module attack. At the end, the broker must still run, and must have logged no
    traceback.
    """
    with start_attacked_broker() as broker:
        yield broker
        assert broker.alive()
        assert broker.tracebacks() == []
