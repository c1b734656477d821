"""Which processes are alive, judged by the observed leases, whatever the clocks say."""

from datetime import timedelta

import pytest

from nakadi.engines.memory.coordination import MemoryCoordination
from nakadi.subscriptions.api.lease_watch import CLOCK_MARGIN, LEASE_DURATION, LeaseWatch, sessions_without_lease
from tests.support.clock import HandMovedClock
from tests.support.coordination import a_session

TURN = LEASE_DURATION.total_seconds() / 4
WHOLE = (LEASE_DURATION + CLOCK_MARGIN).total_seconds()


class LeaseSetup:
    """A process with a lease, and another one that watches it."""

    def __init__(self) -> None:
        self.clock = HandMovedClock()
        self.coordination = MemoryCoordination()
        self.watch = LeaseWatch(self.coordination, self.clock)

    def renew(self, behind: float = 0.0) -> None:
        """The process renews its lease, with a clock that may be behind the watcher's."""
        self.coordination.renew_lease("one", self.clock.now() - timedelta(seconds=behind) + LEASE_DURATION)

    def is_alive(self) -> bool:
        return "one" in self.watch.live_holders()


@pytest.fixture
def setup():
    return LeaseSetup()


def test_sessions_without_a_lease_are_dead(setup):
    """A session is alive as long as its process has a lease. (S318)"""
    setup.renew()
    sessions = [a_session("a", process_id="one"), a_session("b", process_id="two")]
    assert sessions_without_lease(sessions, setup.watch.live_holders()) == {"b"}


def test_a_lease_that_was_never_looked_at_is_believed(setup):
    """A new process sees at once which other processes are dead, a margin after their leases have expired. (S318,
    S225)"""
    setup.renew()
    setup.clock.move(WHOLE - 0.001)
    assert setup.is_alive()
    setup.clock.move(0.001)
    assert not LeaseWatch(setup.coordination, setup.clock).live_holders()


def test_a_lease_is_dead_after_its_length(setup):
    """A lease that is not renewed has expired also for processes that have watched it all the time. (S225)"""
    setup.renew()
    seen = []
    for _ in range(10):
        seen.append(setup.is_alive())
        setup.clock.move(TURN)
    assert seen == [True] * 5 + [False] * 5


def test_a_lease_of_the_future_is_dead_after_its_length(setup):
    """A process died before the clock was set back: its lease lasts an hour longer by the clock, but has expired once
    it was seen unchanged for its duration. (S318, S170)"""
    setup.renew()
    setup.clock.set_back(3600)
    assert setup.is_alive()
    setup.clock.move(WHOLE - 0.001)
    assert setup.is_alive()
    setup.clock.move(0.001)
    assert not setup.is_alive()


@pytest.mark.parametrize("behind", [0, 3600, -3600])
def test_who_renews_is_alive_whatever_its_clock_says(setup, behind):
    """A process whose clock becomes wrong while it is watched stays alive as long as it renews its lease. (S318)"""
    setup.renew()
    assert setup.is_alive()
    for _ in range(20):
        setup.clock.move(TURN)
        setup.renew(behind)
        assert setup.is_alive()


def test_a_clock_that_is_set_back_takes_no_one_for_dead(setup):
    """Live processes stay alive when all clocks are set back between two renewals, and afterwards. (S318)"""
    for _ in range(3):
        setup.renew()
        assert setup.is_alive()
        setup.clock.set_back(3600)
        assert setup.is_alive()
        setup.clock.move(TURN)
        assert setup.is_alive()


def test_who_was_dead_can_come_back(setup):
    """A process that renews its lease after it was considered dead is alive again."""
    setup.renew()
    assert setup.is_alive()
    setup.clock.move(WHOLE)
    assert not setup.is_alive()
    setup.renew()
    assert setup.is_alive()


def test_a_slow_answer_takes_no_one_for_dead(setup):
    """Leases are judged by the time before they were read, because later renewals are unknown. (S318)"""
    setup.renew()
    assert setup.is_alive()
    setup.clock.move(TURN)
    leases = setup.coordination.lease_expiries

    def slowly():
        setup.renew()
        found = leases()
        setup.clock.move(WHOLE)
        return found

    setup.coordination.lease_expiries = slowly
    assert setup.is_alive()
    setup.coordination.lease_expiries = leases
    setup.clock.move(WHOLE - 0.001)
    assert setup.is_alive()


def test_a_clock_that_is_set_back_while_leases_are_read_takes_no_one_for_dead(setup):
    """If the clock is set back while leases are read, a lease that was renewed by the new time seems to have expired
    long ago by the old time; its process still counts as alive. (S318)
    """
    leases = setup.coordination.lease_expiries

    def meanwhile():
        setup.clock.set_back(3600)
        setup.renew()
        return leases()

    setup.coordination.lease_expiries = meanwhile
    assert setup.is_alive()
