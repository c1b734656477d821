"""The deadline for the end of a process."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from nakadi.app.shutdown import EXIT_CODE_TIMED_OUT, ShutdownDeadline, describe_busy_threads
from tests.support.patience import PATIENCE, started_threads, until


class RecordedExit:
    """Records how a process would have ended."""

    def __init__(self):
        self.codes = []
        self.event = threading.Event()

    def __call__(self, code):
        self.codes.append(code)
        self.event.set()


@contextmanager
def stuck_threads(number=3):
    """Threads that wait for something that never comes, such as an answer from a store."""
    freed, entered = threading.Event(), threading.Semaphore(0)

    def ask_a_store_that_does_not_answer():
        entered.release()
        freed.wait(PATIENCE)

    threads = [
        threading.Thread(target=ask_a_store_that_does_not_answer, name=f"test-asking_{index}")
        for index in range(number)
    ]
    for each in threads:
        each.start()
        entered.acquire(timeout=PATIENCE)
    try:
        yield
    finally:
        freed.set()
        for each in threads:
            each.join(PATIENCE)


def test_a_process_whose_time_is_over_ends(caplog):
    """A process that does not end in time is killed, and the log names the work that was still running."""
    ended = RecordedExit()
    with stuck_threads(), ShutdownDeadline(0, end=ended) as grace:
        grace.begin_countdown()
        assert ended.event.wait(PATIENCE)

    assert ended.codes == [EXIT_CODE_TIMED_OUT]
    (record,) = [each for each in caplog.records if each.name == "nakadi.app.shutdown"]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("The process is cut off after 0 seconds. Still at work: 3 x test-asking in ")


def test_the_time_runs_from_the_signal_on():
    """The deadline runs from the signal that asks the process to end."""
    ended = RecordedExit()
    with ShutdownDeadline(0, end=ended):
        assert not ended.event.wait(0.01)
    assert ended.codes == []


def test_a_process_that_ends_in_time_is_left_alone():
    """A process that has closed everything before the deadline is not killed."""
    ended = RecordedExit()
    with started_threads() as started:
        with ShutdownDeadline(PATIENCE, end=ended) as grace:
            grace.begin_countdown()
        assert ended.codes == []
        assert "nakadi-grace" not in started()


def test_a_log_that_takes_nothing_does_not_hold_up_the_end(monkeypatch):
    """The process ends even if its last log lines cannot be written."""
    monkeypatch.setattr("nakadi.app.shutdown.LAST_LOG_TIMEOUT_SECONDS", 0.01)
    freed, ended = threading.Event(), RecordedExit()
    monkeypatch.setattr("nakadi.app.shutdown.log.warning", lambda *_: freed.wait(PATIENCE))
    with ShutdownDeadline(0, end=ended) as grace:
        grace.begin_countdown()
        assert ended.event.wait(PATIENCE)
    freed.set()


def test_threads_at_work_are_reported_by_their_place():
    """The log lists threads that do the same work once, with their number, and lists no threads that wait for work."""
    with stuck_threads(2):
        assert "2 x test-asking in " in describe_busy_threads()
    assert "test-asking" not in describe_busy_threads()


@pytest.mark.parametrize("number", [0, 1])
def test_pools_without_work_are_not_reported(number):
    """A thread of a pool is listed only while it works."""
    freed, entered = threading.Event(), threading.Event()

    def work():
        entered.set()
        freed.wait(PATIENCE)

    with ThreadPoolExecutor(1, thread_name_prefix="test-pool") as pool:
        pool.submit(int).result()
        if number:
            pool.submit(work)
            assert entered.wait(PATIENCE)
        until(lambda: describe_busy_threads().count("test-pool") == number)
        freed.set()
