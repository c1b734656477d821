"""When a worker counts as silent, and when the supervisor ends it."""

import pytest

from nakadi.local.heartbeats import Heartbeat, Pulse, SilenceLimits

LIMITS = SilenceLimits(until_noticed=10, until_ended=30, until_serving=100)


@pytest.fixture
def heartbeat():
    """The heartbeat of a worker that began to serve as soon as it was started."""
    heartbeat = Heartbeat(LIMITS, 0)
    heartbeat.note_serving(0)
    return heartbeat


def look_every_second(heartbeat, first, last):
    """The moments at which looks change the pulse, and the pulse from then on."""
    return {now: heartbeat.pulse for now in range(first, last + 1) if heartbeat.look(now)}


def test_a_worker_that_beats_answers(heartbeat):
    """A worker that beats now and then answers, however often the supervisor looks."""
    for now in range(1, 500):
        assert not heartbeat.look(now)
        if now % 9 == 0:
            assert not heartbeat.note_beat(now)
    assert heartbeat.pulse is Pulse.ANSWERING


def test_a_silent_worker_is_noticed_and_then_ended(heartbeat):
    """A worker without beats is noticed as silent once, and later ended once."""
    assert look_every_second(heartbeat, 1, 100) == {10: Pulse.SILENT, 30: Pulse.ENDED}


def test_a_worker_that_answers_again_is_not_ended(heartbeat):
    """A beat ends the silence, and the next silence begins with it."""
    assert look_every_second(heartbeat, 1, 29) == {10: Pulse.SILENT}
    assert heartbeat.note_beat(29)
    assert heartbeat.pulse is Pulse.ANSWERING
    assert look_every_second(heartbeat, 30, 100) == {39: Pulse.SILENT, 59: Pulse.ENDED}


def test_a_beat_after_the_end_changes_nothing(heartbeat):
    """A worker that is being killed gets no connections, even if a beat of it arrives late."""
    look_every_second(heartbeat, 1, 30)
    assert not heartbeat.note_beat(31)
    assert heartbeat.pulse is Pulse.ENDED


@pytest.mark.parametrize("before", [5, 29])
def test_a_late_supervisor_begins_again(heartbeat, before):
    """After the supervisor itself did not run for a while, for example because the laptop slept, the time of silence
    begins again.
    """
    look_every_second(heartbeat, 1, before)
    assert not heartbeat.look(1000)
    changes = look_every_second(heartbeat, 1001, 1100)
    assert changes.pop(1010, Pulse.SILENT) is Pulse.SILENT
    assert changes == {1030: Pulse.ENDED}


def test_a_supervisor_that_is_always_late_ends_nobody(heartbeat):
    """On a machine that runs the supervisor only now and then, no worker counts as silent, and none is ended."""
    assert not any(heartbeat.look(now) for now in range(4, 1000, 4))


def test_a_worker_that_does_not_begin_to_serve_is_ended():
    """A worker that starts has its own, longer time. Its beats prolong nothing: its event loop runs, but a thread may
    hang that has to read the worker's files first.
    """
    heartbeat = Heartbeat(LIMITS, 0)
    for now in range(1, 100):
        assert not heartbeat.look(now)
        assert not heartbeat.note_beat(now)
    assert heartbeat.pulse is Pulse.STARTING
    assert heartbeat.look(100)
    assert heartbeat.pulse is Pulse.ENDED


def test_a_worker_that_serves_late_is_silent_only_from_then_on():
    """The time of a slow start is no silence of the worker."""
    heartbeat = Heartbeat(LIMITS, 0)
    assert look_every_second(heartbeat, 1, 99) == {}
    heartbeat.note_serving(99)
    assert heartbeat.pulse is Pulse.ANSWERING
    assert look_every_second(heartbeat, 100, 200) == {109: Pulse.SILENT, 129: Pulse.ENDED}


def test_a_worker_that_serves_too_late_is_ended():
    """A worker that is being killed gets no connections, even if it begins to serve at that moment."""
    heartbeat = Heartbeat(LIMITS, 0)
    look_every_second(heartbeat, 1, 100)
    heartbeat.note_serving(101)
    assert heartbeat.pulse is Pulse.ENDED
