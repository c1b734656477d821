"""All pages of the console on a phone, checked with axe; and some tasks by keyboard alone."""

import pytest


@pytest.mark.long
def test_everywhere(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
