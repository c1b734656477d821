"""The promises of every coordination: the sentences of `nakadi.ports.coordination.Coordination`, one by one."""

import threading
from datetime import timedelta

import pytest
from msgspec.structs import replace

from nakadi.common.waiting import run_blocking
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import (
    EMPTY_ASSIGNMENT,
    MAX_OFFSET_RANGES,
    Assignment,
    CommitResult,
    CommittedOffset,
    EndedReset,
    OffsetRange,
    OffsetsCommitted,
    PartitionAssignment,
    Redrive,
    Replay,
    Reset,
    SetOffsets,
    Standstill,
    SubscriptionChange,
    SubscriptionChangeNotice,
    TimedOutSession,
)
from nakadi.ports.coordination import MAX_PARTITIONS_PER_WRITE, AssignmentChanged, Coordination
from tests.support.builders import A_MOMENT
from tests.support.closed import assert_everything_is_refused
from tests.support.coordination import (
    LATER,
    SUBSCRIPTION,
    a_parked_event,
    a_place,
    a_session,
    an_assignment,
    at,
    begin_assignment,
    commit,
    commit_ahead,
    commit_async,
    entries,
    format_partitions,
    places,
    position,
)
from tests.support.patience import PATIENCE, run_in_threads


class TestAssignment:
    def test_is_empty_at_first(self, coordination: Coordination):
        """A subscription without streams has no state. (S12)"""
        assert coordination.assignment(SUBSCRIPTION) == EMPTY_ASSIGNMENT
        assert coordination.committed_offsets(SUBSCRIPTION) == {}

    def test_comes_back_as_it_was_written(self, coordination: Coordination):
        """Everything in an assignment is stored, and every write increments its revision."""
        full = Assignment(
            initialised=True,
            entries=(
                PartitionAssignment(a_place(0, 'a "type"\n'), "a", "b", 3, Position(2, 17)),
                PartitionAssignment(a_place(0, "b"), "a", replay=Replay("x", Position(1, 4), ("k", "l"))),
                PartitionAssignment(a_place("10", "b"), replay=Replay("y", Position(2, -1))),
            ),
            sessions=(
                a_session("a", process_id="one", commit_timeout=2.5),
                a_session("b", process_id="two", requested_partitions=(a_place(0, 'a "type"\n'),)),
                a_session("c", is_leaving=True),
                a_session("d", extensions_requested=2, extensions_granted=1, commit_by=LATER),
            ),
            reset=Reset("r", LATER + timedelta(microseconds=7), A_MOMENT),
            ended_reset=EndedReset("before", A_MOMENT, "no time"),
            timed_out_sessions=(TimedOutSession("e", A_MOMENT, 2.5), TimedOutSession("f", LATER, 60.0)),
            standstills=(Standstill(a_place(0, 'a "type"\n'), Position(2, 17), 3),),
        )
        positions = {each.partition: at(number) for number, each in enumerate(full.entries)}
        stored = coordination.replace_assignment(SUBSCRIPTION, EMPTY_ASSIGNMENT, full, A_MOMENT, positions)
        assert stored == replace(full, revision=1)
        assert coordination.assignment(SUBSCRIPTION) == stored
        again = coordination.replace_assignment(SUBSCRIPTION, stored, replace(stored, reset=None), A_MOMENT)
        assert coordination.assignment(SUBSCRIPTION) == again == replace(full, revision=2, reset=None)

    @pytest.mark.parametrize(
        "task",
        [
            SetOffsets(),
            SetOffsets(
                ((a_place(0, 'a "type"\n'), at(3)), (a_place("10", "b"), at(-1)), (a_place("9", "b"), at(7, 2)))
            ),
            Redrive(),
            Redrive((a_place(0, 'a "type"\n'), 'a "key"')),
        ],
        ids=["streams end", "offsets", "redrive", "redrive one key"],
    )
    def test_keeps_the_task_of_a_reset(self, coordination: Coordination, task):
        """Any process that finds a reset can read its task, and later its result. (S137)"""
        begin_assignment(coordination, "")
        for reset, ended in (
            (Reset("r", LATER, A_MOMENT, task), None),
            (Reset("r", LATER, A_MOMENT, task, is_claimed=True), EndedReset("q", A_MOMENT, task=task)),
            (None, EndedReset("r", LATER, "failed", task)),
        ):
            old = coordination.assignment(SUBSCRIPTION)
            stored = coordination.replace_assignment(
                SUBSCRIPTION, old, replace(old, reset=reset, ended_reset=ended), A_MOMENT
            )
            assert coordination.assignment(SUBSCRIPTION) == stored
            assert (stored.reset, stored.ended_reset) == (reset, ended)

    def test_is_one_per_subscription(self, coordination: Coordination):
        """The state of one subscription does not affect another."""
        begin_assignment(coordination, "")
        assert coordination.assignment("another") == EMPTY_ASSIGNMENT
        assert coordination.committed_offsets("another") == {}

    def test_is_written_only_as_it_was_read(self, coordination: Coordination):
        """A write that would overwrite another process's change is refused, and leaves nothing behind. (S249, S319)"""
        first = begin_assignment(coordination, "", "")
        second = coordination.replace_assignment(
            SUBSCRIPTION, first, replace(first, entries=entries("a", "")), A_MOMENT
        )
        for stale in (EMPTY_ASSIGNMENT, first, replace(second, revision=7)):
            with pytest.raises(AssignmentChanged):
                coordination.replace_assignment(
                    SUBSCRIPTION,
                    stale,
                    replace(stale, entries=entries("b", "b")),
                    A_MOMENT,
                    {a_place(0): at(5), a_place(1): at(5)},
                )
        assert coordination.assignment(SUBSCRIPTION) == second
        assert position(coordination) == at(-1)

    def test_only_one_of_many_writers_succeeds(self, coordination: Coordination):
        """If many processes add sessions by reading and writing, none is lost. (S249, S319)"""
        begin_assignment(coordination, "")

        def add_sessions(number: int) -> None:
            for step in range(5):
                while True:
                    old = coordination.assignment(SUBSCRIPTION)
                    new = replace(old, sessions=(*old.sessions, a_session(f"{number}-{step}")))
                    try:
                        coordination.replace_assignment(SUBSCRIPTION, old, new, A_MOMENT)
                        break
                    except AssignmentChanged:
                        continue

        run_in_threads(add_sessions, 8)
        found = coordination.assignment(SUBSCRIPTION)
        assert found.revision == 41
        assert {each.id for each in found.sessions} == {f"{n}-{step}" for n in range(8) for step in range(5)}

    def test_is_forgotten_with_everything(self, coordination: Coordination):
        """Once a subscription is forgotten, it has no state, as if it had never existed; forgetting it again changes
        nothing. (S72)
        """
        begin_assignment(coordination, "a", sessions=[a_session("a")])
        begin_assignment(coordination, "a", subscription="another")
        coordination.remove_subscription_state(SUBSCRIPTION)
        coordination.remove_subscription_state(SUBSCRIPTION)
        assert coordination.assignment(SUBSCRIPTION) == EMPTY_ASSIGNMENT
        assert coordination.committed_offsets(SUBSCRIPTION) == {}
        assert commit(coordination, "a", 1) is CommitResult.NOT_OWNED
        assert format_partitions(coordination.assignment("another").entries) == ["a"]
        begin_assignment(coordination, "")
        assert coordination.assignment(SUBSCRIPTION).revision == 1

    @pytest.mark.parametrize(
        ("new", "positions"),
        [
            (an_assignment("", ""), {a_place(0): at(0)}),
            (an_assignment(), {}),
            (an_assignment(""), {a_place(0): at(0), a_place(7): at(0)}),
            (replace(an_assignment(), entries=entries("", "")[:1] * 2), {}),
            (
                an_assignment(*["x"] * (MAX_PARTITIONS_PER_WRITE + 1)),
                {a_place(n): at(0) for n in range(MAX_PARTITIONS_PER_WRITE + 1)},
            ),
        ],
        ids=["entry without position", "entry gone", "position without entry", "entry twice", "too many"],
    )
    def test_refuses_what_no_engine_could_do(self, coordination: Coordination, new, positions):
        """A write with entries without offsets, offsets without entries, or too many changes of owners is an error of
        the caller.
        """
        old = begin_assignment(coordination, "")
        with pytest.raises(ValueError, match=r"partition|position"):
            coordination.replace_assignment(SUBSCRIPTION, old, new, A_MOMENT, positions)
        assert coordination.assignment(SUBSCRIPTION) == old

    def test_moves_as_many_as_fit(self, coordination: Coordination):
        """One write can create ninety-nine partitions, or change their owners."""
        old = begin_assignment(coordination, *[""] * MAX_PARTITIONS_PER_WRITE)
        coordination.replace_assignment(
            SUBSCRIPTION, old, replace(old, entries=entries(*["a"] * MAX_PARTITIONS_PER_WRITE)), LATER
        )
        assert {each.owner for each in coordination.committed_offsets(SUBSCRIPTION).values()} == {"a"}


