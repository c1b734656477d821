"""Watching, filtering, exporting and publishing events in the console."""


def test_events(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
