import pytest

from tests.support.publishing import PublisherInMemory


@pytest.fixture
def house():
    """A publisher with everything around it in memory."""
    return PublisherInMemory()
