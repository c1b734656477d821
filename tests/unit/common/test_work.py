"""Taking turns at long work."""

import threading
from contextlib import contextmanager

import pytest

from nakadi.common.work import LongWorkQueue, client_never_gone
from nakadi.model.outcomes import TryLater
from tests.support.patience import PATIENCE


@contextmanager
def occupied_turn(turns):
    """Within the block, another thread has the turn."""
    begun, ended = threading.Event(), threading.Event()

    def work():
        with turns.wait_for_turn(client_never_gone):
            begun.set()
            assert ended.wait(PATIENCE)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        yield ended.set
    finally:
        ended.set()
        thread.join(PATIENCE)


def test_one_thread_at_a_time_has_its_turn():
    """A turn begins when the one before it is over, even if that one failed."""
    turns = LongWorkQueue(timeout_seconds=PATIENCE)
    with pytest.raises(RuntimeError), turns.wait_for_turn(client_never_gone):
        raise RuntimeError
    order = []
    with occupied_turn(turns) as end:
        thread = threading.Thread(target=lambda: order.append(_turn(turns)))
        thread.start()
        thread.join(0.01)
        assert order == []
        end()
        thread.join(PATIENCE)
    assert order == ["had"]


def _turn(turns):
    with turns.wait_for_turn(client_never_gone):
        return "had"


def test_a_turn_is_not_waited_for_too_long():
    """A request that has waited long enough is told to come again later."""
    turns = LongWorkQueue(timeout_seconds=0.01)
    with (
        occupied_turn(turns),
        pytest.raises(TryLater, match="please repeat request"),
        turns.wait_for_turn(client_never_gone),
    ):
        pytest.fail("it is not its turn")


def test_only_a_few_wait():
    """Beyond a limited number of waiting requests, others are refused at once."""
    turns = LongWorkQueue(max_waiting=0, timeout_seconds=PATIENCE)
    with (
        occupied_turn(turns),
        pytest.raises(TryLater, match="please repeat request"),
        turns.wait_for_turn(client_never_gone),
    ):
        pytest.fail("it is not its turn")
    assert _turn(turns) == "had"


def test_who_has_gone_does_not_wait():
    """A request whose client has closed the connection stops waiting for a turn."""
    turns = LongWorkQueue(timeout_seconds=PATIENCE)
    with occupied_turn(turns), pytest.raises(TryLater, match="given up"), turns.wait_for_turn(lambda: True):
        pytest.fail("it is not its turn")
