"""Subscriptions and parked events in the console."""


def test_subscriptions(failure):
    """The console behaves as the sentence says."""
    assert not failure, failure
