"""Setting offsets while sessions exist."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from msgspec.structs import replace

from nakadi.model.event_type import Position
from nakadi.model.outcomes import Conflict, Unavailable
from nakadi.model.subscription import EndedReset, EventTypePartition, Redrive, Reset
from nakadi.ports.coordination import MAX_PARTITIONS_PER_WRITE
from nakadi.publishing.system_events import SystemEventPublisher
from nakadi.subscriptions.api import lease_watch
from nakadi.subscriptions.api.assignments import is_being_reset, with_reset_ended
from nakadi.subscriptions.api.offsets import (
    RESET_OUTCOME_RETENTION,
    STREAMS_NOT_ENDED_MESSAGE,
    ResetExecution,
    with_requested_reset,
    without_reported_task,
)
from nakadi.subscriptions.stream.actions import DepartureRecord
from nakadi.subscriptions.stream.leases import LeaseKeeper
from nakadi.subscriptions.stream.members import SubscriptionSessions
from tests.support.api import problem
from tests.support.builders import A_MOMENT
from tests.support.coordination import a_session, an_assignment
from tests.support.patience import PATIENCE, until
from tests.support.subscriptions import a_cursor, committed_offsets, offset_text, reset
from tests.unit.subscriptions.conftest import BrokerInMemory


@pytest.fixture
def impatient():
    """A broker whose requests may not wait."""
    opened = BrokerInMemory(longest_wait_seconds=-1)
    yield opened
    opened.close()


@pytest.fixture
def serving(impatient):
    """A function that returns the sessions of a subscription in a process that serves them and carries out resets."""

    def members(subscription):
        execute_reset = impatient.subscription_services.reset_execution.try_to_execute
        return SubscriptionSessions(impatient.coordination, subscription["id"], impatient.clock, execute_reset)

    return members


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


class TestReset:
    def test_waits_for_sessions_to_end(self, house, threads):
        """The offsets are set once the last session has ended, and no session joins meanwhile. (S137, S138, S141,
        S314)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        session = house.session(subscription)
        house.commit(subscription, session, a_cursor(name, "0", 4))
        resetting = threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1))
        until(lambda: house.assignment(subscription).reset)
        with pytest.raises(Conflict, match="Resetting subscription cursors request is still in progress"):
            house.session(subscription, EventTypePartition(name, "0"))
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(4)}
        house.leave(subscription, session)
        assert resetting.result(PATIENCE).status_code == 204
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(1)}
        assert house.assignment(subscription).reset is None
        house.session(subscription)

    def test_takes_commits_while_it_waits(self, house, threads):
        """A session that has to end may still commit, but the reset overwrites the offsets. (S137, S210)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        session = house.session(subscription)
        resetting = threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1))
        until(lambda: house.assignment(subscription).reset)
        assert house.commit(subscription, session, a_cursor(name, "0", 3)).status_code == 204
        house.leave(subscription, session)
        assert resetting.result(PATIENCE).status_code == 204
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(1)}

    def test_is_one_at_a_time(self, house, threads):
        """While one reset is in progress, another one is refused; afterwards, it is accepted. (S140)"""
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

    def test_gives_up(self, impatient_house):
        """If sessions do not end in time, nothing is set, and the client is told to try later. (S139)

        The answer is 503, because another attempt may succeed."""
        name = impatient_house.event_type(events=5)
        subscription = impatient_house.subscription(name)
        impatient_house.session(subscription)
        answer = reset(impatient_house.api, subscription, a_cursor(name, "0", 1))
        assert problem(answer, 503) == "Timeout resetting cursors"
        assert committed_offsets(impatient_house.api, subscription) == {(name, "0"): offset_text(-1)}
        assert impatient_house.assignment(subscription).reset is None

    def test_a_reset_without_cursors_disturbs_nobody(self, house):
        """An empty reset neither waits nor asks sessions to end. (S135)"""
        subscription = house.subscription()
        house.session(subscription)
        before = house.assignment(subscription)
        assert reset(house.api, subscription).status_code == 204
        assert house.assignment(subscription) == before

    def test_buries_the_dead(self, house):
        """Sessions whose process has died are removed; the reset does not wait for them. (S225, S318)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        house.coordination.renew_lease("another process", house.clock.now() + lease_watch.LEASE_DURATION)
        house.session(subscription, process_id="another process")
        house.clock.move((lease_watch.LEASE_DURATION + lease_watch.CLOCK_MARGIN).total_seconds())
        assert reset(house.api, subscription, a_cursor(name, "0", 1)).status_code == 204
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(1)}

    def test_does_not_wait_for_the_dead_of_the_future(self, house, threads):
        """If a session's process died before the clock was set back, a reset waits for the duration of a lease, not for
        as long as the clock is behind. (S225, S318)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        house.coordination.renew_lease("another process", house.clock.now() + lease_watch.LEASE_DURATION)
        house.session(subscription, process_id="another process")
        house.clock.set_back(3600)
        looks, read_leases = [], house.coordination.lease_expiries
        house.coordination.lease_expiries = lambda: looks.append(1) or read_leases()
        resetting = threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1))
        until(lambda: len(looks) > 1)
        house.clock.move((lease_watch.LEASE_DURATION + lease_watch.CLOCK_MARGIN).total_seconds())
        assert resetting.result(60).status_code == 204

    def test_notices_who_dies_while_it_waits(self, house, threads):
        """If a session dies while a reset waits for it, the reset soon notices. (S225)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        house.coordination.renew_lease("another process", house.clock.now() + lease_watch.LEASE_DURATION)
        house.session(subscription, process_id="another process")
        resetting = threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1))
        until(lambda: house.assignment(subscription).reset)
        house.coordination.release_lease("another process")
        assert resetting.result(PATIENCE).status_code == 204

    def test_resetting_a_subscription_without_offsets_initialises_it(self, house):
        """For a subscription that never had a stream, setting cursors begins with the initial offsets. (S145)

        The request is not refused: missing entries can be created."""
        name = house.event_type(events=3)
        subscription = house.subscription(name)
        house.coordination.remove_subscription_state(subscription["id"])
        assert reset(house.api, subscription, a_cursor(name, "0", 1)).status_code == 204
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(1)}

    def test_clears_what_is_known_of_failures(self, house):
        """The counts of failed streams, and the searches for failing events, are cleared only for the partitions that
        are reset. (S142, S263)
        """
        name = house.event_type(partitions=2)
        subscription = house.subscription(name)
        old = house.assignment(subscription)
        troubled = tuple(replace(each, failed_streams=3, search_end=Position(1, 7)) for each in old.entries)
        house.coordination.replace_assignment(subscription["id"], old, replace(old, entries=troubled), A_MOMENT)
        reset(house.api, subscription, a_cursor(name, "0", -1))
        first, second = house.assignment(subscription).entries
        assert (first.failed_streams, first.search_end) == (0, None)
        assert (second.failed_streams, second.search_end) == (3, Position(1, 7))

    def test_resetting_very_many_partitions_takes_several_writes(self, house):
        """More partitions than fit into one write are all set. (S133, S134)"""
        names = [house.event_type(partitions=8) for _ in range(12)]
        grown = house.event_type()
        subscription = house.subscription(*names, grown)
        house.api.put(f"/event-types/{grown}/partition-count", json={"partition_count": 8})
        for name in (*names, grown):
            house.api.post(f"/event-types/{name}/events", json=[{}] * 3)
        there = committed_offsets(house.api, subscription)
        assert len(there) == 104 > MAX_PARTITIONS_PER_WRITE
        assert reset(house.api, subscription, *(a_cursor(*place, "BEGIN") for place in there)).status_code == 204
        assert house.assignment(subscription).reset is None

    def test_stops_when_its_time_was_taken_away(self, house):
        """The steps of a reset whose time has passed are not carried out. (S144, S314)"""
        name = house.event_type(events=3)
        subscription = house.subscription(name)
        changes = {EventTypePartition(name, "0"): (None, Position(1, 1))}
        house.subscription_services.reset_execution._write_reset(
            subscription["id"], Reset("another", A_MOMENT), changes
        )
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(-1)}

    def test_is_refused_while_the_store_is_away(self, house):
        """If the store does not answer, requests that set, commit or read offsets are answered with 503. (S108,
        S130)
        """
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
    MINE = Reset("mine", A_MOMENT + timedelta(seconds=5), task=Redrive())

    def test_stand_alone(self):
        """A reset sets its marker only if there is no marker, or one whose time has passed. (S140, S144)"""
        assert with_requested_reset(an_assignment(""), self.MINE, self.NOW).reset == self.MINE
        abandoned = an_assignment("", reset=Reset("other", self.NOW))
        assert with_requested_reset(abandoned, self.MINE, self.NOW).reset == self.MINE
        with pytest.raises(Conflict):
            with_requested_reset(
                an_assignment("", reset=Reset("other", A_MOMENT + timedelta(seconds=1))), self.MINE, self.NOW
            )

    def test_markers_of_the_future_do_not_count(self):
        """A marker that was set before the clock was set back keeps no session away, however far the clock is behind.
        Clocks may differ a little. (S140, S144)"""
        up = an_assignment("", reset=replace(self.MINE, began_at=A_MOMENT))
        assert not is_being_reset(up, A_MOMENT - timedelta(hours=1))
        assert is_being_reset(up, A_MOMENT - lease_watch.CLOCK_MARGIN)
        assert is_being_reset(up, A_MOMENT)
        assert not is_being_reset(up, self.MINE.expires_at)

    def test_are_taken_down_by_their_own_id(self):
        """Removing another marker, or a missing one, changes nothing. (S144)"""
        standing = an_assignment("", reset=self.MINE)
        taken_down = with_reset_ended(standing, "mine", self.NOW)
        assert (taken_down.reset, taken_down.ended_reset) == (None, EndedReset("mine", self.NOW, task=Redrive()))
        assert with_reset_ended(standing, "other", self.NOW) == standing
        assert with_reset_ended(an_assignment(""), "mine", self.NOW) == an_assignment("")

    def test_markers_for_the_same_reset_are_one(self):
        """A task that is pending is not added again; one that was completed without its caller is remembered for a
        minute, until the caller learns of it. (S140)"""
        again = replace(self.MINE, id="again")
        assert with_requested_reset(an_assignment("", reset=self.MINE), again, self.NOW).reset == self.MINE
        ended = with_reset_ended(an_assignment("", reset=self.MINE), "mine", self.NOW)
        assert with_requested_reset(ended, again, self.NOW + timedelta(seconds=59)) == ended
        for other, now in (
            (without_reported_task(ended, "mine"), self.NOW),
            (ended, self.NOW + RESET_OUTCOME_RETENTION),
            (ended, self.NOW - timedelta(hours=1)),
        ):
            assert with_requested_reset(other, again, now).reset == again
        assert without_reported_task(ended, "other") == ended


