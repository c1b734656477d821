"""Consumers of subscriptions."""

from contextlib import ExitStack

import pytest

from tests.support.consumer import Consumer


@pytest.fixture
def open_consumer(api):
    """`consumer(subscription, batch_limit=2)` opens a stream."""
    with ExitStack() as streams:
        yield lambda *args, **parameters: streams.enter_context(Consumer(api, *args, **parameters))
