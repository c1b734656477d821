"""Setting offsets while there are sessions."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from nakadi.model.coordination import Reset
from nakadi.model.cursor import Position
from nakadi.model.outcomes import Conflict, TryLater, Unavailable
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import MOST_PLACES
from nakadi.subscriptions import liveness
from nakadi.subscriptions.assignments import being_reset
from nakadi.subscriptions.resets import marked, unmarked
from tests.support.api import problem
from tests.support.builders import A_MOMENT
from tests.support.coordination import an_assignment
from tests.support.patience import PATIENCE, until
from tests.support.subscriptions import a_cursor, cursors, published, reset


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


class TestReset:
    def test_waits_for_sessions_to_end(self, house, threads):
        """The offsets are set once the last session is gone, and nobody joins meanwhile. (S137, S138, S141, S314)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        session = house.session(subscription)
        house.commit(subscription, session, a_cursor(name, "0", 4))
        resetting = threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1))
        until(lambda: house.assignment(subscription).reset)
        with pytest.raises(Conflict, match="Resetting subscription cursors request is still in progress"):
            house.session(subscription, EventTypePartition(name, "0"))
        assert cursors(house.api, subscription) == {(name, "0"): published(4)}
        house.leave(subscription, session)
        assert resetting.result(PATIENCE).status_code == 204
        assert cursors(house.api, subscription) == {(name, "0"): published(1)}
        assert house.assignment(subscription).reset is None
        house.session(subscription)

    def test_takes_commits_while_it_waits(self, house, threads):
        """A session that is asked to end may still commit, and the reset has the last word. (S137, S210)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        session = house.session(subscription)
        resetting = threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1))
        until(lambda: house.assignment(subscription).reset)
        assert house.commit(subscription, session, a_cursor(name, "0", 3)).status_code == 204
        house.leave(subscription, session)
        assert resetting.result(PATIENCE).status_code == 204
        assert cursors(house.api, subscription) == {(name, "0"): published(1)}

    def test_is_one_at_a_time(self, house, threads):
        """While one reset is under way another is refused; when it is done it is not. (S140)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        session = house.session(subscription)
        first = threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1))
        until(lambda: house.assignment(subscription).reset)
        second = reset(house.api, subscription, a_cursor(name, "0", 2))
        assert problem(second, 409) == "Cursors reset is already in progress for provided subscription"
        house.leave(subscription, session)
        assert first.result(PATIENCE).status_code == 204
        assert reset(house.api, subscription, a_cursor(name, "0", 2)).status_code == 204

    def test_gives_up(self, hasty):
        """If sessions do not end in time, nothing is set and the answer is to try later. (S139)

        It is 503, for it is worth trying again."""
        name = hasty.event_type(events=5)
        subscription = hasty.subscription(name)
        hasty.session(subscription)
        answer = reset(hasty.api, subscription, a_cursor(name, "0", 1))
        assert problem(answer, 503) == "Timeout resetting cursors"
        assert cursors(hasty.api, subscription) == {(name, "0"): published(-1)}
        assert hasty.assignment(subscription).reset is None

    def test_without_cursors_disturbs_nobody(self, house):
        """An empty reset neither waits nor asks anybody to end. (S135)"""
        subscription = house.subscription()
        house.session(subscription)
        before = house.assignment(subscription)
        assert reset(house.api, subscription).status_code == 204
        assert house.assignment(subscription) == before

    def test_buries_the_dead(self, house):
        """Sessions whose process has died are taken out, and not waited for. (S225, S318)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        house.coordination.renew("another process", house.clock.now() + liveness.LEASE)
        house.session(subscription, holder="another process")
        house.clock.move((liveness.LEASE + liveness.MARGIN).total_seconds())
        assert reset(house.api, subscription, a_cursor(name, "0", 1)).status_code == 204
        assert cursors(house.api, subscription) == {(name, "0"): published(1)}

    def test_does_not_wait_for_the_dead_of_the_future(self, house, threads):
        """A session whose process died before the clock was set back is waited for as long as a lease lasts, not
        as long as the clock is behind. (S225, S318)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        house.coordination.renew("another process", house.clock.now() + liveness.LEASE)
        house.session(subscription, holder="another process")
        house.clock.set_back(3600)
        looks, leases = [], house.coordination.leases
        house.coordination.leases = lambda: looks.append(1) or leases()
        resetting = threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1))
        until(lambda: len(looks) > 1)
        house.clock.move((liveness.LEASE + liveness.MARGIN).total_seconds())
        assert resetting.result(60).status_code == 204

    def test_notices_who_dies_while_it_waits(self, house, threads):
        """A session that dies meanwhile is noticed before long. (S225)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        house.coordination.renew("another process", house.clock.now() + liveness.LEASE)
        house.session(subscription, holder="another process")
        resetting = threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1))
        until(lambda: house.assignment(subscription).reset)
        house.coordination.release("another process")
        assert resetting.result(PATIENCE).status_code == 204

    def test_of_what_is_not_there_begins_anew(self, house):
        """Where nothing is known of a subscription's streams, setting cursors begins with first offsets. (S145)

        It is not refused: what is missing can be made."""
        name = house.event_type(events=3)
        subscription = house.subscription(name)
        house.coordination.forget(subscription["id"])
        assert reset(house.api, subscription, a_cursor(name, "0", 1)).status_code == 204
        assert cursors(house.api, subscription) == {(name, "0"): published(1)}

    def test_clears_what_is_known_of_failures(self, house):
        """Counts of failed commits and searches go, of the partitions that are reset alone. (S142, S263)"""
        name = house.event_type(partitions=2)
        subscription = house.subscription(name)
        old = house.assignment(subscription)
        troubled = tuple(replace(each, fails=3, search_end=Position(1, 7)) for each in old.entries)
        house.coordination.write(subscription["id"], old, replace(old, entries=troubled), A_MOMENT)
        reset(house.api, subscription, a_cursor(name, "0", -1))
        first, second = house.assignment(subscription).entries
        assert (first.fails, first.search_end) == (0, None)
        assert (second.fails, second.search_end) == (3, Position(1, 7))

    def test_of_very_many_partitions_takes_several_writes(self, house):
        """More partitions than fit one write are all set. (S133, S134)"""
        names = [house.event_type(partitions=8) for _ in range(12)]
        grown = house.event_type()
        subscription = house.subscription(*names, grown)
        house.api.put(f"/event-types/{grown}/partition-count", json={"partition_count": 8})
        for name in (*names, grown):
            house.api.post(f"/event-types/{name}/events", json=[{}] * 3)
        there = cursors(house.api, subscription)
        assert len(there) == 104 > MOST_PLACES
        assert reset(house.api, subscription, *(a_cursor(*place, "BEGIN") for place in there)).status_code == 204
        assert house.assignment(subscription).reset is None

    def test_stops_when_its_time_was_taken_away(self, house):
        """A reset whose marker is not there any more sets nothing. (S144, S314)"""
        name = house.event_type(events=3)
        subscription = house.subscription(name)
        resets, placed = house.subscribing.resets, {EventTypePartition(name, "0"): Position(1, 1)}
        with pytest.raises(TryLater):
            resets._set(subscription["id"], "another marker", placed)
        assert cursors(house.api, subscription) == {(name, "0"): published(-1)}

    def test_is_refused_while_the_store_is_away(self, house):
        """A store that does not answer is 503. (S108, S130)"""
        name = house.event_type(events=3)
        subscription = house.subscription(name)
        session = house.session(subscription)
        house.coordination.close()
        for answer in (
            reset(house.api, subscription, a_cursor(name)),
            house.commit(subscription, session, a_cursor(name, "0", 1)),
            house.api.get(f"/subscriptions/{subscription['id']}/cursors"),
            house.api.get(f"/subscriptions/{subscription['id']}/stats"),
        ):
            problem(answer, 503)


class TestMarkers:
    NOW = A_MOMENT
    MINE = Reset("mine", A_MOMENT + timedelta(seconds=5))

    def test_stand_alone(self):
        """A marker goes up where none stands, or one whose time has passed. (S140, S144)"""
        assert marked(an_assignment(""), self.MINE, self.NOW).reset == self.MINE
        abandoned = an_assignment("", reset=Reset("other", self.NOW))
        assert marked(abandoned, self.MINE, self.NOW).reset == self.MINE
        with pytest.raises(Conflict):
            marked(an_assignment("", reset=Reset("other", A_MOMENT + timedelta(seconds=1))), self.MINE, self.NOW)

    def test_of_the_future_do_not_count(self):
        """A marker that went up before the clock was set back keeps nobody away, however long the clock is behind.
        Clocks may differ a little. (S140, S144)"""
        up = an_assignment("", reset=replace(self.MINE, since=A_MOMENT))
        assert not being_reset(up, A_MOMENT - timedelta(hours=1))
        assert being_reset(up, A_MOMENT - liveness.MARGIN)
        assert being_reset(up, A_MOMENT)
        assert not being_reset(up, self.MINE.until)

    def test_are_taken_down_by_whoever_put_them_up(self):
        """Taking down somebody else's marker, or none, changes nothing. (S144)"""
        standing = an_assignment("", reset=self.MINE)
        assert unmarked(standing, "mine").reset is None
        assert unmarked(standing, "other") == standing
        assert unmarked(an_assignment(""), "mine") == an_assignment("")


