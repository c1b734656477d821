"""The sink of a subscription in the console."""

import pytest

from tests.support.receiver import ON_LOOPBACK


@pytest.fixture(scope="module")
def settings():
    return ON_LOOPBACK


def test_sink(failure):
    """The console does what the sentence says."""
    assert not failure, failure