class TestOffsets:
    def test_are_there_with_their_entries(self, coordination: Coordination):
        """An entry's offset is read as it was written, with its owner and the time of the last change of owner.
        (S95)"""
        new = an_assignment("a", "", "b>a")
        positions = {a_place(0): at(-1), a_place(1): at(7, 3), a_place(2): at(2**62)}
        coordination.replace_assignment(SUBSCRIPTION, EMPTY_ASSIGNMENT, new, A_MOMENT, positions)
        assert coordination.committed_offsets(SUBSCRIPTION) == {
            a_place(0): CommittedOffset(at(-1), "a", A_MOMENT),
            a_place(1): CommittedOffset(at(7, 3), None, A_MOMENT),
            a_place(2): CommittedOffset(at(2**62), "b", A_MOMENT),
        }

    def test_keep_their_place_when_owners_change(self, coordination: Coordination):
        """A partition that gets another owner keeps its offset; all other partitions stay unchanged. (S244)"""
        old = begin_assignment(coordination, "a", "a")
        commit(coordination, "a", 5)
        new = replace(old, entries=entries("b", "a>b"))
        coordination.replace_assignment(SUBSCRIPTION, old, new, LATER + timedelta(seconds=1))
        assert coordination.committed_offsets(SUBSCRIPTION) == {
            a_place(0): CommittedOffset(at(5), "b", LATER + timedelta(seconds=1)),
            a_place(1): CommittedOffset(at(-1), "a", A_MOMENT),
        }

    def test_are_set_by_a_write_in_any_direction(self, coordination: Coordination):
        """A write sets offsets as it says, forwards and backwards, and may add partitions. (S134, S137, S293)"""
        old = begin_assignment(coordination, "", "")
        old = coordination.replace_assignment(SUBSCRIPTION, old, old, LATER, {a_place(0): at(9)})
        new = replace(old, entries=(*old.entries, PartitionAssignment(a_place(2))))
        coordination.replace_assignment(SUBSCRIPTION, old, new, LATER, {a_place(0): at(3), a_place(2): at(-1, 2)})
        found = coordination.committed_offsets(SUBSCRIPTION)
        assert [found[each].position for each in places(0, 1, 2)] == [at(3), at(-1), at(-1, 2)]


