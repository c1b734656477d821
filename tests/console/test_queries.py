"""Queries in the console: asked, answered, drawn and refused."""

import pytest


@pytest.fixture(scope="module")
def settings():
    """Queries have little time, so that one that takes too long is seen; and few rows."""
    return {"query_seconds": 60, "query_rows": 50}


def test_queries(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
