"""The pages of an event type in the console."""


def test_event_type(failure):
    """Each sentence in the module's script names a test, which passes in the browser."""
    assert not failure, failure
