"""All pages of the console: by keyboard, on a phone, and by axe."""

import pytest


@pytest.mark.long
def test_everywhere(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
