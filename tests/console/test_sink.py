"""The sink of a subscription in the console."""

import pytest

from tests.support.receiver import ON_LOOPBACK, delivering_quickly


@pytest.fixture(scope="module")
def settings():
    with delivering_quickly():
        # Nothing is at these ARNs, and nobody has credentials for them: the events wait.
        yield {**ON_LOOPBACK, "sink_targets": ("arn:aws:sqs:*",)}


def test_sink(failure):
    """The console does what the sentence says."""
    assert not failure, failure
