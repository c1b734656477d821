"""Coordination in DynamoDB: failing calls, and the number of calls."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import cycle

import pytest
from msgspec.structs import replace

from nakadi.app.engines import open_coordination
from nakadi.common.waiting import run_blocking
from nakadi.engines.dynamodb.client import RETRY_PAUSES_SECONDS, CallRetryPolicy
from nakadi.engines.dynamodb.coordination import DynamoDbCoordination
from nakadi.engines.dynamodb.coordination_table import LEASES_KEY, CoordinationTable
from nakadi.engines.dynamodb.table_address import TableAddress
from nakadi.model.event_type import Position
from nakadi.model.outcomes import BadSetting, Invalid, Unavailable
from nakadi.model.subscription import EMPTY_ASSIGNMENT, Assignment, CommitResult, PartitionAssignment
from nakadi.ports.coordination import MAX_PARKED_EVENTS_PER_CALL, MAX_PARTITIONS_PER_WRITE, AssignmentChanged
from tests.support.aws import (
    PASSING_FAULTS,
    REGION,
    refusal_fault,
    timeout_after_effect,
    timeout_before_effect,
    timeout_fault_with,
)
from tests.support.builders import A_MOMENT
from tests.support.coordination import a_parked_event, a_place, a_session, an_assignment, entries, places

SUBSCRIPTION = "1b6c"
ATTEMPTS = len(RETRY_PAUSES_SECONDS) + 1
LATER = A_MOMENT + timedelta(seconds=1)


@pytest.fixture
def coordination(aws):
    with_owners = open_engine(aws)
    new = an_assignment("a", "b", sessions=[a_session("a"), a_session("b")])
    with_owners.replace_assignment(
        SUBSCRIPTION, EMPTY_ASSIGNMENT, new, A_MOMENT, {each.partition: at(0) for each in new.entries}
    )
    aws.calls.clear()
    yield with_owners
    with_owners.close()


@pytest.fixture
def other_process(coordination, aws):  # noqa: ARG001  # after it, so that the table is as it left it
    """Another process with the same table."""
    other_process = open_engine(aws)
    yield other_process
    other_process.close()


def open_engine(_world) -> DynamoDbCoordination:
    return DynamoDbCoordination(TableAddress("test", REGION), CallRetryPolicy(lambda _: None))


def at(offset: int, timeline: int = 1) -> Position:
    return Position(timeline, offset)


def commit(coordination, session, offset, partition=0) -> CommitResult:
    return run_blocking(coordination.commit(SUBSCRIPTION, session, {a_place(partition): at(offset)}, LATER))[
        a_place(partition)
    ]


def position(coordination, partition=0) -> int:
    return coordination.committed_offsets(SUBSCRIPTION)[a_place(partition)].position.offset


def assign_partitions(coordination, *owners: str, positions=None) -> Assignment:
    """Give the partitions to these sessions, whichever sessions owned them before."""
    old = coordination.assignment(SUBSCRIPTION)
    return coordination.replace_assignment(SUBSCRIPTION, old, replace(old, entries=entries(*owners)), LATER, positions)


class TestFaultsThatPass:
    @pytest.mark.parametrize("fault", PASSING_FAULTS.values(), ids=PASSING_FAULTS)
    def test_change_nothing_about_a_commit(self, aws, coordination, fault):
        """A commit that meets faults takes effect once and is acknowledged once, whether the faults come before its
        effect or after it. (S120, S124)"""
        aws.goes_wrong("UpdateItem", *[fault] * (ATTEMPTS - 1))
        assert commit(coordination, "a", 5) is CommitResult.COMMITTED
        assert position(coordination) == 5
        assert commit(coordination, "a", 5) is CommitResult.OUTDATED

    @pytest.mark.parametrize("fault", PASSING_FAULTS.values(), ids=PASSING_FAULTS)
    def test_change_nothing_about_a_write(self, aws, coordination, fault):
        """An assignment whose write meets faults is written once, and the writer does not mistake its own write for
        another's. (S249, S319)"""
        old = coordination.assignment(SUBSCRIPTION)
        aws.goes_wrong("TransactWriteItems", *[fault] * (ATTEMPTS - 1))
        stored = coordination.replace_assignment(SUBSCRIPTION, old, replace(old, entries=entries("b", "a")), LATER)
        assert coordination.assignment(SUBSCRIPTION) == stored
        assert stored.revision == old.revision + 1
        assert [commit(coordination, each, 3) for each in "ab"] == [CommitResult.NOT_OWNED, CommitResult.COMMITTED]

    @pytest.mark.parametrize("fault", PASSING_FAULTS.values(), ids=PASSING_FAULTS)
    def test_change_nothing_about_parking(self, aws, coordination, fault):
        """Despite transient faults, events are parked once, and the cursor is moved once."""
        aws.goes_wrong("TransactWriteItems", *[fault] * (ATTEMPTS - 1))
        event = a_parked_event(3)
        assert coordination.park_events(SUBSCRIPTION, "a", [event], LATER, at(3)) is CommitResult.COMMITTED
        assert (coordination.list_parked_events(SUBSCRIPTION), position(coordination)) == ([event.parked], 3)

    @pytest.mark.parametrize("fault", PASSING_FAULTS.values(), ids=PASSING_FAULTS)
    def test_change_nothing_about_the_rest(self, aws, coordination, fault):
        """Despite a passing fault, leases are renewed and released, reads succeed, and a subscription's state is
        removed. (S72, S318)
        """
        for operation in ("GetItem", "Query", "PutItem", "BatchWriteItem"):
            aws.goes_wrong(operation, fault)
        coordination.renew_lease("one", LATER)
        assert coordination.lease_expiries() == {"one": LATER}
        assert coordination.assignment(SUBSCRIPTION).revision == 1
        coordination.release_lease("one")
        assert coordination.lease_expiries() == {}
        coordination.remove_subscription_state(SUBSCRIPTION)
        assert (coordination.assignment(SUBSCRIPTION), coordination.committed_offsets(SUBSCRIPTION)) == (
            EMPTY_ASSIGNMENT,
            {},
        )