class TestCommit:
    def test_moves_forward_only(self, coordination: Coordination):
        """A commit of a greater position moves the offset; a commit of the same or a smaller position is outdated, and
        moves nothing. (S120, S314)"""
        begin_assignment(coordination, "a")
        steps = [(5, 1), (5, 1), (4, 1), (6, 1), (-1, 2), (900, 1), (0, 2), (-1, 2)]
        verdicts = [commit(coordination, "a", offset, timeline=timeline) for offset, timeline in steps]
        C, O = CommitResult.COMMITTED, CommitResult.OUTDATED  # noqa: N806, E741  # two columns to read at a glance
        assert verdicts == [C, O, O, C, C, O, C, O]
        assert coordination.committed_offsets(SUBSCRIPTION)[a_place(0)] == CommittedOffset(at(0, 2), "a", LATER)

    def test_of_nothing_changes_nothing(self, coordination: Coordination):
        """A commit without positions has no results, whether its caller waits or not: every cursor was outdated.
        (S120)"""
        begin_assignment(coordination, "a")
        assert run_blocking(coordination.commit(SUBSCRIPTION, "a", {}, LATER)) == {}
        assert commit_async(coordination, "a", {}).result(PATIENCE) == {}
        assert position(coordination) == at(-1)

    @pytest.mark.parametrize(
        ("owned", "session"), [("", "a"), ("b", "a"), ("b>a", "a"), ("a", "")], ids=["nobody", "other", "next", "no id"]
    )
    def test_is_for_the_owner_alone(self, coordination: Coordination, owned, session):
        """A session that does not own the partition cannot commit, not even the session to which the partition is
        promised. (S118, S312)"""
        begin_assignment(coordination, owned)
        assert commit(coordination, session, 5) is CommitResult.NOT_OWNED
        assert position(coordination) == at(-1)

    def test_is_for_the_owner_while_it_hands_over(self, coordination: Coordination):
        """Until it has released a partition, its owner can commit, even though the partition is promised to another
        session. (S118, S312)"""
        begin_assignment(coordination, "a>b")
        assert commit(coordination, "a", 5) is CommitResult.COMMITTED

    def test_remembers_what_is_done_ahead(self, coordination: Coordination):
        """Positions that are done ahead are added to earlier ones, whether the offset moves or not, and are removed
        once the offset has passed them. (X61)"""
        begin_assignment(coordination, "a")
        commit_ahead(coordination, "a", 1, OffsetRange(1, 3, 4))
        commit_ahead(coordination, "a", 0, OffsetRange(1, 5, 5), OffsetRange(2, 0, 7))
        offset = coordination.committed_offsets(SUBSCRIPTION)[a_place(0)]
        assert (offset.position, offset.done_ahead) == (at(1), (OffsetRange(1, 3, 5), OffsetRange(2, 0, 7)))
        commit_ahead(coordination, "a", 7, OffsetRange(1, 9, 9))
        offset = coordination.committed_offsets(SUBSCRIPTION)[a_place(0)]
        assert (offset.position, offset.done_ahead) == (at(7), (OffsetRange(1, 9, 9), OffsetRange(2, 0, 7)))
        commit(coordination, "a", 8)
        assert coordination.committed_offsets(SUBSCRIPTION)[a_place(0)].done_ahead == offset.done_ahead

    def test_remembers_a_limited_number_of_ranges(self, coordination: Coordination):
        """If there are too many ranges, the first ones are kept. (X61)"""
        begin_assignment(coordination, "a")
        many = [OffsetRange(1, 2 * each, 2 * each) for each in range(1, MAX_OFFSET_RANGES + 10)]
        commit_ahead(coordination, "a", 0, *many)
        assert coordination.committed_offsets(SUBSCRIPTION)[a_place(0)].done_ahead == tuple(many[:MAX_OFFSET_RANGES])

    def test_only_the_owner_can_report_what_is_done_ahead(self, coordination: Coordination):
        """If a former owner of a partition reports positions that are done ahead, the coordination refuses
        them. (X61)
        """
        begin_assignment(coordination, "b", "a")
        assert commit_ahead(coordination, "a", 5, OffsetRange(1, 7, 7)) is CommitResult.NOT_OWNED
        assert coordination.committed_offsets(SUBSCRIPTION)[a_place(0)].done_ahead == ()

    def test_done_ahead_is_kept_until_a_position_is_set(self, coordination: Coordination):
        """A partition keeps its positions that are done ahead when it changes hands, and when its parked events are
        sent again; a reset clears them. (X61)"""
        old = begin_assignment(coordination, "a", "a", "a")
        for each in (0, 1, 2):
            commit_ahead(coordination, "a", 5, OffsetRange(1, 7, 7), partition=each)
        replayed = PartitionAssignment(a_place(1), "b", replay=Replay("r", at(5)))
        new = replace(old, entries=(entries("b")[0], replayed, PartitionAssignment(a_place(2), "b")))
        coordination.replace_assignment(SUBSCRIPTION, old, new, LATER, {a_place(1): at(2), a_place(2): at(2)})
        found = coordination.committed_offsets(SUBSCRIPTION)
        assert [len(found[each].done_ahead) for each in places(0, 1, 2)] == [1, 1, 0]

    def test_a_partition_without_an_entry_has_no_owner(self, coordination: Coordination):
        """A partition without an entry has no owner, and a commit does not create it. (S116)"""
        begin_assignment(coordination, "a")
        assert commit(coordination, "a", 5, partition=3) is CommitResult.NOT_OWNED
        assert set(coordination.committed_offsets(SUBSCRIPTION)) == {a_place(0)}

    def test_is_judged_partition_by_partition(self, coordination: Coordination):
        """In a commit of several partitions, each one is judged independently. (S119, S120)"""
        begin_assignment(coordination, "a", "b", "a")
        commit(coordination, "a", 5, partition=2)
        found = run_blocking(coordination.commit(SUBSCRIPTION, "a", {a_place(n): at(3) for n in range(4)}, LATER))
        assert found == {
            a_place(0): CommitResult.COMMITTED,
            a_place(1): CommitResult.NOT_OWNED,
            a_place(2): CommitResult.OUTDATED,
            a_place(3): CommitResult.NOT_OWNED,
        }
        assert [position(coordination, n) for n in range(3)] == [at(3), at(-1), at(5)]

    def test_goes_with_ownership(self, coordination: Coordination):
        """From the write that gives a partition to another session, its former owner can no longer commit, and the new
        owner can. (S312)"""
        old = begin_assignment(coordination, "a")
        assert commit(coordination, "a", 1) is CommitResult.COMMITTED
        coordination.replace_assignment(SUBSCRIPTION, old, replace(old, entries=entries("b")), LATER)
        assert commit(coordination, "a", 2) is CommitResult.NOT_OWNED
        assert commit(coordination, "b", 2) is CommitResult.COMMITTED
        assert position(coordination) == at(2)

    def test_loses_nothing_among_many(self, coordination: Coordination):
        """If many processes commit at the same time, the greatest position stays, and every position is either
        committed once or outdated. (S120, S314)
        """
        begin_assignment(coordination, "a", "a")

        def count_committed(number: int) -> int:
            verdicts = [commit(coordination, "a", number + 8 * step, partition=step % 2) for step in range(20)]
            return verdicts.count(CommitResult.COMMITTED)

        committed = sum(run_in_threads(count_committed, 8))
        assert 20 <= committed <= 160
        assert position(coordination, 0) == at(7 + 8 * 18)
        assert position(coordination, 1) == at(7 + 8 * 19)

    def test_never_comes_from_two_sessions(self, coordination: Coordination):
        """While a partition moves back and forth between two sessions that both commit, no commit is behind the commits
        that the other session made before. (S312, S315)"""
        begin_assignment(coordination, "a")
        done = threading.Event()
        seen: list[tuple[str, int]] = []

        def commit_until_done(number: int) -> None:
            session = "ab"[number]
            while not done.is_set():
                following = position(coordination).offset + 1
                if commit(coordination, session, following) is CommitResult.COMMITTED:
                    seen.append((session, following))

        def swap_owners(_: int) -> None:
            for turn in range(40):
                old = coordination.assignment(SUBSCRIPTION)
                coordination.replace_assignment(SUBSCRIPTION, old, replace(old, entries=entries("ba"[turn % 2])), LATER)
            done.set()

        run_in_threads(lambda number: swap_owners(0) if number == 2 else commit_until_done(number), 3)
        numbers = [number for _, number in seen]
        assert sorted(numbers) == list(range(len(numbers)))
        assert position(coordination) == at(len(numbers) - 1)


