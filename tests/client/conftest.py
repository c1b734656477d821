"""A broker in this process, and calls to it for tests of the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nakadi_client.testing import LocalNakadi, Network


@pytest.fixture
def nakadi() -> Iterator[LocalNakadi]:
    with LocalNakadi() as nakadi:
        yield nakadi


@pytest.fixture
def breakable_network(nakadi) -> Iterator[Network]:
    """A breakable network between the client and the broker."""
    with Network(nakadi.url) as network:
        yield network
