"""Event types in the console."""


def test_event_types(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