class TestCommitSoon:
    def test_does_what_a_commit_does(self, coordination: Coordination):
        """A caller can begin a commit without waiting; the outcome of each partition comes when the commit is
        stored.
        """
        begin_assignment(coordination, "a", "b", "a")
        commit(coordination, "a", 5, partition=2)
        outcome = commit_async(coordination, "a", {a_place(n): at(3) for n in range(4)})
        assert outcome.result(PATIENCE) == {
            a_place(0): CommitResult.COMMITTED,
            a_place(1): CommitResult.NOT_OWNED,
            a_place(2): CommitResult.OUTDATED,
            a_place(3): CommitResult.NOT_OWNED,
        }
        assert [position(coordination, n) for n in range(3)] == [at(3), at(-1), at(5)]

    def test_is_reported_before_its_outcome(self, coordination: Coordination):
        """Listeners are notified of a commit before its caller gets the outcome."""
        begin_assignment(coordination, "a")
        heard: list[SubscriptionChangeNotice] = []
        end = coordination.add_change_listener(SUBSCRIPTION, heard.append)
        outcome = commit_async(coordination, "a", {a_place(): at(3)})
        outcome.add_done_callback(lambda _: heard.append(SubscriptionChange.ASSIGNMENT))
        outcome.result(PATIENCE)
        end()
        first = heard.pop(0)
        assert first in (SubscriptionChange.OFFSETS, OffsetsCommitted("a", ((a_place(), at(3)),)))

    def test_many_at_once_are_judged_one_after_the_other(self, coordination: Coordination):
        """If many commits of several partitions compete, each position is either committed once or outdated, and each
        partition ends at the greatest.
        """
        begin_assignment(coordination, *["a"] * 20)
        outcomes = [
            commit_async(coordination, "a", {a_place(number % 20): at(number), a_place(7): at(number)})
            for number in range(100)
        ]
        found = [result for each in outcomes for result in each.result(PATIENCE).values()]
        assert set(found) <= {CommitResult.COMMITTED, CommitResult.OUTDATED}
        expected = [at(80 + each) for each in range(20)]
        expected[7] = at(99)
        assert [position(coordination, each) for each in range(20)] == expected

    def test_what_was_begun_is_made_before_closing(self, coordination: Coordination):
        """Every commit gets its outcome, even if it was still waiting for its turn."""
        begin_assignment(coordination, "a")
        outcomes = [commit_async(coordination, "a", {a_place(): at(number)}) for number in range(50)]
        coordination.close()
        for each in outcomes:
            error = each.exception(PATIENCE)
            assert error is None or isinstance(error, Unavailable)


