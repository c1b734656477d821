"""Fixtures for the tests of the Kinesis engine."""

import pytest

from tests.support.kinesis_faults import a_faulty_kinesis


@pytest.fixture
def faulty_kinesis():
    with a_faulty_kinesis() as made:
        yield made
