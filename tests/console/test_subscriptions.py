"""Subscriptions and parked events in the console."""


def test_subscriptions(failure):
    """The console does what the sentence says."""
    assert not failure, failure