def park_events(coordination, session: str, *events, upto: int | None = None) -> CommitResult:
    return coordination.park_events(SUBSCRIPTION, session, events, LATER, None if upto is None else at(upto))


class TestLeases:
    def test_are_what_they_were_renewed_to(self, coordination: Coordination):
        """A process has one lease: the last one that it asked for, even if that is shorter. (S318)"""
        coordination.renew_lease("one", LATER)
        coordination.renew_lease("two", LATER)
        coordination.renew_lease("two", A_MOMENT + timedelta(microseconds=3))
        assert coordination.lease_expiries() == {"one": LATER, "two": A_MOMENT + timedelta(microseconds=3)}

    def test_end_when_they_are_released(self, coordination: Coordination):
        """A released lease no longer exists; releasing it again changes nothing. (S224)"""
        coordination.renew_lease("one", LATER)
        coordination.release_lease("one")
        coordination.release_lease("one")
        assert coordination.lease_expiries() == {}


class TestWatch:
    def test_reports_of_changes_at_once(self, coordination: Coordination):
        """A watcher is notified of writes, commits and forgetting before they return, for its subscription only. A
        report of a commit may contain its positions."""
        committed = OffsetsCommitted("a", ((a_place(), at(3)),))
        heard: list[SubscriptionChangeNotice] = []
        end = coordination.add_change_listener(SUBSCRIPTION, heard.append)
        begin_assignment(coordination, "a", subscription="another")
        assert heard == []
        for change, told_of in (
            (lambda: begin_assignment(coordination, "a"), {SubscriptionChange.ASSIGNMENT}),
            (lambda: commit(coordination, "a", 3), {SubscriptionChange.OFFSETS, committed}),
            (lambda: coordination.remove_subscription_state(SUBSCRIPTION), {SubscriptionChange.ASSIGNMENT}),
        ):
            heard.clear()
            change()
            assert not told_of.isdisjoint(heard)
        end()
        end()
        heard.clear()
        begin_assignment(coordination, "a")
        assert heard == []

    def test_survives_listeners_that_fail(self, coordination: Coordination):
        """A listener that fails affects neither the process that commits nor the other listeners."""
        heard: list[SubscriptionChange] = []
        coordination.add_change_listener(SUBSCRIPTION, lambda _: 1 / 0)
        coordination.add_change_listener(SUBSCRIPTION, heard.append)
        begin_assignment(coordination, "a")
        assert heard == [SubscriptionChange.ASSIGNMENT]


