"""A short soak; `make soak MINUTES=10` is a long one."""

import signal

import pytest

from tests.soak.soak import Plan, run_soak
from tests.soak.verdict import Judge


def test_nothing_is_lost_whichever_process_is_killed(tmp_path):
    """Consumers are killed at random, and the server is killed once and restarted once: every acknowledged event is
    delivered, in order, and no committed event comes again. A sink that sometimes fails gets every event, too. (S206,
    S239, S245, S312, S313, S315, X11, X12, X30, X32)
    """
    goes_down = ((0.2, signal.SIGKILL), (0.6, signal.SIGTERM))
    said = []
    verdict = run_soak(Plan(seconds=5, life_seconds=3, events_a_second=300, goes_down=goes_down), tmp_path, said.append)
    assert verdict.is_good, f"{verdict}; {said}"
    # How much happens in so short a time depends on the machine.
    assert verdict.acknowledged
    assert verdict.sessions
    assert verdict.of_sink is not None
    assert verdict.of_sink.delivered >= verdict.acknowledged


FINE = [
    (1.0, "opened", "a", 0.9),
    (2.0, "got", "a", "0", "001-0001-1", ["k:0", "k:1"]),
    (3.0, "committed", "a", "0", "1"),
]


@pytest.mark.parametrize(
    ("entries", "counts"),
    [
        ([(4.0, "got", "a", "0", "3", ["k:2", "k:3"])], (0, 0, 0)),
        ([(4.0, "got", "a", "0", "4", ["k:3", "k:4"])], (1, 0, 0)),
        ([(4.0, "got", "a", "0", "1", ["k:1"])], (1, 0, 1)),
        ([(4.0, "opened", "b", 2.5), (5.0, "got", "b", "0", "2", ["k:1", "k:2"])], (0, 0, 1)),
        ([(4.0, "opened", "b", 3.5), (5.0, "got", "b", "0", "2", ["k:1", "k:2"])], (0, 1, 1)),
        ([(4.0, "got", "a", "0", "3", ["k:3", "k:2"])], (1, 0, 0)),
    ],
    ids=["goes on", "leaves one out", "goes back", "duplicate", "committed before", "turns them round"],
)
def test_the_judge_sees_what_is_wrong(entries, counts):
    """The judge counts gaps, steps back, duplicates, and events that come again after their commit."""
    judge = Judge()
    judge.read([*FINE, *entries])
    verdict = judge.verdict
    assert (verdict.out_of_order, verdict.again, verdict.duplicates) == counts


def test_what_never_came_is_lost():
    """An acknowledged event that no consumer got is lost."""
    judge = Judge()
    judge.read(FINE)
    assert judge.count_lost(["k:0", "k:1", "k:2"]) == 1
