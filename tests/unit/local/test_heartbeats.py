"""When a worker counts as silent, and when the supervisor ends it."""

import pytest

from nakadi.local.heartbeats import Heartbeat, Pulse, SilenceLimits

LIMITS = SilenceLimits(until_noticed=10, until_ended=30)


def look_every_second(heartbeat, first, last):
    """The moments at which looks change the pulse, and the pulse from then on."""
    return {now: heartbeat.pulse for now in range(first, last + 1) if heartbeat.look(now)}


def test_a_worker_that_beats_answers():
    """A worker that beats now and then answers, however often the supervisor looks."""
    heartbeat = Heartbeat(LIMITS, 0)
    for now in range(1, 500):
        assert not heartbeat.look(now)
        if now % 9 == 0:
            assert not heartbeat.note_beat(now)
    assert heartbeat.pulse is Pulse.ANSWERING


def test_a_silent_worker_is_noticed_and_then_ended():
    """A worker without beats is noticed as silent once, and later ended once."""
    heartbeat = Heartbeat(LIMITS, 0)
    assert look_every_second(heartbeat, 1, 100) == {10: Pulse.SILENT, 30: Pulse.ENDED}


def test_a_worker_that_answers_again_is_not_ended():
    """A beat ends the silence, and the next silence begins with it."""
    heartbeat = Heartbeat(LIMITS, 0)
    assert look_every_second(heartbeat, 1, 29) == {10: Pulse.SILENT}
    assert heartbeat.note_beat(29)
    assert heartbeat.pulse is Pulse.ANSWERING
    assert look_every_second(heartbeat, 30, 100) == {39: Pulse.SILENT, 59: Pulse.ENDED}


def test_a_beat_after_the_end_changes_nothing():
    """A worker that is being killed gets no connections, even if a beat of it arrives late."""
    heartbeat = Heartbeat(LIMITS, 0)
    look_every_second(heartbeat, 1, 30)
    assert not heartbeat.note_beat(31)
    assert heartbeat.pulse is Pulse.ENDED


@pytest.mark.parametrize("before", [5, 29])
def test_a_late_supervisor_begins_again(before):
    """After the supervisor itself did not run for a while, for example because the laptop slept, the time of silence
    begins again.
    """
    heartbeat = Heartbeat(LIMITS, 0)
    look_every_second(heartbeat, 1, before)
    assert not heartbeat.look(1000)
    changes = look_every_second(heartbeat, 1001, 1100)
    assert changes.pop(1010, Pulse.SILENT) is Pulse.SILENT
    assert changes == {1030: Pulse.ENDED}


def test_a_supervisor_that_is_always_late_ends_nobody():
    """On a machine that runs the supervisor only now and then, no worker counts as silent, and none is ended."""
    heartbeat = Heartbeat(LIMITS, 0)
    assert not any(heartbeat.look(now) for now in range(4, 1000, 4))
