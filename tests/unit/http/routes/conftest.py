"""Fixtures for the tests of the routes."""

import pytest

from tests.support.publishing import PublisherInMemory


@pytest.fixture
def house():
    """A publisher with all its collaborators in memory."""
    return PublisherInMemory()
