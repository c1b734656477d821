"""Watching, filtering, exporting and publishing events in the console."""


def test_events(failure):
    """Each sentence in the module's script names a test, which passes in the browser."""
    assert not failure, failure
