"""Which processes are alive, judged by the observed leases, whatever the clocks say."""

from datetime import timedelta

import pytest

from nakadi.engines.memory.coordination import MemoryCoordination
from nakadi.subscriptions.api.lease_watch import CLOCK_MARGIN, LEASE_DURATION, LeaseWatch, sessions_without_lease
from tests.support.clock import HandMovedClock
from tests.support.coordination import a_session

TURN = LEASE_DURATION.total_seconds() / 4
WHOLE = (LEASE_DURATION + CLOCK_MARGIN).total_seconds()


class LeaseCase:
    """A process with a lease, and another one that watches it."""

    def __init__(self) -> None:
        self.clock = HandMovedClock()
        self.coordination = MemoryCoordination()
        self.watch = LeaseWatch(self.coordination, self.clock)

    def renew(self, behind: float = 0.0) -> None:
        """The process renews its lease, by a clock that may be behind the watcher's."""
        self.coordination.renew_lease("one", self.clock.now() - timedelta(seconds=behind) + LEASE_DURATION)

    def is_alive(self) -> bool:
        return "one" in self.watch.live_holders()


@pytest.fixture
def case():
    return LeaseCase()


def test_sessions_without_a_lease_are_dead(case):
    """A session is alive as long as its process has a lease. (S318)"""
    case.renew()
    sessions = [a_session("a", process_id="one"), a_session("b", process_id="two")]
    assert sessions_without_lease(sessions, case.watch.live_holders()) == {"b"}


def test_a_lease_that_was_never_looked_at_is_believed(case):
    """A new process sees at once which other processes are dead, a margin after their leases have expired. (S318,
    S225)"""
    case.renew()
    case.clock.move(WHOLE - 0.001)
    assert case.is_alive()
    case.clock.move(0.001)
    assert not LeaseWatch(case.coordination, case.clock).live_holders()


def test_a_lease_is_dead_after_its_length(case):
    """A lease that is not renewed has expired also for processes that have watched it all the time. (S225)"""
    case.renew()
    seen = []
    for _ in range(10):
        seen.append(case.is_alive())
        case.clock.move(TURN)
    assert seen == [True] * 5 + [False] * 5


def test_a_lease_of_the_future_is_dead_after_its_length(case):
    """A process died before the clock was set back: its lease lasts an hour longer by the clock, but has expired once
    it was seen unchanged for its duration. (S318, S170)"""
    case.renew()
    case.clock.set_back(3600)
    assert case.is_alive()
    case.clock.move(WHOLE - 0.001)
    assert case.is_alive()
    case.clock.move(0.001)
    assert not case.is_alive()


@pytest.mark.parametrize("behind", [0, 3600, -3600])
def test_who_renews_is_alive_whatever_its_clock_says(case, behind):
    """A process whose clock goes wrong while it is watched stays alive as long as it renews its lease. (S318)"""
    case.renew()
    assert case.is_alive()
    for _ in range(20):
        case.clock.move(TURN)
        case.renew(behind)
        assert case.is_alive()


def test_a_clock_that_is_set_back_takes_no_one_for_dead(case):
    """Live processes stay alive when all clocks are set back between two renewals, and afterwards. (S318)"""
    for _ in range(3):
        case.renew()
        assert case.is_alive()
        case.clock.set_back(3600)
        assert case.is_alive()
        case.clock.move(TURN)
        assert case.is_alive()


def test_who_was_dead_can_come_back(case):
    """A process that renews its lease after it was considered dead is alive again."""
    case.renew()
    assert case.is_alive()
    case.clock.move(WHOLE)
    assert not case.is_alive()
    case.renew()
    assert case.is_alive()


def test_a_slow_answer_takes_no_one_for_dead(case):
    """Leases are judged by the time before they were read, because later renewals are unknown. (S318)"""
    case.renew()
    assert case.is_alive()
    case.clock.move(TURN)
    leases = case.coordination.lease_expiries

    def slowly():
        case.renew()
        found = leases()
        case.clock.move(WHOLE)
        return found

    case.coordination.lease_expiries = slowly
    assert case.is_alive()
    case.coordination.lease_expiries = leases
    case.clock.move(WHOLE - 0.001)
    assert case.is_alive()


def test_a_clock_that_is_set_back_while_leases_are_read_takes_no_one_for_dead(case):
    """A lease that was written by the new time would have expired long ago by the old time. (S318)"""
    leases = case.coordination.lease_expiries

    def meanwhile():
        case.clock.set_back(3600)
        case.renew()
        return leases()

    case.coordination.lease_expiries = meanwhile
    assert case.is_alive()
