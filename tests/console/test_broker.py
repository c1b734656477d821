"""The broker and dead letters in the console."""


def test_broker(failure):
    """The console does what the sentence says."""
    assert not failure, failure