class TestClose:
    def test_refuses_what_comes_later(self, coordination: Coordination):
        """After closing, calls fail and no listener is called; closing again changes nothing."""
        begin_assignment(coordination, "a")
        heard: list[SubscriptionChange] = []
        end = coordination.add_change_listener(SUBSCRIPTION, heard.append)
        coordination.close()
        coordination.close()
        attempts = {
            "assignment": lambda: coordination.assignment(SUBSCRIPTION),
            "replace_assignment": lambda: begin_assignment(coordination, ""),
            "committed_offsets": lambda: coordination.committed_offsets(SUBSCRIPTION),
            "commit": lambda: commit(coordination, "a", 1),
            "park_events": lambda: park_events(coordination, "a", a_parked_event(1)),
            "list_parked_events": lambda: coordination.list_parked_events(SUBSCRIPTION),
            "parked_event_value": lambda: coordination.parked_event_value(SUBSCRIPTION, a_place(), at(1)),
            "remove_parked_events": lambda: coordination.remove_parked_events(SUBSCRIPTION, a_place(), [at(1)]),
            "remove_subscription_state": lambda: coordination.remove_subscription_state(SUBSCRIPTION),
            "renew_lease": lambda: coordination.renew_lease("a", LATER),
            "release_lease": lambda: coordination.release_lease("a"),
            "lease_expiries": coordination.lease_expiries,
            "add_change_listener": lambda: coordination.add_change_listener(SUBSCRIPTION, heard.append),
        }
        assert_everything_is_refused(Coordination, attempts)
        begun = commit_async(coordination, "a", {a_place(): at(1)})
        assert isinstance(begun.exception(PATIENCE), Unavailable)
        assert heard == []
        end()