class TestFaultsThatLast:
    @pytest.mark.parametrize(
        ("operation", "call"),
        [
            ("UpdateItem", lambda each: commit(each, "a", 5)),
            ("TransactWriteItems", lambda each: assign_partitions(each, "b", "a")),
            ("PutItem", lambda each: each.renew_lease("one", LATER)),
            ("Query", lambda each: each.committed_offsets(SUBSCRIPTION)),
            ("GetItem", lambda each: each.assignment(SUBSCRIPTION)),
        ],
        ids=["commit", "write", "renew", "offsets", "assignment"],
    )
    @pytest.mark.parametrize(
        "fault", [refusal_fault("ThrottlingException"), timeout_before_effect], ids=["busy", "silent"]
    )
    def test_are_reported(self, aws, coordination, operation, call, fault):
        """A caller that cannot be served gets `Unavailable`, and nothing has changed."""
        aws.goes_wrong(operation, *[fault] * ATTEMPTS)
        with pytest.raises(Unavailable):
            call(coordination)
        assert (coordination.assignment(SUBSCRIPTION).revision, position(coordination)) == (1, 0)
        assert coordination.lease_expiries() == {}

    def test_a_lasting_fault_of_one_partition_spares_the_others(self, aws, coordination):
        """A commit with one failing partition is not acknowledged; when it is repeated, it acknowledges each partition
        correctly. (S119, S120)"""
        assign_partitions(coordination, *["a"] * 2)
        wanted = dict.fromkeys(places(0, 1), at(7))
        aws.goes_wrong("UpdateItem", *[refusal_fault("AccessDeniedException")])
        aws.calls.clear()
        with pytest.raises(Unavailable):
            run_blocking(coordination.commit(SUBSCRIPTION, "a", wanted, LATER))
        assert aws.calls["PutItem"] == 1, "others are told of what was committed"
        again = run_blocking(coordination.commit(SUBSCRIPTION, "a", wanted, LATER))
        assert sorted(again.values()) == [CommitResult.COMMITTED, CommitResult.OUTDATED]
        assert [position(coordination, each) for each in (0, 1)] == [7, 7]

    @pytest.mark.parametrize(
        ("operation", "call"),
        [
            ("UpdateItem", lambda each: commit(each, "a", 5)),
            ("TransactWriteItems", lambda each: assign_partitions(each, "a", "a")),
        ],
        ids=["commit", "write"],
    )
    def test_that_may_have_had_an_effect_are_news(self, aws, coordination, operation, call):
        """A second attempt after a completed change finds nothing left to do; if completion cannot be known, the
        outcome is `Unavailable`."""
        aws.goes_wrong(operation, *[timeout_after_effect] * ATTEMPTS)
        if operation == "UpdateItem":
            aws.goes_wrong("GetItem", *[timeout_after_effect] * ATTEMPTS * ATTEMPTS)
        with pytest.raises(Unavailable):
            call(coordination)
        aws.goes_right()
        assert aws.calls["PutItem"] == 1
        made = (position(coordination), coordination.assignment(SUBSCRIPTION).revision)
        assert made == ((5, 1) if operation == "UpdateItem" else (0, 2))

    def test_lasting_faults_of_news_do_not_harm_a_commit(self, aws, coordination, caplog):
        """A commit is acknowledged even if other processes cannot be notified."""
        aws.goes_wrong("PutItem", *[refusal_fault("ThrottlingException")] * 2)
        assert commit(coordination, "a", 5) is CommitResult.COMMITTED
        assert "Reporting a change of subscription" in caplog.text
        assert position(coordination) == 5


