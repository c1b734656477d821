"""What the tests of the Kinesis engine share."""

import pytest

from tests.support.kinesis_faults import a_world


@pytest.fixture
def world():
    with a_world() as made:
        yield made
