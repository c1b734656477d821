"""How processes that share a table learn of each other's changes with few queries."""

import threading
import time
from datetime import timedelta

import pytest
from msgspec.structs import replace

from nakadi.common.waiting import run_blocking
from nakadi.engines.dynamodb import coordination_changes
from nakadi.engines.dynamodb.client import CallRetryPolicy
from nakadi.engines.dynamodb.coordination import DynamoDbCoordination
from nakadi.engines.dynamodb.coordination_changes import (
    CHANGE_POLL_INTERVAL_SECONDS,
    MAX_REPORT_LATENESS_SECONDS,
    RECHECK_DELAY_SECONDS,
    REPORT_INTERVAL_SECONDS,
    TableChangeReader,
)
from nakadi.engines.dynamodb.coordination_table import CHANGES_KEY, CoordinationTable
from nakadi.engines.dynamodb.table_address import TableAddress
from nakadi.model.event_type import Position
from nakadi.model.subscription import EMPTY_ASSIGNMENT, CommitResult, SubscriptionChange
from tests.support.aws import REGION, refusal_fault, timeout_before_effect
from tests.support.builders import A_MOMENT
from tests.support.coordination import a_place, an_assignment, entries
from tests.support.logs import records_of
from tests.support.patience import PATIENCE, started_threads, until

SUBSCRIPTION = "1b6c"


@pytest.fixture
def this_process(aws):  # noqa: ARG001  # it is inside
    with_table = DynamoDbCoordination(TableAddress("test", REGION))
    new = an_assignment("a")
    with_table.replace_assignment(SUBSCRIPTION, EMPTY_ASSIGNMENT, new, A_MOMENT, {a_place(): Position(1, -1)})
    yield with_table
    with_table.close()


@pytest.fixture
def other_process(this_process):  # noqa: ARG001  # after it
    """Another process with the same table."""
    other = DynamoDbCoordination(TableAddress("test", REGION))
    yield other
    other.close()


def commit(coordination, offset, seconds=0.0):
    now = A_MOMENT + timedelta(seconds=10 + seconds)
    found = run_blocking(coordination.commit(SUBSCRIPTION, "a", {a_place(): Position(1, offset)}, now))
    assert found == {a_place(): CommitResult.COMMITTED}


class ChangeListener:
    """A listener that can wait for a later change."""

    def __init__(self, coordination, subscription=SUBSCRIPTION):
        self.heard = []
        self._something = threading.Condition()
        self.end = coordination.add_change_listener(subscription, self._hear)

    def _hear(self, changed):
        with self._something:
            self.heard.append(changed)
            self._something.notify_all()

    def wait_for(self, changed):
        with self._something:
            return self._something.wait_for(lambda: changed in self.heard, PATIENCE)


class TestTogether:
    def test_commits_are_heard(self, this_process, other_process):
        """Another process is notified of a commit. (S198)"""
        ear = ChangeListener(this_process)
        commit(other_process, 5)
        assert ear.wait_for(SubscriptionChange.OFFSETS)
        assert this_process.committed_offsets(SUBSCRIPTION)[a_place()].position == Position(1, 5)

    def test_changes_are_heard_after_a_look_that_failed(self, aws, this_process, other_process, caplog):
        """A failed query is logged, and the next one reports the changes. (S198)"""
        failed = threading.Event()

        def raise_mistake(*_):
            failed.set()
            raise ValueError("a mistake")

        aws.goes_wrong("Query", raise_mistake)
        ear = ChangeListener(this_process)
        assert failed.wait(PATIENCE)
        commit(other_process, 5)
        assert ear.wait_for(SubscriptionChange.OFFSETS)
        assert "Looking for changes of other processes failed" in caplog.text

    def test_assignments_are_heard(self, this_process, other_process):
        """Another process learns of a change of readers, and of the end of a subscription. (S237, S72)"""
        ear = ChangeListener(this_process)
        old = other_process.assignment(SUBSCRIPTION)
        other_process.replace_assignment(SUBSCRIPTION, old, replace(old, entries=entries("b")), A_MOMENT)
        assert ear.wait_for(SubscriptionChange.ASSIGNMENT)
        ear.heard.clear()
        other_process.remove_subscription_state(SUBSCRIPTION)
        assert ear.wait_for(SubscriptionChange.ASSIGNMENT)

    def test_nothing_is_missed_that_no_one_could_ask_for(self, aws, this_process, other_process, caplog):
        """Changes during an outage of DynamoDB are reported afterwards; the outage is logged once."""
        ear = ChangeListener(this_process)
        silent = [
            refusal_fault("ThrottlingException"),
            timeout_before_effect,
            refusal_fault("ProvisionedThroughputExceededException"),
        ]
        aws.goes_wrong("Query", *silent)
        commit(other_process, 5)
        assert ear.wait_for(SubscriptionChange.OFFSETS)
        told = [each.getMessage() for each in records_of("nakadi.engines.dynamodb", caplog)]
        assert len(told) == len(set(told))

    def test_one_question_serves_all(self, aws, this_process):
        """Watching a thousand subscriptions takes no more queries than watching one; without watchers, there are
        none."""
        with started_threads() as started:
            ears = [ChangeListener(this_process, f"subscription {each}") for each in range(1_000)]
            began = time.monotonic()
            aws.calls.clear()
            until(lambda: aws.calls["Query"] >= 3)
            assert set(aws.calls) == {"Query"}
            assert aws.calls["Query"] <= (time.monotonic() - began) / CHANGE_POLL_INTERVAL_SECONDS + 1
            assert started() == ["coordination-news"]
        for each in ears:
            each.end()
        settled = aws.calls["Query"] + 1  # one query may be under way
        time.sleep(3 * CHANGE_POLL_INTERVAL_SECONDS)
        assert aws.calls["Query"] <= settled

    def test_a_later_watcher_is_notified_as_well(self, this_process, other_process):
        """A watcher that begins when there are no others receives all later changes."""
        ChangeListener(this_process).end()
        time.sleep(2 * CHANGE_POLL_INTERVAL_SECONDS)
        ear = ChangeListener(this_process)
        commit(other_process, 5)
        assert ear.wait_for(SubscriptionChange.OFFSETS)


