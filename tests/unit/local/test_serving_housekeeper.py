"""Housekeeping in a thread."""

import threading

from nakadi.local.serving import Housekeeper
from tests.support.patience import PATIENCE


def test_chores_are_done_again_and_again_whatever_happens(caplog):
    """A chore that fails is logged and tried again; closing ends it."""
    three_times = threading.Event()
    times = []

    def chores():
        times.append(1)
        if len(times) == 3:
            three_times.set()
        raise RuntimeError("dust")

    housekeeper = Housekeeper(chores, every_seconds=0.001)
    assert three_times.wait(PATIENCE)
    housekeeper.close()
    done = len(times)

    assert "RuntimeError: dust" in caplog.text
    assert len(times) == done


def test_a_housekeeper_may_go_before_the_first_round():
    """Closing does not wait for the next round."""
    Housekeeper(lambda: None, every_seconds=3600).close()
