"""The lease of a process, and how it removes the sessions of dead processes with the same subscriptions."""

from datetime import timedelta

import pytest

from nakadi.engines.memory.coordination import MemoryCoordination
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EMPTY_ASSIGNMENT
from nakadi.subscriptions.api.lease_watch import CLOCK_MARGIN, LEASE_DURATION
from nakadi.subscriptions.stream.leases import LeaseKeeper, renew_and_clean_up
from nakadi.subscriptions.stream.members import SubscriptionSessions
from tests.support.clock import HandMovedClock
from tests.support.coordination import a_session, an_assignment

OTHER = "another process"


class ReadCountingCoordination(MemoryCoordination):
    def __init__(self):
        super().__init__()
        self.looks = 0

    def lease_expiries(self):
        self.looks += 1
        return super().lease_expiries()


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def coordination():
    return ReadCountingCoordination()


@pytest.fixture
def host(coordination, clock):
    return LeaseKeeper(coordination, clock, lambda: "this process")


def a_shared_subscription(coordination, clock, subscription, *holders):
    """A subscription in which each of these processes has a session with a partition."""
    sessions = [a_session(f"{subscription}-{each}", process_id=each) for each in holders]
    new = an_assignment(*[each.id for each in sessions], sessions=sessions)
    offsets = {each.partition: Position(1, -1) for each in new.entries}
    members = SubscriptionSessions(coordination, subscription, clock, execute_reset=print)
    return members, coordination.replace_assignment(subscription, EMPTY_ASSIGNMENT, new, clock.now(), offsets)


def test_one_look_at_leases_serves_all_subscriptions(host, coordination, clock):
    """However many subscriptions a process shares with others, it checks once per round which processes are alive; live
    processes get the partitions of dead ones. (S224, S239)"""
    subscriptions = [a_shared_subscription(coordination, clock, f"{each}", "this process", OTHER) for each in range(50)]
    renew_and_clean_up(host, subscriptions, lambda _: pytest.fail("nothing is left behind"))
    assert coordination.looks == 1
    for members, _ in subscriptions:
        found = members.assignment()
        assert [each.process_id for each in found.sessions] == ["this process"]
        assert {each.owner for each in found.entries} == {found.sessions[0].id}


def test_a_process_with_all_sessions_needs_no_other_lease(host, coordination, clock):
    """If all sessions are its own, a process reads no other leases."""
    subscriptions = [a_shared_subscription(coordination, clock, f"{each}", "this process") for each in range(50)]
    host.renew()
    renew_and_clean_up(host, subscriptions, lambda _: pytest.fail("nothing is left behind"))
    assert coordination.looks == 0


def test_a_turn_that_takes_long_takes_no_one_for_dead(host, coordination, clock):
    """Leases are judged by the time at which they were read, because they may have been renewed since. (S224, S318)"""
    gone = a_shared_subscription(coordination, clock, "gone", "this process", "dead process")
    alive = a_shared_subscription(coordination, clock, "alive", "this process", OTHER)
    coordination.renew_lease(OTHER, clock.now() + LEASE_DURATION)
    host.renew()

    def slowly():
        yield gone
        clock.move((LEASE_DURATION + CLOCK_MARGIN + timedelta(seconds=1)).total_seconds())
        coordination.renew_lease(OTHER, clock.now() + LEASE_DURATION)
        yield alive

    host.remove_expired_sessions(slowly())
    assert len(gone[0].assignment().sessions) == 1
    assert len(alive[0].assignment().sessions) == 2


def test_a_renewal_that_comes_too_late_is_worth_nothing(host, coordination, clock):
    """A lease that expires before the answer to its renewal arrives has expired: other processes could see that, so its
    sessions have ended. Later sessions have a new lease. (S318)"""
    lease = host.ensure_lease()
    clock.move(LEASE_DURATION.total_seconds() - 1)

    def renewed_slowly(_holder, _until):
        clock.move(3)

    coordination.renew_lease = renewed_slowly
    with pytest.raises(Unavailable):
        host.renew()
    assert not lease.is_valid(clock.monotonic())
    coordination.renew_lease = lambda _holder, _until: None
    assert host.ensure_lease() is not lease
    assert host.ensure_lease().is_valid(clock.monotonic())
    assert not lease.is_valid(clock.monotonic())


def test_a_subscription_that_fails_does_not_keep_the_others(host, coordination, clock, caplog):
    """A removal that fails for one subscription is logged and retried; for the others, it succeeds. (S224, S239)"""
    subscriptions = [
        a_shared_subscription(coordination, clock, name, "this process", OTHER) for name in ("broken", "fine")
    ]
    (broken, _), (fine, _) = subscriptions
    host.remove_session_later("broken", "broken-this process")
    host.remove_session_later("fine", "fine-this process")
    write = coordination.replace_assignment

    def unless_broken(subscription, *rest):
        if subscription == "broken":
            raise RuntimeError("a mistake")
        return write(subscription, *rest)

    coordination.replace_assignment = unless_broken
    renew_and_clean_up(host, subscriptions, {"broken": broken, "fine": fine}.get)
    assert fine.assignment().sessions == ()
    assert len(broken.assignment().sessions) == 2
    for what in ("removal of an ended session", "removal of expired sessions"):
        assert f"The {what} of broken failed, trying again later: RuntimeError('a mistake')" in caplog.text
    coordination.replace_assignment = write
    renew_and_clean_up(host, subscriptions, {"broken": broken, "fine": fine}.get)
    assert broken.assignment().sessions == ()