def test_changes_of_others_are_heard_within_a_second():
    """Another process learns of a change within a second, and of further commits in the same interval, too, because it
    checks once more after the interval has ended. (S198)
    """
    assert CHANGE_POLL_INTERVAL_SECONDS < 1.0
    assert CHANGE_POLL_INTERVAL_SECONDS + RECHECK_DELAY_SECONDS < 1.0
    assert RECHECK_DELAY_SECONDS > REPORT_INTERVAL_SECONDS


class Clock:
    def __init__(self):
        self.seconds = time.time() + 60

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    """The time of day, which is part of a notification's key."""
    clock = Clock()
    monkeypatch.setattr(coordination_changes, "time", ChangeTimes(clock))
    return clock


class ChangeTimes:
    def __init__(self, clock):
        self.time = clock
        self.monotonic = time.monotonic


class TestFeed:
    @pytest.fixture
    def items(self, this_process):  # noqa: ARG002  # after it
        """The model of the table's items, with which a test reads and writes them directly."""
        return CoordinationTable(TableAddress("test", REGION), CallRetryPolicy()).items

    @pytest.fixture
    def feed(self, items, clock):
        feed = TableChangeReader(items, "me", clock)
        feed.skip_to_now()
        return feed

    def test_reports_everything_once(self, feed, other_process):
        """No change is reported twice, although each query begins a little before the end of the last one."""
        commit(other_process, 1)
        assert feed.read_changes(0.0) == [(SUBSCRIPTION, SubscriptionChange.OFFSETS)]
        assert feed.read_changes(0.4) == []

    def test_reports_again_what_belongs_to_the_same_moment(self, feed, other_process, aws):
        """Further commits within the interval of a reported commit write no notification; a query at the end of the
        interval finds them.
        """
        commit(other_process, 1)
        assert feed.read_changes(0.0)
        aws.calls.clear()
        commit(other_process, 2)
        assert aws.calls["PutItem"] == 0
        assert feed.read_changes(0.4) == []
        assert (feed.next_recheck_time, list(feed.pop_due_rechecks(RECHECK_DELAY_SECONDS - 0.01))) == (
            RECHECK_DELAY_SECONDS,
            [],
        )
        assert feed.pop_due_rechecks(RECHECK_DELAY_SECONDS) == [SUBSCRIPTION]
        assert feed.pop_due_rechecks(9.0) == []

    def test_reports_of_every_moment(self, feed, other_process, aws):
        """Commits in different intervals are all reported."""
        for each in range(5):
            commit(other_process, each, seconds=REPORT_INTERVAL_SECONDS * each)
        assert aws.calls["PutItem"] >= 5
        assert feed.read_changes(0.0) == [(SUBSCRIPTION, SubscriptionChange.OFFSETS)] * 5
        assert feed.pop_due_rechecks(9.0) == [SUBSCRIPTION]

    def test_does_not_report_to_a_process_its_own(self, feed, items, clock):
        """A process ignores its own notification, but checks once more later, because later commits by other processes
        in the same interval write none.
        """
        now = f"{int(clock.seconds * 1_000_000)}#1"
        items(
            CHANGES_KEY, now, subscription=SUBSCRIPTION, change=SubscriptionChange.OFFSETS.value, reporter="me"
        ).save()
        assert feed.read_changes(0.0) == []
        assert feed.pop_due_rechecks(9.0) == [SUBSCRIPTION]

    def test_hears_those_whose_clock_is_late(self, feed, other_process, clock):
        """A notification whose time is a little before that of the latest one is received, once."""
        commit(other_process, 1, seconds=1)
        assert feed.read_changes(0.0)
        clock.seconds -= MAX_REPORT_LATENESS_SECONDS / 2
        commit(other_process, 2, seconds=2)
        clock.seconds += MAX_REPORT_LATENESS_SECONDS / 2
        assert feed.read_changes(0.4) == [(SUBSCRIPTION, SubscriptionChange.OFFSETS)]
        assert feed.read_changes(0.8) == []

    def test_is_not_deafened_by_a_clock_that_is_ahead(self, feed, other_process, clock):
        """A process whose clock is an hour fast does not prevent notifications of others from being received."""
        clock.seconds += 3600
        commit(other_process, 1, seconds=1)
        clock.seconds -= 3600
        assert feed.read_changes(0.0)
        commit(other_process, 2, seconds=2)
        assert feed.read_changes(0.4) == [(SUBSCRIPTION, SubscriptionChange.OFFSETS)]

    def test_knows_nothing_of_what_was_before(self, items, other_process, clock):
        """Old changes are not reported to new listeners."""
        commit(other_process, 1)
        clock.seconds += 60
        feed = TableChangeReader(items, "me", clock)
        feed.skip_to_now()
        assert feed.read_changes(0.0) == []