class TestAnswersThatAreLost:
    def test_a_write_on_which_another_process_built_has_succeeded(self, aws, coordination, other_process):
        """A writer that gets no answer has written if another process has built on its write since. (S249)"""
        old = coordination.assignment(SUBSCRIPTION)
        aws.goes_wrong("TransactWriteItems", timeout_fault_with(lambda: assign_partitions(other_process, "b", "b")))
        stored = coordination.replace_assignment(SUBSCRIPTION, old, replace(old, entries=entries("a", "a")), LATER)
        assert stored.revision == 2
        assert coordination.assignment(SUBSCRIPTION).revision == 3
        assert [commit(coordination, each, 5) for each in "ab"] == [CommitResult.NOT_OWNED, CommitResult.COMMITTED]

    def test_a_write_that_never_arrived_has_failed(self, aws, coordination, other_process):
        """A writer whose request never arrived learns that another process wrote first. (S249)"""
        old = coordination.assignment(SUBSCRIPTION)

        def assign_and_time_out(request, _):
            assign_partitions(other_process, "b", "b")
            return timeout_before_effect(request, _)

        aws.goes_wrong("TransactWriteItems", assign_and_time_out)
        with pytest.raises(AssignmentChanged):
            coordination.replace_assignment(SUBSCRIPTION, old, replace(old, entries=entries("a", "a")), LATER)
        assert [commit(coordination, each, 5) for each in "ab"] == [CommitResult.NOT_OWNED, CommitResult.COMMITTED]

    def test_a_commit_before_a_hand_over_has_an_unknown_outcome(self, aws, coordination, other_process):
        """Once another session has committed more, nobody knows whether the former owner's commit counted, and the
        engine does not guess. (S118, S312)"""

        def take_partition():
            assign_partitions(other_process, "b", "b")
            commit(other_process, "b", 9)

        aws.goes_wrong("UpdateItem", timeout_fault_with(take_partition))
        with pytest.raises(Unavailable, match="not known"):
            commit(coordination, "a", 5)
        assert position(coordination) == 9

    def test_a_commit_after_a_hand_over_is_refused(self, aws, coordination, other_process):
        """If the partition has changed hands, and its offset has not reached the commit's position, the commit failed.
        (S118, S312)"""

        def assign_and_time_out(request, _):
            assign_partitions(other_process, "b", "b")
            return timeout_before_effect(request, _)

        aws.goes_wrong("UpdateItem", assign_and_time_out)
        assert commit(coordination, "a", 5) is CommitResult.NOT_OWNED
        assert position(coordination) == 0

    def test_an_overtaken_commit_is_outdated(self, aws, coordination, other_process):
        """A commit that arrives after a later commit of the same session is outdated. (S120, S123)"""
        aws.goes_wrong("UpdateItem", timeout_fault_with(lambda: commit(other_process, "a", 9)))
        assert commit(coordination, "a", 5) is CommitResult.OUTDATED
        assert position(coordination) == 9

    def test_a_commit_counts_if_its_partition_returns_while_the_refusal_is_judged(
        self, aws, coordination, other_process
    ):
        """If a partition returns to its former owner while a refusal is judged, the commit counts after all. (S312)"""
        assign_partitions(coordination, "b", "b")

        def given_back(_, effect):
            assign_partitions(other_process, "a", "b")
            return effect()

        aws.goes_wrong("GetItem", given_back)
        assert commit(coordination, "a", 5) is CommitResult.COMMITTED
        assert position(coordination) == 5


