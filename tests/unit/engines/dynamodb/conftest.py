"""Fixtures of the tests of the DynamoDB engine."""

import pytest

from tests.support.aws import aws_with_tables


@pytest.fixture
def aws():
    with aws_with_tables() as made:
        yield made
