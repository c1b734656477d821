"""Event types in the console."""


def test_event_types(failure):
    """The console does what the sentence says."""
    assert not failure, failure
