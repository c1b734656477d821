"""The pages of an event type in the console."""


def test_event_type(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
