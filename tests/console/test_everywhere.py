"""Checks all pages of the console on a phone and with axe, and some tasks with the keyboard alone."""

import pytest


@pytest.mark.long
def test_everywhere(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
