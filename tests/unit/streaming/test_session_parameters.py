"""The parameters of a stream."""

import random

import pytest

from nakadi.model.outcomes import Invalid
from nakadi.streaming.session import StreamLimits, StreamParameters, stream_limits


def smallest(shortest: int, longest: int) -> int:
    assert shortest <= longest
    return shortest


def biggest(shortest: int, longest: int) -> int:
    assert shortest <= longest
    return longest


def test_everything_has_a_default():
    """Without parameters, a stream sends single events, waits 30 s, and lasts for a random time from 3000 to 4199 s.
    (L1, L50)"""
    expected = {"batch_limit": 1, "stream_limit": 0, "flush_seconds": 30, "keep_alive_limit": 0}
    assert stream_limits(StreamParameters(), smallest) == StreamLimits(stream_seconds=3000, **expected)
    assert stream_limits(StreamParameters(), biggest) == StreamLimits(stream_seconds=4199, **expected)


def test_everything_can_be_asked_for():
    """The stream uses the parameters that are given, if they are allowed. (L1)"""
    asked = StreamParameters(
        batch_limit=10, stream_limit=20, batch_flush_timeout=5, stream_timeout=60, stream_keep_alive_limit=3
    )
    assert stream_limits(asked, smallest) == StreamLimits(
        batch_limit=10, stream_limit=20, flush_seconds=5, stream_seconds=60, keep_alive_limit=3
    )


@pytest.mark.parametrize("seconds", [None, 0, -1, 4201, 100_000])
def test_a_stream_timeout_out_of_range_is_replaced(seconds):
    """A stream timeout that is missing, not positive or above 4200 s is replaced rather than refused. (L1, L8)"""
    assert stream_limits(StreamParameters(stream_timeout=seconds), smallest).stream_seconds == 3000


def test_the_longest_stream_timeout_is_taken_as_it_is():
    """A client may request 4200 s. (L1)"""
    assert stream_limits(StreamParameters(stream_timeout=4200), smallest).stream_seconds == 4200


def test_a_flush_timeout_of_zero_is_the_default():
    """A flush timeout of 0 means 30 s. (L1)"""
    assert stream_limits(StreamParameters(batch_flush_timeout=0), smallest).flush_seconds == 30


@pytest.mark.parametrize(
    ("asked", "detail"),
    [
        (StreamParameters(batch_limit=2, stream_limit=1), "stream_limit can't be lower than batch_limit"),
        (
            StreamParameters(batch_flush_timeout=10, stream_timeout=9),
            "stream_timeout can't be lower than batch_flush_timeout",
        ),
        (StreamParameters(stream_timeout=5), "stream_timeout can't be lower than batch_flush_timeout"),
        (StreamParameters(batch_limit=0), "batch_limit can't be lower than 1"),
        (StreamParameters(batch_limit=-1), "batch_limit can't be lower than 1"),
        (
            StreamParameters(batch_limit=2, stream_limit=1, batch_flush_timeout=10, stream_timeout=9),
            "stream_limit can't be lower than batch_limit",
        ),
        (
            StreamParameters(batch_limit=0, batch_flush_timeout=10, stream_timeout=9),
            "stream_timeout can't be lower than batch_flush_timeout",
        ),
    ],
)
def test_limits_that_contradict_each_other_are_refused(asked, detail):
    """The stream limit, the stream timeout and the batch limit are checked in order, and the first fault is reported.
    (L3, L4, L5, L6, L7)"""
    with pytest.raises(Invalid, match=f"^{detail}$"):
        stream_limits(asked, smallest)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (StreamParameters(stream_limit=-1), "stream_limit"),
        (StreamParameters(batch_flush_timeout=-1), "batch_flush_timeout"),
        (StreamParameters(stream_keep_alive_limit=-1), "stream_keep_alive_limit"),
    ],
)
def test_negative_numbers_are_refused(asked, name):
    """A negative limit is refused, because a stream could not comply with it. (L11)"""
    with pytest.raises(Invalid, match=f"^{name} can't be lower than"):
        stream_limits(asked, smallest)


@pytest.mark.parametrize("flush", [3001, 4199])
def test_a_long_flush_timeout_is_never_refused_by_chance(flush):
    """A random stream timeout is never below the flush timeout, so no request fails by chance. (L9, better)"""
    assert stream_limits(StreamParameters(batch_flush_timeout=flush), smallest).stream_seconds == flush


def test_a_flush_timeout_beyond_all_random_stream_timeouts_is_refused():
    """From 4200 s on, a flush timeout requires an explicit stream timeout. (L9)"""
    with pytest.raises(Invalid, match="stream_timeout"):
        stream_limits(StreamParameters(batch_flush_timeout=4200), biggest)
    assert stream_limits(StreamParameters(batch_flush_timeout=4200, stream_timeout=4200), biggest).flush_seconds == 4200


def test_the_place_where_we_run_may_end_streams_earlier():
    """A client that asks for more time than the host allows gets the maximum, and is not refused. (L1)"""
    limits = stream_limits(
        StreamParameters(batch_flush_timeout=1000, stream_timeout=2000), biggest, max_stream_seconds=840
    )
    assert limits.stream_seconds == 840
    assert stream_limits(StreamParameters(stream_timeout=60), smallest, max_stream_seconds=840).stream_seconds == 60


def test_streams_that_end_because_of_the_place_do_not_end_together():
    """Random timeouts are in the last quarter of the allowed range; shorter requested ones stay. (L1)"""
    picks = random.Random(7).randint
    ends = {stream_limits(StreamParameters(), picks, max_stream_seconds=840).stream_seconds for _ in range(200)}

    assert len(ends) > 50
    assert 630 <= min(ends) < 650
    assert 820 < max(ends) <= 840
    assert stream_limits(StreamParameters(stream_timeout=700), smallest, max_stream_seconds=840).stream_seconds == 630
    assert stream_limits(StreamParameters(stream_timeout=700), biggest, max_stream_seconds=840).stream_seconds == 700


def test_a_place_may_bound_the_silence():
    """If the host would end a response after a pause of more than 240 s, a stream sends a line earlier than
    requested."""
    asked = StreamParameters(batch_flush_timeout=1000, stream_timeout=2000)

    assert stream_limits(asked, smallest, longest_silence_seconds=240).flush_seconds == 240
    assert stream_limits(StreamParameters(), smallest, longest_silence_seconds=240).flush_seconds == 30