class TestLeases:
    def test_are_not_shortened_by_what_arrives_late(self, aws, coordination):
        """A renewal that arrives after a later one changes nothing: no process counts as dead too soon. (S318)"""
        late = []

        def held_up(request, effect):
            late.append(effect)
            return timeout_before_effect(request, effect)

        aws.goes_wrong("PutItem", held_up, *[timeout_before_effect] * (ATTEMPTS - 1))
        with pytest.raises(Unavailable):
            coordination.renew_lease("one", A_MOMENT)
        coordination.renew_lease("one", LATER)
        late[0]()
        assert coordination.lease_expiries() == {"one": LATER}

    def test_go_by_themselves(self, coordination):
        """DynamoDB removes items that expired a day ago, but no valid items, even if a clock is an hour slow."""
        coordination.renew_lease("one", LATER)
        item = CoordinationTable(TableAddress("test", REGION), CallRetryPolicy()).find_item(LEASES_KEY, "one")
        assert item.expires == int(LATER.timestamp()) + 24 * 3600


def test_two_never_own_a_partition_and_nothing_acknowledged_is_lost(aws, coordination):
    """While partitions change hands repeatedly and all kinds of faults occur, each number is acknowledged to at most
    one session, and no acknowledged number is lost. (S120, S312, S314, S315)"""
    chance = random.Random(7)
    faults = cycle(chance.sample(list(PASSING_FAULTS.values()), len(PASSING_FAULTS)))
    done = threading.Event()

    def fail_sometimes(request, effect):
        return next(faults)(request, effect) if chance.random() < 0.3 else effect()

    for operation in ("UpdateItem", "TransactWriteItems", "GetItem", "Query"):
        aws.goes_wrong(operation, *[fail_sometimes] * 20_000)

    def commit_on(session) -> list[int]:
        mine = []
        while not done.is_set():
            with suppress(Unavailable):
                following = position(coordination) + 1
                if commit(coordination, session, following) is CommitResult.COMMITTED:
                    mine.append(following)
        return mine

    def swap_owners() -> None:
        try:
            for turn in range(30):
                while True:
                    with suppress(Unavailable, AssignmentChanged):
                        assign_partitions(coordination, "ba"[turn % 2], "b")
                        break
        finally:
            done.set()

    with ThreadPoolExecutor(3) as threads:
        committing = [threads.submit(commit_on, each) for each in "ab"]
        threads.submit(swap_owners).result()
        acknowledged = [each.result() for each in committing]
    aws.goes_right()
    numbers = sorted(acknowledged[0] + acknowledged[1])
    assert len(set(numbers)) == len(numbers)
    assert all(acknowledged)
    assert numbers[-1] <= position(coordination)


