"""Fair shares, as few moves as possible, and nothing is taken from a live session."""

import itertools
import random
from collections import Counter

import pytest
from msgspec.structs import replace

from nakadi.model.event_type import Position
from nakadi.subscriptions.api.assignments import changes_to_rebalance, entries_handed_over, entry_moved_to
from tests.support.coordination import a_place, a_session, entries, entry, format_partitions
from tests.support.everything import seeds


def rebalanced_entries(sessions, before):
    """All entries after the rebalance."""
    changed = {each.partition: each for each in changes_to_rebalance(sessions, before)}
    return [changed.get(each.partition, each) for each in before]


def sharing_sessions(*ids):
    return [a_session(each) for each in ids]


SHARES = [
    # sessions, entries before, entries after
    ("", ["", ""], ["", ""]),
    ("a", ["", "", ""], ["a", "a", "a"]),
    ("a b", ["", "", "", ""], ["a", "a", "b", "b"]),
    ("b a", ["", "", ""], ["a", "a", "b"]),
    ("c b a", ["", "", "", "", ""], ["a", "a", "b", "b", "c"]),
    ("a b", ["a", "a", "a", "a"], ["a", "a", "a>b", "a>b"]),
    ("a b", ["a", "a", "a"], ["a", "a", "a>b"]),
    ("a", ["b", "b", "a"], ["a", "a", "a"]),
    ("a b", ["c", "c", "c", "a"], ["a", "b", "b", "a"]),
    ("a", ["a>b", "b>a", "b>c"], ["a", "a", "a"]),
    ("a b", ["a>b", "a>b", "a", "a"], ["a>b", "a>b", "a", "a"]),
    ("a b", ["a>b", "a", "b", "b"], ["a", "a", "b", "b"]),
    ("a b c", ["a", "a>b", "a>b"], ["a", "a>c", "a>b"]),
    ("a b c", ["a", "b", "c"], ["a", "b", "c"]),
]


class TestShares:
    @pytest.mark.parametrize(("sessions", "before", "wanted"), SHARES)
    def test_are_even_and_moves_are_few(self, sessions, before, wanted):
        """Sessions get equal numbers, and the first ids get the remainder. Free partitions move first, then surplus
        ones, and promised ones before those that are being read. (S236, S237, S239, S240)"""
        assert format_partitions(rebalanced_entries(sharing_sessions(*sessions.split()), entries(*before))) == wanted

    @pytest.mark.parametrize(("sessions", "before", "_"), SHARES)
    def test_that_are_fair_stay(self, sessions, before, _):
        """A second rebalance changes nothing, even while partitions wait for their hand-over. (S238, S319)"""
        once = rebalanced_entries(sharing_sessions(*sessions.split()), entries(*before))
        assert changes_to_rebalance(sharing_sessions(*sessions.split()), once) == ()

    def test_do_not_depend_on_the_order_of_sessions(self):
        """Every process gets the same result, in any order of the sessions. (S236, S319)"""
        before = entries("a", "a>b", "", "c", "d", "b")
        results = [
            format_partitions(rebalanced_entries(list(order), before))
            for order in itertools.permutations(sharing_sessions("a", "b", "c"))
        ]
        assert len({tuple(each) for each in results}) == 1

    def test_keep_what_is_known_of_a_partition(self):
        """The count of failed streams and the end of a search stay with the partition. (S262)"""
        before = [replace(entry(0, "dead"), failed_streams=3, search_end=Position(1, 7))]
        assert changes_to_rebalance(sharing_sessions("a"), before) == (replace(before[0], owner="a"),)

    def test_are_refused_when_sessions_outnumber_partitions(self):
        """With more sessions than partitions, nothing changes. (S174)"""
        assert changes_to_rebalance(sharing_sessions("a", "b", "c"), entries("a", "b")) == ()


