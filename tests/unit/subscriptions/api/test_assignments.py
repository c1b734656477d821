"""Sessions join and leave: from one assignment to the next."""

from collections import Counter
from datetime import timedelta

import pytest
from msgspec.structs import replace

from nakadi.model.event_type import Position
from nakadi.model.outcomes import Conflict
from nakadi.model.subscription import EMPTY_ASSIGNMENT, Reset, Standstill
from nakadi.ports.coordination import MAX_PARTITIONS_PER_WRITE
from nakadi.subscriptions.api.assignments import (
    MAX_STANDSTILLS,
    with_entries,
    with_partitions_handed_over,
    with_rebalanced_partitions,
    with_session,
    with_standstills,
    without_sessions,
)
from tests.support.builders import A_MOMENT
from tests.support.coordination import a_place, a_session, an_assignment, entry, format_partitions

SUBSCRIPTION = "f4a3"


def join(assignment, session):
    return with_session(assignment, session, SUBSCRIPTION, A_MOMENT)


class TestJoining:
    def test_shares_at_once(self):
        """The write that adds a session also contains its partitions. (S235, S239)"""
        found = join(an_assignment("", ""), a_session("a"))
        assert [each.id for each in found.sessions] == ["a"]
        assert format_partitions(found.entries) == ["a", "a"]

    def test_ends_when_all_slots_are_taken(self):
        """With as many sharing sessions as partitions, there is no room for another. (S166, S317)"""
        full = an_assignment("a", "b", sessions=[a_session("a"), a_session("b")])
        with pytest.raises(Conflict) as raised:
            join(full, a_session("c"))
        assert str(raised.value) == "No free slots for streaming available for subscription f4a3. Total slots: 2"

    def test_counts_what_is_claimed_as_taken(self):
        """Partitions that were requested by name are not available to sharing sessions. (S166, S317)"""
        one_left = an_assignment("a", "d", sessions=[a_session("a"), a_session("d", 1)])
        with pytest.raises(Conflict, match=r"No free slots .* Total slots: 2"):
            join(one_left, a_session("b"))

    def test_is_never_refused_to_a_direct_session_for_lack_of_slots(self):
        """A session that names its partitions joins even if all slots are taken. (S167)"""
        full = an_assignment("a", "b", sessions=[a_session("a"), a_session("b")])
        found = join(full, a_session("d", 0))
        assert [each.id for each in found.sessions] == ["a", "b", "d"]
        assert format_partitions(found.entries) == ["a", "b"]

    def test_is_refused_for_a_claimed_partition(self):
        """Only one session at a time can claim a partition by name. (S167, S317)"""
        claimed = an_assignment("d", "d", "", sessions=[a_session("d", 0, 1)])
        with pytest.raises(Conflict) as raised:
            join(claimed, a_session("e", 0, 1, 2))
        assert str(raised.value) == (
            "The following partitions are already requested by other stream(s) of this subscription: "
            "EventTypePartition{eventType='order', partition='0'},EventTypePartition{eventType='order', partition='1'}"
        )

    def test_waits_for_a_reset(self):
        """While offsets are being set, no session joins; once the time of a reset is over, it keeps no session away.
        (S141, S144)
        """
        being_reset = an_assignment("", reset=Reset("r", A_MOMENT + timedelta(seconds=1)))
        with pytest.raises(Conflict) as raised:
            join(being_reset, a_session("a"))
        assert str(raised.value) == "Resetting subscription cursors request is still in progress"
        assert format_partitions(join(replace(being_reset, reset=Reset("r", A_MOMENT)), a_session("a")).entries) == [
            "a"
        ]

    def test_reports_missing_slots_rather_than_a_reset_in_progress(self):
        """If there is no free slot while offsets are being set, the refusal names the missing slot. (S156)"""
        full = an_assignment("a", sessions=[a_session("a")], reset=Reset("r", A_MOMENT + timedelta(seconds=1)))
        with pytest.raises(Conflict, match="No free slots"):
            join(full, a_session("b"))


