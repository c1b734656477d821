"""The sink of a subscription in the console."""

import pytest

from tests.support.receiver import ON_LOOPBACK, delivering_quickly


@pytest.fixture(scope="module")
def settings():
    with delivering_quickly():
        # Nothing exists at these ARNs, and there are no credentials for them, so the events wait.
        yield {**ON_LOOPBACK, "sink_targets": ("arn:aws:sqs:*",)}


def test_sink(failure):
    """Each sentence in the module's script names a test, which passes in the browser."""
    assert not failure, failure