class TestGoesOn:
    """Behind a gateway that waits for 29 seconds, a request is answered before the streams have ended."""

    def test_a_reset_without_its_caller(self, impatient, serving):
        """The broker tells the caller to come back. The process whose stream is the last to end sets the offsets, and
        the repeated request gets that result; another request with the same cursors is another reset. (S137, S138)"""
        name = impatient.event_type(events=5)
        subscription = impatient.subscription(name)
        session = impatient.session(subscription)
        answer = reset(impatient.api, subscription, a_cursor(name, "0", 1))
        assert problem(answer, 503) == STREAMS_NOT_ENDED_MESSAGE
        assert answer.headers["retry-after"]
        assert problem(reset(impatient.api, subscription, a_cursor(name, "0", 2)), 409)
        serving(subscription).leave(session, DepartureRecord())
        assert committed_offsets(impatient.api, subscription) == {(name, "0"): offset_text(1)}
        after = impatient.session(subscription)
        impatient.commit(subscription, after, a_cursor(name, "0", 4))
        assert reset(impatient.api, subscription, a_cursor(name, "0", 1)).status_code == 204
        assert committed_offsets(impatient.api, subscription) == {(name, "0"): offset_text(4)}
        assert problem(reset(impatient.api, subscription, a_cursor(name, "0", 1)), 503) == STREAMS_NOT_ENDED_MESSAGE

    def test_a_repeated_request_joins(self, house, threads):
        """A request for a reset for which others already wait waits with them. (S137)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        session = house.session(subscription)
        both = [threads.submit(reset, house.api, subscription, a_cursor(name, "0", 1)) for _ in range(2)]
        until(lambda: house.assignment(subscription).reset)
        house.leave(subscription, session)
        assert [each.result(PATIENCE).status_code for each in both] == [204, 204]

    def test_a_stream_that_opens_finds_a_reset_that_was_left(self, impatient, serving):
        """If the process that served the streams has died, the next stream sets the offsets before it begins. (S137,
        S143, S225)"""
        name = impatient.event_type(events=5)
        subscription = impatient.subscription(name)
        impatient.coordination.renew_lease("another process", impatient.clock.now() + lease_watch.LEASE_DURATION)
        impatient.session(subscription, process_id="another process")
        assert problem(reset(impatient.api, subscription, a_cursor(name, "0", 1)), 503) == STREAMS_NOT_ENDED_MESSAGE
        impatient.clock.move((lease_watch.LEASE_DURATION + lease_watch.CLOCK_MARGIN).total_seconds())
        members = serving(subscription)
        LeaseKeeper(impatient.coordination, impatient.clock).remove_expired_sessions([(members, members.assignment())])
        members.join(a_session("new", started_at=impatient.clock.now()))
        assert committed_offsets(impatient.api, subscription) == {(name, "0"): offset_text(1)}

    def test_housekeeping_finds_a_reset_that_was_left(self, impatient):
        """If no stream is opened after the others have ended, the next round of housekeeping sets the offsets.
        (S137)
        """
        name = impatient.event_type(events=5)
        subscription = impatient.subscription(name)
        session = impatient.session(subscription)
        reset(impatient.api, subscription, a_cursor(name, "0", 1))
        impatient.leave(subscription, session)
        impatient.wait(3600)
        impatient.broker.housekeeping.run()
        assert committed_offsets(impatient.api, subscription) == {(name, "0"): offset_text(1)}

    def test_streams_that_do_not_end_stop_it(self, impatient):
        """If streams are still open when the time of a reset is over, the reset is given up when another stream begins,
        and the repeated request reports it once. (S139)"""
        name = impatient.event_type(partitions=2, events=5)
        subscription = impatient.subscription(name)
        impatient.session(subscription)
        assert problem(reset(impatient.api, subscription, a_cursor(name, "0", -1)), 503) == STREAMS_NOT_ENDED_MESSAGE
        impatient.wait(63)
        impatient.session(subscription)
        assert problem(reset(impatient.api, subscription, a_cursor(name, "0", -1)), 503) == "Timeout resetting cursors"
        assert problem(reset(impatient.api, subscription, a_cursor(name, "0", -1)), 503) == STREAMS_NOT_ENDED_MESSAGE

    def test_more_partitions_do_not_wait_either(self, impatient, serving):
        """A repeated request for more partitions waits for the same streams, and is completed once they have ended.
        (S295, S298)"""
        name = impatient.event_type()
        subscription = impatient.subscription(name)
        session = impatient.session(subscription)
        for _ in range(2):
            answer = impatient.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
            assert problem(answer, 503) == STREAMS_NOT_ENDED_MESSAGE
        serving(subscription).leave(session, DepartureRecord())
        answer = impatient.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        assert answer.status_code == 204
        assert impatient.assignment(subscription).reset is None

    def test_a_reset_that_fails_does_not_keep_streams_away(self, impatient, serving, monkeypatch):
        """Whatever prevents a reset, streams can begin when its time is over. (S141)"""
        name = impatient.event_type(events=5)
        subscription = impatient.subscription(name)
        session = impatient.session(subscription)
        reset(impatient.api, subscription, a_cursor(name, "0", 1))
        monkeypatch.setattr(ResetExecution, "_write_reset", _unavailable)
        members = serving(subscription)
        members.leave(session, DepartureRecord())
        with pytest.raises(Conflict, match="still in progress"):
            members.join(a_session("early", started_at=impatient.clock.now()))
        impatient.wait(63)
        members.join(a_session("late", started_at=impatient.clock.now()))
        assert impatient.assignment(subscription).ended_reset.failure == "Timeout resetting cursors"

    def test_a_reset_is_audited_when_it_is_requested(self, impatient, serving, monkeypatch):
        """The audit log records a reset once, with the offsets before and after it, however often the request is
        repeated. (S310)
        """
        name = impatient.event_type(events=5)
        subscription = impatient.subscription(name)
        session = impatient.session(subscription)
        impatient.api.post("/settings/features", json={"feature": "audit_log_collection", "enabled": True})
        take_messages = []
        monkeypatch.setattr(SystemEventPublisher, "publish", lambda *them: take_messages.append(them[2]["data"]))
        for _ in range(2):
            reset(impatient.api, subscription, a_cursor(name, "0", 1))
        serving(subscription).leave(session, DepartureRecord())
        assert reset(impatient.api, subscription, a_cursor(name, "0", 1)).status_code == 204
        [change] = take_messages
        [[before], [after]] = [change["previous_object"], change["new_object"]]
        assert (before["offset"], after["offset"]) == (offset_text(-1), offset_text(1))


class TestRepartitioning:
    def test_ends_the_streams_of_those_that_got_partitions(self, house, threads):
        """The sessions of subscriptions to the event type have to end, as for a reset; new sessions have the new
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
        """Neither subscriptions to other event types nor a request for the existing number of partitions disturb any
        stream. (S295)"""
        name, other = house.event_type(), house.event_type()
        bystander, subscription = house.subscription(other), house.subscription(name)
        house.session(bystander)
        house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        house.session(subscription)
        answer = house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        assert answer.status_code == 204
        assert len(house.assignment(subscription).sessions) == len(house.assignment(bystander).sessions) == 1

    def test_reports_if_streams_do_not_end(self, impatient_house):
        """If streams do not end in time, the answer says that they did not; the partitions are added nevertheless.
        (S298)"""
        name = impatient_house.event_type()
        subscription = impatient_house.subscription(name)
        impatient_house.session(subscription)
        answer = impatient_house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        assert problem(answer, 503) == "Timeout resetting cursors"
        assert len(committed_offsets(impatient_house.api, subscription)) == 2

    def test_is_finished_by_any_client_that_asks_again(self, house):
        """If the subscriptions could not be reached, a repeated request gives them their partitions. (S293)"""
        name = house.event_type()
        subscription = house.subscription(name)
        house.coordination.replace_assignment, real = (
            _unavailable,
            house.coordination.replace_assignment,
        )
        refused = house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        house.coordination.replace_assignment = real
        assert refused.status_code == 503
        assert len(committed_offsets(house.api, subscription)) == 1
        assert house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2}).status_code == 204
        assert len(committed_offsets(house.api, subscription)) == 2


def _unavailable(*_):
    raise Unavailable("not now")