class TestRepartitioning:
    def test_ends_the_streams_of_those_that_got_partitions(self, house, threads):
        """The sessions of subscriptions to the event type are asked to end, as for a reset; who comes back has the new
        partitions. (S293, S295, R211)"""
        name = house.event_type()
        subscription = house.subscription(name)
        session = house.session(subscription)
        growing = threads.submit(house.api.put, f"/event-types/{name}/partition-count", json={"partition_count": 3})
        until(lambda: house.assignment(subscription).reset)
        assert [each.owner for each in house.assignment(subscription).entries] == [session, None, None]
        with pytest.raises(Conflict, match="still in progress"):
            house.session(subscription)
        house.leave(subscription, session)
        assert growing.result(PATIENCE).status_code == 204
        again = house.session(subscription)
        assert [each.owner for each in house.assignment(subscription).entries] == [again] * 3

    def test_does_not_disturb_others(self, house):
        """Subscriptions to other event types, and asking for the count that there is, disturb nobody. (S295)"""
        name, other = house.event_type(), house.event_type()
        bystander, subscription = house.subscription(other), house.subscription(name)
        house.session(bystander)
        house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        house.session(subscription)
        answer = house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        assert answer.status_code == 204
        assert len(house.assignment(subscription).sessions) == len(house.assignment(bystander).sessions) == 1

    def test_tells_if_streams_do_not_end(self, hasty):
        """If streams do not end in time the answer says so; the partitions are there all the same. (S298)"""
        name = hasty.event_type()
        subscription = hasty.subscription(name)
        hasty.session(subscription)
        answer = hasty.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        assert problem(answer, 503) == "Timeout resetting cursors"
        assert len(cursors(hasty.api, subscription)) == 2

    def test_is_finished_by_whoever_asks_again(self, house):
        """If the subscriptions could not be reached, asking again gives them their partitions. (S293)"""
        name = house.event_type()
        subscription = house.subscription(name)
        house.subscribing.coordination.write, real = _unavailable, house.coordination.write
        refused = house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        house.coordination.write = real
        assert refused.status_code == 503
        assert len(cursors(house.api, subscription)) == 1
        assert house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2}).status_code == 204
        assert len(cursors(house.api, subscription)) == 2


def _unavailable(*_):
    raise Unavailable("not now")
