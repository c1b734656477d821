"""Creating and changing event types in the console."""

import pytest


@pytest.mark.long
def test_create_and_change(failure):
    """Each sentence in the module's script names a test, which passes in the browser."""
    assert not failure, failure
