"""Creating and changing event types in the console."""

import pytest


@pytest.mark.long
def test_create_and_change(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
