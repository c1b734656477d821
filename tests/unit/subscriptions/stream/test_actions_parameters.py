"""The parameters that a client requests for a stream, and those that the stream gets."""

import random

import pytest

from nakadi.model.outcomes import Invalid
from nakadi.subscriptions.stream.actions import SubscriptionStreamParameters, stream_limits


def limits(most=60, longest=None, **asked):
    return stream_limits(SubscriptionStreamParameters(**asked), most, random.Random(7).randint, longest)


def test_streams_do_not_all_end_at_once():
    """A stream without a timeout gets a random one between 3000 and 4199 seconds. (S149, S150)"""
    pick = random.Random(7).randint
    found = {
        stream_limits(SubscriptionStreamParameters(stream_timeout=given), 60, pick).stream_seconds
        for given in [None, 0, -1, 4201] * 500
    }
    assert 3000 <= min(found) < 3020
    assert 4180 < max(found) <= 4199
    assert len(found) > 800


@pytest.mark.parametrize(
    ("asked", "most", "seconds"), [(None, 60, 60), (0, 60, 60), (1, 60, 1), (60, 60, 60), (None, 5, 5)]
)
def test_the_commit_timeout(asked, most, seconds):
    """The commit timeout is the requested value, up to the maximum, which is also the default. (S205)"""
    assert limits(most, commit_timeout=asked).commit_seconds == seconds


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [(61, "commit_timeout can not be more than 60"), (-1, "commit_timeout can not be less than 0")],
)
def test_commit_timeouts_that_cannot_be(asked, refusal):
    """A commit timeout above the maximum, or a negative one, is refused. (S148, S205)"""
    with pytest.raises(Invalid, match=refusal):
        limits(commit_timeout=asked)


def test_a_host_that_bears_less():
    """If the host does not allow connections as long as the requested timeout, streams end earlier. (S149)"""
    assert 600 <= limits(longest=800, stream_timeout=900).stream_seconds <= 800
    assert limits(longest=800, stream_timeout=600).stream_seconds == 600
