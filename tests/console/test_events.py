"""Events in the console: watched, filtered, exported and published."""


def test_events(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