class TestSizes:
    def test_an_assignment_fits_an_item(self):
        """Two thousand streams of two thousand partitions fit into an item; far more are refused with a message."""
        from nakadi.engines.dynamodb.coordination_table import MAX_ITEM_BYTES, assignment_attributes  # noqa: PLC0415

        chance = random.Random(1)
        ids = [str(chance.randbytes(16).hex()) for _ in range(20_000)]

        def share_reads(count):
            owned = tuple(
                PartitionAssignment(a_place(each, "some.event-type"), ids[each], ids[-each]) for each in range(count)
            )
            return Assignment(entries=owned, sessions=tuple(a_session(ids[each]) for each in range(count)))

        assert len(assignment_attributes(share_reads(2_000))["packed"]) < MAX_ITEM_BYTES
        with pytest.raises(Invalid, match="Too many streams"):
            assignment_attributes(share_reads(9_000))

    def test_events_parked_at_once_fit_a_transaction(self, coordination):
        """The maximum number of events that may be parked at once fits into a transaction, however large they are and
        however little they compress."""
        chance = random.Random(1)
        for size in (100, 5_000, 60_000):
            events = [a_parked_event(each, chance.randbytes(size)) for each in range(1, MAX_PARKED_EVENTS_PER_CALL + 1)]
            assert coordination.park_events(SUBSCRIPTION, "a", events, LATER) is CommitResult.COMMITTED
            for each in (events[0], events[-1]):
                assert coordination.parked_event_value(SUBSCRIPTION, a_place(), each.parked.position) == each.value


class TestCosts:
    def test_a_commit_costs_an_update_and_a_piece_of_news(self, aws, coordination):
        """A commit costs one update and one notification; each further commit in the same interval costs one update."""
        for offset in range(1, 11):
            commit(coordination, "a", offset)
        assert aws.calls == {"UpdateItem": 10, "PutItem": 1}

    def test_a_write_costs_one_transaction(self, aws, coordination):
        """However many partitions change hands, the write is one transaction."""
        old = coordination.assignment(SUBSCRIPTION)
        new = an_assignment(*["a"] * MAX_PARTITIONS_PER_WRITE)
        added = {each.partition: at(0) for each in new.entries}
        coordination.replace_assignment(SUBSCRIPTION, old, replace(new, revision=old.revision), LATER, added)
        assert aws.calls == {"GetItem": 1, "TransactWriteItems": 1, "PutItem": 1}

    def test_reading_costs_two_calls(self, aws, coordination):
        """A subscription is read by two calls, however many partitions it has."""
        coordination.assignment(SUBSCRIPTION)
        coordination.committed_offsets(SUBSCRIPTION)
        assert aws.calls == {"GetItem": 1, "Query": 1}


def test_a_url_without_a_prefix_is_refused():
    """A URL that does not name tables is reported at the start."""
    with pytest.raises(BadSetting, match="dynamodb://prefix"):
        open_coordination("dynamodb://")


def test_after_closing_nothing_is_asked_and_no_listener_is_called(aws, coordination):
    """A commit, a write or a parking of events that comes after closing makes no call, and notifies nobody."""
    heard = []
    coordination.add_change_listener(SUBSCRIPTION, heard.append)
    old = coordination.assignment(SUBSCRIPTION)
    coordination.close()
    aws.calls.clear()
    for attempt in (
        lambda: coordination.park_events(SUBSCRIPTION, "a", [a_parked_event(1)], LATER),
        lambda: run_blocking(coordination.commit(SUBSCRIPTION, "a", {a_place(): Position(1, 5)}, LATER)),
        lambda: coordination.replace_assignment(SUBSCRIPTION, old, replace(old, entries=entries("b", "b")), LATER),
        lambda: coordination.remove_subscription_state(SUBSCRIPTION),
    ):
        with pytest.raises(Unavailable, match="closed"):
            attempt()
    assert not aws.calls
    assert heard == []
