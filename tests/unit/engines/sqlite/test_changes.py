"""Notifications between processes with the same file, despite any failure."""

import os
import threading
from contextlib import closing, contextmanager

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite import changes
from nakadi.engines.sqlite.changes import (
    SELECT_APPENDED_PARTITIONS,
    SELECT_CHANGES_SINCE,
    AppendPoller,
    ChangePipes,
    FileChangePoller,
)
from nakadi.engines.sqlite.coordination import SqliteCoordination
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.subscription import EMPTY_ASSIGNMENT, OffsetsCommitted, SubscriptionChange, SubscriptionChangeNotice
from nakadi.ports.clock import SystemClock
from tests.support.builders import A_MOMENT
from tests.support.coordination import SUBSCRIPTION, a_place, an_assignment, at, begin_assignment, commit
from tests.support.patience import PATIENCE
from tests.support.sqlite import TracedFile


class FailingOnce:
    """Raises an unexpected error the first time a given statement is executed."""

    def __init__(self, statement: str) -> None:
        self._statement = statement
        self._failed = False

    def __call__(self, statement: str) -> None:
        if statement == self._statement and not self._failed:
            self._failed = True
            raise KeyError("a mistake")


@pytest.fixture
def heard_changes():
    return threading.Event()


def test_changes_are_heard_after_a_look_that_failed(tmp_path, caplog, heard_changes):
    """If a check for changes by other processes fails, the log says so, and the next check finds them. (S198)"""
    path = tmp_path / "nakadi.db"
    changes = FileChangePoller(TracedFile(path, FailingOnce(SELECT_CHANGES_SINCE)), lambda *_: heard_changes.set())
    changes.add_watcher()
    with closing(SqliteCoordination(path)) as there:
        there.replace_assignment("s", EMPTY_ASSIGNMENT, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
        assert heard_changes.wait(PATIENCE)
    changes.close()
    assert "Looking for changes of other processes failed" in caplog.text


@contextmanager
def two_reporting_processes(path):
    """Two processes of one broker, each with its pipe."""
    (first, to_first), (second, to_second) = ChangePipes.new_nonblocking_pipe(), ChangePipes.new_nonblocking_pipe()
    with (
        closing(SqliteCoordination(path, ChangePipes(first, [to_second]))) as one,
        closing(SqliteCoordination(path, ChangePipes(second, [to_first]))) as other,
    ):
        yield one, other
    for each in (first, to_first, second, to_second):
        os.close(each)


def test_processes_of_one_broker_report_changes_to_each_other(tmp_path, monkeypatch, heard_changes):
    """A listener is notified of a change without a look at the file, however many changes were reported while nobody
    watched."""
    monkeypatch.setattr(FileChangePoller, "_report_if_file_changed", lambda *_: -1)
    with two_reporting_processes(tmp_path / "nakadi.db") as (one, other):
        for number in range(2000):
            one._changes.report_own_changes([number], "s", SubscriptionChange.OFFSETS)
        other.add_change_listener("s", lambda changed: changed is SubscriptionChange.ASSIGNMENT and heard_changes.set())
        one.replace_assignment("other", EMPTY_ASSIGNMENT, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
        assert not heard_changes.is_set()
        one.replace_assignment("s", EMPTY_ASSIGNMENT, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
        assert heard_changes.wait(PATIENCE)


def test_a_name_too_long_for_a_report_is_found_by_a_look(tmp_path, heard_changes):
    name = "s" * 55
    with two_reporting_processes(tmp_path / "nakadi.db") as (one, other):
        other.add_change_listener(name, lambda _: heard_changes.set())
        one.replace_assignment(name, EMPTY_ASSIGNMENT, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
        assert heard_changes.wait(PATIENCE)


def test_events_are_heard_after_a_look_that_failed(tmp_path, caplog, heard_changes):
    """If a check for events of other processes fails, the log says so, and the next check finds them. (L34)"""
    path = tmp_path / "nakadi.db"
    appends = AppendPoller(TracedFile(path, FailingOnce(SELECT_APPENDED_PARTITIONS)), lambda *_: heard_changes.set())
    appends.add_watcher()
    with closing(SqliteLog(path, SystemClock())) as there:
        there.create_topic("t", 1)
        run_blocking(there.append("t", {0: [Record(b"1")]}))
        assert heard_changes.wait(PATIENCE)
    appends.close()
    assert "Looking for events of other processes failed" in caplog.text


def test_a_commit_of_this_process_does_not_hide_that_of_another(tmp_path, monkeypatch):
    """The file has only the number of a subscription's last commit. Even if this process made that commit, an earlier
    commit by another process is reported.
    """
    monkeypatch.setattr(changes, "COORDINATION_CHECK_INTERVAL_SECONDS", 0.5)
    reports: list[SubscriptionChangeNotice] = []
    heard_changes = threading.Event()

    def note(report: SubscriptionChangeNotice) -> None:
        reports.append(report)
        if report is SubscriptionChange.OFFSETS:
            heard_changes.set()

    path = tmp_path / "nakadi.db"
    with closing(SqliteCoordination(path)) as ours, closing(SqliteCoordination(path)) as theirs:
        begin_assignment(ours, "a", "b")
        end = ours.add_change_listener(SUBSCRIPTION, note)
        # The poller pauses before it checks, so it finds both commits at once.
        commit(theirs, "b", 5, partition=1)
        commit(ours, "a", 5)
        assert heard_changes.wait(PATIENCE), reports
        end()


def test_own_commits_are_reported_once(tmp_path, monkeypatch):
    """A process does not read its own commits from the file again, whichever partitions they are for."""
    reports: list[SubscriptionChangeNotice] = []
    looks = threading.Semaphore(0)
    look = FileChangePoller._report_changes_since_last

    def count_poll(poller, connection):
        look(poller, connection)
        looks.release()

    monkeypatch.setattr(FileChangePoller, "_report_changes_since_last", count_poll)
    # A check between a commit and its note may report the commit again, so let the poller pause meanwhile.
    monkeypatch.setattr(changes, "COORDINATION_CHECK_INTERVAL_SECONDS", 0.5)
    with closing(SqliteCoordination(tmp_path / "nakadi.db")) as ours:
        begin_assignment(ours, "a", "a", "a")
        ours.add_change_listener(SUBSCRIPTION, reports.append)
        assert looks.acquire(timeout=PATIENCE)
        for offset in (5, 6):
            run_blocking(ours.commit(SUBSCRIPTION, "a", {a_place(number): at(offset) for number in range(3)}, A_MOMENT))
        # This commit makes the poller notice that the file has changed.
        begin_assignment(ours, "a", subscription="other")
        assert looks.acquire(timeout=PATIENCE)
    assert [type(each) for each in reports] == [OffsetsCommitted] * 2
