"""Running queries in the console: their results, charts and refusals."""

import pytest


@pytest.fixture(scope="module")
def settings():
    """Queries have little time and few rows, so the tests reach both limits."""
    return {"query_seconds": 60, "query_rows": 50}


def test_queries(failure):
    """Each sentence in the module's script names a test, which passes in the browser."""
    assert not failure, failure
