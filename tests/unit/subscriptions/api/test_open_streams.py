"""Requests about an open stream: how the serving process handles them, and the answers."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import pytest

from nakadi.model.subscription import Session
from nakadi.subscriptions.api.assignments import (
    MAX_TIMED_OUT_SESSIONS,
    with_extension_granted,
    with_extension_requested,
    with_session_leaving,
    with_timed_out_session,
)
from nakadi.subscriptions.stream.actions import DepartureRecord
from nakadi.subscriptions.stream.members import SubscriptionSessions
from tests.support.api import problem
from tests.support.builders import A_MOMENT
from tests.support.coordination import a_session, an_assignment
from tests.support.patience import PATIENCE, until
from tests.support.subscriptions import a_cursor
from tests.unit.subscriptions.conftest import BrokerInMemory


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def name(house):
    return house.event_type(events=3)


@pytest.fixture
def subscription(house, name):
    return house.subscription(name)


def stream_path(subscription, stream_id):
    return f"/subscriptions/{subscription['id']}/streams/{stream_id}"


def leave(house, subscription, stream_id):
    return house.api.delete(stream_path(subscription, stream_id))


def extend(house, subscription, stream_id):
    return house.api.post(f"{stream_path(subscription, stream_id)}/extend")


def session_of(house, subscription, stream_id) -> Session | None:
    return house.assignment(subscription).session(stream_id)


def members_of(house, subscription):
    """The sessions of a subscription, as the process that serves them reads and changes them."""
    return SubscriptionSessions(house.coordination, subscription["id"], house.clock, execute_reset=print)


class TestLeaving:
    def test_is_answered_when_the_session_has_left(self, house, subscription, threads):
        """The session learns that it has to leave, and the answer comes when its partitions are free. (S324)"""
        stream_id = house.session(subscription)
        leaving = threads.submit(leave, house, subscription, stream_id)
        until(lambda: session_of(house, subscription, stream_id).is_leaving)
        assert not leaving.done()
        members_of(house, subscription).leave(stream_id, DepartureRecord())
        answer = leaving.result(PATIENCE)
        assert (answer.status_code, answer.content) == (204, b"")
        assert house.stats(subscription)["0"]["state"] == "unassigned"

    @pytest.mark.parametrize("again", [False, True])
    def test_leaving_an_ended_stream_succeeds(self, house, subscription, again):
        """Leaving can be repeated, and repeating it writes nothing. (S326)"""
        stream_id = str(uuid4())
        if again:
            stream_id = house.session(subscription)
            house.leave(subscription, stream_id)
        before = house.assignment(subscription)
        assert leave(house, subscription, stream_id).status_code == 204
        assert house.assignment(subscription) == before

    def test_finds_sessions_of_a_process_that_has_died(self, house, subscription):
        """If the process of a session has no lease, nobody could end the session, so it is removed. (S327)"""
        stream_id = house.session(subscription, process_id="a process that died")
        assert leave(house, subscription, stream_id).status_code == 204
        assert session_of(house, subscription, stream_id) is None

    def test_is_not_waited_for_too_long(self):
        """A caller that may not wait learns that the stream will end, and may repeat the request. (S327)"""
        house = BrokerInMemory(longest_wait_seconds=-1)
        try:
            subscription = house.subscription(house.event_type())
            stream_id = house.session(subscription)
            answer = leave(house, subscription, stream_id)
            assert problem(answer, 503) == (
                f"The stream {stream_id} has not ended yet; repeat the request to learn when it has"
            )
            assert answer.headers["retry-after"] == "1"
            assert session_of(house, subscription, stream_id).is_leaving
            house.leave(subscription, stream_id)
            assert leave(house, subscription, stream_id).status_code == 204
        finally:
            house.close()


class TestExtending:
    def test_is_answered_when_the_session_has_granted_it(self, house, subscription, threads):
        """The answer contains the time until which the session waits for commits. (S330)"""
        stream_id = house.session(subscription)
        extending = threads.submit(extend, house, subscription, stream_id)
        until(lambda: session_of(house, subscription, stream_id).extensions_requested == 1)
        assert not extending.done()
        members_of(house, subscription).grant_extension(stream_id, 1, house.clock.monotonic() + 20)
        answer = extending.result(PATIENCE)
        assert (answer.status_code, answer.json()) == (200, {"commit_by": "2026-11-21T12:00:20.000Z"})

    def test_extending_an_ended_stream_is_refused(self, house, subscription):
        """A stream that has ended cannot be extended. (S332)"""
        stream_id = str(uuid4())
        assert problem(extend(house, subscription, stream_id), 404) == f"Session with stream id {stream_id} not found"

    def test_extending_a_stream_that_ends_meanwhile_is_refused(self, house, subscription, threads):
        """A session that has ended before it learnt of the request cannot grant it, and the answer has the reason for
        its end. (S332, S333)"""
        stream_id = house.session(subscription)
        extending = threads.submit(extend, house, subscription, stream_id)
        until(lambda: session_of(house, subscription, stream_id).extensions_requested == 1)
        members_of(house, subscription).leave(stream_id, DepartureRecord(has_timed_out=True))
        assert problem(extending.result(PATIENCE), 404) == (
            f"Session with stream id {stream_id} not found: its commit timeout of 60 seconds had passed at "
            "2026-11-21T12:00:00.000Z"
        )

    def test_is_not_waited_for_too_long(self):
        """A caller that may not wait repeats the request, and gets the same answer as the earlier request. (S327,
        S330)"""
        house = BrokerInMemory(longest_wait_seconds=-1)
        try:
            subscription = house.subscription(house.event_type())
            stream_id = house.session(subscription)
            for _ in range(2):
                assert problem(extend(house, subscription, stream_id), 503) == (
                    f"The stream {stream_id} has not confirmed the extension yet; repeat the request"
                )
            assert session_of(house, subscription, stream_id).extensions_requested == 1
        finally:
            house.close()


@pytest.mark.parametrize("request_of", [leave, extend])
class TestRefusals:
    def test_a_subscription_that_is_not_there(self, house, request_of):
        """A request for a stream of a missing subscription is refused as not found. (S325)"""
        answer = request_of(house, {"id": "none"}, str(uuid4()))
        assert problem(answer, 404) == 'Subscription with id "none" does not exist'

    def test_a_stream_id_that_is_none(self, house, subscription, request_of):
        """The id must have the format of a stream id, as in a commit. (S325, S114)"""
        answer = request_of(house, subscription, "mine")
        assert problem(answer, 422) == "Stream id has to be valid UUID, but `mine was provided"

    def test_who_is_blocked(self, house, subscription, request_of):
        """A subject that may not consume may not make these requests either. (S325, S308)"""
        [name] = subscription["event_types"]
        assert house.api.put(f"/settings/blacklist/CONSUMER_ET/{name}").status_code == 204
        answer = request_of(house, subscription, str(uuid4()))
        assert problem(answer, 403) == "Application or subscription is blocked"


class TestLateCommits:
    def test_are_told_what_became_of_the_session(self, house, name, subscription):
        """The refusal of a commit says that the commit timeout has passed, and when. (S333, S115)"""
        stream_id = house.session(subscription, commit_timeout=2.5)
        house.wait(90)
        members_of(house, subscription).leave(stream_id, DepartureRecord(has_timed_out=True))
        assert problem(house.commit(subscription, stream_id, a_cursor(name, "0", 0)), 422) == (
            f"Session with stream id {stream_id} not found: its commit timeout of 2.5 seconds had passed at "
            "2026-11-21T12:01:30.000Z"
        )

    def test_late_commits_of_other_sessions_are_refused_as_usual(self, house, name, subscription):
        """If a session ended for another reason, it is reported as not found. (S115)"""
        stream_id = house.session(subscription)
        members_of(house, subscription).leave(stream_id, DepartureRecord())
        answer = house.commit(subscription, stream_id, a_cursor(name, "0", 0))
        assert problem(answer, 422) == f"Session with stream id {stream_id} not found"

    def test_are_remembered_for_the_latest_only(self):
        """However many sessions time out, the assignment stays small. (S333)"""
        found = an_assignment()
        for number in range(MAX_TIMED_OUT_SESSIONS + 5):
            found = with_timed_out_session(found, a_session(str(number)), A_MOMENT)
        assert [each.id for each in found.timed_out_sessions] == [str(each) for each in range(5, 25)]


def test_nothing_changes_for_sessions_that_are_not_there():
    """A request for a session that has left leaves the assignment unchanged, so nothing is written. (S326)"""
    found = an_assignment("a", sessions=[a_session("a")])
    for changed in (
        with_session_leaving(found, "b"),
        with_extension_requested(found, "b"),
        with_extension_granted(found, "b", 1, A_MOMENT),
    ):
        assert changed == found


def test_a_grant_that_comes_late_changes_nothing():
    """A write that arrives a second time does not undo a later extension. (S330)"""
    asked = with_extension_requested(an_assignment("a", sessions=[a_session("a")]), "a")
    granted = with_extension_granted(asked, "a", 1, A_MOMENT)
    asked_again = with_extension_granted(with_extension_requested(granted, "a"), "a", 2, A_MOMENT + timedelta(hours=1))
    assert with_extension_granted(asked_again, "a", 1, A_MOMENT) == asked_again
