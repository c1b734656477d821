"""What the tests of the routes share."""

import pytest

from tests.support.publishing import House


@pytest.fixture
def house():
    """A publisher with everything around it in memory."""
    return House()
