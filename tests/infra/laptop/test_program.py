"""The program of the deployment on a laptop."""

import signal
import sys
from weakref import WeakSet

import pytest

from infra.laptop import processes
from infra.laptop.processes import start_process, stop_all
from tests.support.signalled import end_at_each_step


@pytest.mark.long
def test_the_program_ends_cleanly_from_every_moment_of_its_start():
    """While the program loads and deploys, Ctrl-C ends it with exit code 130, and SIGTERM with 0. It never prints a
    traceback.
    """
    whole = lambda steps: [(1, steps), (steps, steps * 9 // 5)]  # noqa: E731  # as much again until it is ready
    # Once it serves, its main thread waits for a signal after few steps: twenty of them are in printing.
    for end in end_at_each_step("infra.laptop", "--port=0", stretches=whole, more=20):
        ready = "Ctrl-C ends it." in end.said
        assert (end.code, end.complained) == (130 if end.how == signal.SIGINT and not ready else 0, ""), end


def test_processes_end_with_a_program_that_ends_at_once(monkeypatch):
    """Every process that was started is terminated, and those that ended before are skipped."""
    monkeypatch.setattr(processes, "_STARTED", WeakSet())  # only this test's processes, not those of other tests
    over = start_process([sys.executable, "-c", ""])
    over.wait()
    process = start_process([sys.executable, "-c", "import time; time.sleep(600)"])

    stop_all()

    assert process.wait() == -signal.SIGTERM
    assert over.returncode == 0