class TestDirectSessions:
    def test_get_what_they_ask_for_and_the_others_share_the_rest(self):
        """Of eight partitions, two are requested by name: the two other sessions get three each. (S170)"""
        found = format_partitions(
            rebalanced_entries([a_session("d", 0, 1), *sharing_sessions("a", "b")], entries(*[""] * 8))
        )
        assert found[:2] == ["d", "d"]
        assert Counter(found[2:]) == {"a": 3, "b": 3}

    def test_wait_for_the_current_reader_of_their_partition(self):
        """A partition that is being read is promised to the session that requested it by name, and is not taken away.
        (S171, S240)"""
        assert format_partitions(
            rebalanced_entries([a_session("d", 1), *sharing_sessions("a")], entries("a", "a"))
        ) == ["a", "a>d"]

    def test_never_lose_their_partition_to_others(self):
        """However many sessions share the others, partitions that were claimed by name stay. (S172)"""
        sessions = [a_session("d", 0), *sharing_sessions("a", "b")]
        assert format_partitions(rebalanced_entries(sessions, entries("d", "a", "a"))) == ["d", "a", "a>b"]

    def test_leave_alone_what_no_one_asked_for(self):
        """With direct sessions only, the other partitions have no owner. (S173)"""
        assert format_partitions(rebalanced_entries([a_session("d", 1)], entries("", "", ""))) == ["", "d", ""]

    def test_may_take_everything(self):
        """If all partitions are claimed by name, sharing sessions lose theirs. (S175)"""
        assert format_partitions(
            rebalanced_entries([a_session("d", 0, 1), *sharing_sessions("a")], entries("a", "a"))
        ) == ["a>d", "a>d"]

    def test_give_back_to_those_who_share(self):
        """A partition whose direct session has left returns to the sharing sessions. (S171)"""
        assert format_partitions(rebalanced_entries(sharing_sessions("a"), entries("a", "d"))) == ["a", "a"]

    def test_that_leave_too_little_change_nothing(self):
        """If direct sessions leave fewer partitions than there are sharing sessions, nothing changes, not even for the
        claims. (S174)"""
        assert changes_to_rebalance([a_session("d", 0), *sharing_sessions("a", "b")], entries("a", "b")) == ()

    @pytest.mark.parametrize("sessions", [[a_session("d", 7)], [a_session("d", 0), a_session("e", 0)]])
    def test_that_ask_for_the_impossible_change_nothing(self, sessions):
        """A claim to a missing partition, or two claims to one partition, change nothing. (S319)"""
        assert changes_to_rebalance(sessions, entries("", "")) == ()


class TestMove:
    @pytest.mark.parametrize(
        ("before", "wanted"), [("", "s"), ("s", "s"), ("s>x", "s"), ("dead", "s"), ("dead>x", "s"), ("x", "x>s")]
    )
    def test_takes_from_the_dead_and_asks_the_living(self, before, wanted):
        """A partition without an owner, or with a dead one, changes hands at once. A live owner's partition is
        promised; assigning it to its owner again ends a promise. (S239, S240)"""
        assert format_partitions([entry_moved_to(entry(0, before), "s", {"s", "x"})]) == [wanted]


class TestHandOver:
    def test_gives_what_was_promised(self):
        """Partitions that an owner releases go to the sessions to which they are promised; nothing else moves. (S242,
        S313)"""
        before = entries("a>b", "a", "c>b", "a>b", "")
        changed = entries_handed_over(before, "a", {each.partition for each in before[:3]})
        assert [(each.partition, *format_partitions([each])) for each in changed] == [(a_place(0), "b")]


@pytest.mark.parametrize("seed", seeds(40, 200))
def test_whatever_happens_the_rules_hold(seed):
    """After any joining and leaving, and once all promised partitions are released: shares differ by one at most,
    claims are met, no live owner ever lost a partition through a rebalance, and a second rebalance changes nothing.
    (S236, S237, S238, S313, S319)"""
    chance = random.Random(seed)
    now = list(entries(*[""] * chance.randint(1, 12)))
    sessions = []
    for step in range(30):
        sessions = [each for each in sessions if chance.random() > 0.2]
        free = [e for e in range(len(now)) if not any(a_place(e) in s.requested_partitions for s in sessions)]
        if free and chance.random() < 0.2:
            sessions.append(a_session(f"d{step}", *chance.sample(free, 1)))
        elif sum(not each.requested_partitions for each in sessions) < len(free):
            sessions.append(a_session(f"s{step}"))
        before, now = now, rebalanced_entries(sessions, now)
        assert changes_to_rebalance(sessions, now) == ()
        live = {each.id for each in sessions}
        assert all(b.owner == n.owner for b, n in zip(before, now, strict=True) if b.owner in live)
        settled = [replace(each, owner=each.next_owner or each.owner, next_owner=None) for each in now]
        _assert_fair(sessions, settled)
        if chance.random() < 0.5:
            now = settled


def _assert_fair(sessions, settled):
    claims = {place: each.id for each in sessions for place in each.requested_partitions}
    automatic = [each.id for each in sessions if not each.requested_partitions]
    rest = [each for each in settled if each.partition not in claims]
    if automatic and len(rest) < len(automatic) and rest:
        return
    assert all(each.owner == claims[each.partition] for each in settled if each.partition in claims)
    if automatic and rest:
        shares = Counter(each.owner for each in rest)
        assert set(shares) == set(automatic)
        assert max(shares.values()) - min(shares.values()) <= 1


def test_new_partitions_go_to_those_who_share():
    """A session that requested partitions by name gets exactly these; partitions that are added go to the other
    sessions, and stay unassigned if there are none. (S176, S173)"""
    direct, sharing_sessions = a_session("d", 0), a_session("s")
    grown = entries("d", "s", "", "")
    assert format_partitions(rebalanced_entries([direct, sharing_sessions], grown)) == ["d", "s", "s", "s"]
    assert format_partitions(rebalanced_entries([direct], entries("d", "", ""))) == ["d", "", ""]