class TestLeaving:
    def test_frees_what_the_session_had(self):
        """A partition that no session can take over has no owner. (S227)"""
        found = without_sessions(an_assignment("a", "a", sessions=[a_session("a")]), {"a"})
        assert (found.sessions, format_partitions(found.entries)) == ((), ["", ""])

    def test_gives_what_was_promised_and_shares_the_rest(self):
        """The partitions that a session leaves go to the sessions to which they were promised, and the others are
        shared. (S239, S245, S248)"""
        before = an_assignment("a>b", "a", "a>c", "c", sessions=[a_session("a"), a_session("b"), a_session("c")])
        assert format_partitions(without_sessions(before, {"a"}).entries) == ["b", "b", "c", "c"]

    def test_ends_promises_to_the_session(self):
        """A partition that was promised to a session that has left stays with its owner. (S240)"""
        before = an_assignment("a", "a>b", sessions=[a_session("a"), a_session("b")])
        assert format_partitions(without_sessions(before, {"b"}).entries) == ["a", "a"]

    def test_leaving_a_second_time_changes_nothing(self):
        """Leaving twice has the same effect as leaving once. (S319)"""
        before = an_assignment("a", "b", sessions=[a_session("a"), a_session("b")])
        assert without_sessions(before, {"x"}) == before


class TestHandingOver:
    def test_moves_what_is_promised(self):
        """Only partitions that the session owns and that are promised change hands. (S242, S313)"""
        before = an_assignment("a>b", "a", "b", sessions=[a_session("a"), a_session("b")])
        assert format_partitions(with_partitions_handed_over(before, "a", {a_place(0), a_place(1)}).entries) == [
            "b",
            "a",
            "b",
        ]
        assert with_partitions_handed_over(before, "b", {a_place(0)}) == before


def test_entries_are_replaced_in_their_places():
    """Changed entries replace the existing ones in their positions; unknown entries are ignored."""
    changed = replace(entry(1, "a"), failed_streams=2)
    assert with_entries(an_assignment("a", "a"), [changed, entry(5)]).entries == (entry(0, "a"), changed)


def test_large_subscriptions_move_in_several_writes():
    """No write changes the owners of more partitions than one write may, and repeated writes lead to fair shares.
    (S319)
    """
    now = an_assignment(*[""] * 250, sessions=[a_session("a"), a_session("b")])
    while (following := with_rebalanced_partitions(now)) != now:
        moved = sum(b.owner != n.owner for b, n in zip(now.entries, following.entries, strict=True))
        assert moved <= MAX_PARTITIONS_PER_WRITE
        now = following
    assert Counter(format_partitions(now.entries)) == {"a": 125, "b": 125}
    gone = without_sessions(now, {"a"})
    assert sum(b.owner != n.owner for b, n in zip(now.entries, gone.entries, strict=True)) == MAX_PARTITIONS_PER_WRITE
    while (following := with_rebalanced_partitions(gone)) != gone:
        gone = following
    assert Counter(format_partitions(gone.entries)) == {"b": 250}


class TestStandstills:
    """Standstills, where the streams of a subscription make no progress."""

    def test_count_streams_at_one_place(self):
        """Consecutive streams that end at the same position with uncommitted events are counted; a stream without sent
        events does not change the count. (S340)"""
        found = EMPTY_ASSIGNMENT
        for streams in (1, 0, 1):
            found = with_standstills(found, [Standstill(a_place(0), Position(1, 7), streams)])
        assert found.standstills == (Standstill(a_place(0), Position(1, 7), 2),)

    @pytest.mark.parametrize(("streams", "left"), [(1, (Standstill(a_place(0), Position(1, 8), 1),)), (0, ())])
    def test_begin_again_elsewhere(self, streams, left):
        """At another position, the count starts again; other partitions keep their counts. (S340)"""
        other = Standstill(a_place(1), Position(1, 7), 5)
        before = replace(EMPTY_ASSIGNMENT, standstills=(Standstill(a_place(0), Position(1, 7), 5), other))
        found = with_standstills(before, [Standstill(a_place(0), Position(1, 8), streams)])
        assert found.standstills == (other, *left)

    def test_are_kept_of_the_latest_partitions(self):
        """The record of a subscription does not grow with the number of its partitions."""
        found = with_standstills(
            EMPTY_ASSIGNMENT, [Standstill(a_place(each), Position(1, 7), 1) for each in range(MAX_STANDSTILLS + 1)]
        )
        assert [each.partition for each in found.standstills] == [a_place(each + 1) for each in range(MAX_STANDSTILLS)]
