"""Checks all pages of the console on a phone and with axe, and some tasks with the keyboard alone."""

import pytest


@pytest.mark.long
def test_everywhere(failure):
    """Each sentence in the module's script names a test, which passes in the browser."""
    assert not failure, failure
