"""How processes with one file hear of each other, whatever goes wrong."""

import os
import threading
from contextlib import closing, contextmanager

import pytest

from nakadi.engines.sqlite.changes import (
    SELECT_APPENDED_PARTITIONS,
    SELECT_CHANGES_SINCE,
    AppendsOfOtherProcesses,
    ChangePipes,
    FileChangePoller,
)
from nakadi.engines.sqlite.coordination import SqliteCoordination
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.subscription import EMPTY_ASSIGNMENT, SubscriptionChange
from nakadi.ports.clock import SystemClock
from tests.support.builders import A_MOMENT
from tests.support.coordination import a_place, an_assignment
from tests.support.patience import PATIENCE
from tests.support.sqlite import TracedFile


class FailingOnce:
    """Raises an unexpected error the first time that a statement is executed."""

    def __init__(self, statement: str) -> None:
        self._statement = statement
        self._failed = False

    def __call__(self, statement: str) -> None:
        if statement == self._statement and not self._failed:
            self._failed = True
            raise KeyError("a mistake")


@pytest.fixture
def heard():
    return threading.Event()


def test_changes_are_heard_after_a_look_that_failed(tmp_path, caplog, heard):
    """A look for changes of other processes that fails, for whatever reason, is logged and not the last one. (S198)"""
    path = tmp_path / "nakadi.db"
    changes = FileChangePoller(TracedFile(path, FailingOnce(SELECT_CHANGES_SINCE)), lambda *_: heard.set())
    changes.attend()
    with closing(SqliteCoordination(path)) as there:
        there.write("s", EMPTY_ASSIGNMENT, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
        assert heard.wait(PATIENCE)
    changes.close()
    assert "Looking for changes of other processes failed" in caplog.text


@contextmanager
def reporting(path):
    """Two processes of one broker, each with its pipe."""
    (first, to_first), (second, to_second) = ChangePipes.pair(), ChangePipes.pair()
    with (
        closing(SqliteCoordination(path, ChangePipes(first, [to_second]))) as one,
        closing(SqliteCoordination(path, ChangePipes(second, [to_first]))) as other,
    ):
        yield one, other
    for each in (first, to_first, second, to_second):
        os.close(each)


def test_processes_of_one_broker_report_changes_to_each_other(tmp_path, monkeypatch, heard):
    """A change is heard without a look at the file, however much was reported before while nothing watched."""
    monkeypatch.setattr(FileChangePoller, "_look_once", lambda *_: -1)
    with reporting(tmp_path / "nakadi.db") as (one, other):
        for number in range(2000):
            one._changes.note_own([number], "s", SubscriptionChange.OFFSETS)
        other.watch("s", lambda changed: changed is SubscriptionChange.ASSIGNMENT and heard.set())
        one.write("other", EMPTY_ASSIGNMENT, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
        assert not heard.is_set()
        one.write("s", EMPTY_ASSIGNMENT, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
        assert heard.wait(PATIENCE)


def test_a_name_too_long_for_a_report_is_found_by_a_look(tmp_path, heard):
    name = "s" * 55
    with reporting(tmp_path / "nakadi.db") as (one, other):
        other.watch(name, lambda _: heard.set())
        one.write(name, EMPTY_ASSIGNMENT, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
        assert heard.wait(PATIENCE)


def test_events_are_heard_after_a_look_that_failed(tmp_path, caplog, heard):
    """A look for events of other processes that fails, for whatever reason, is logged and not the last one. (L34)"""
    path = tmp_path / "nakadi.db"
    appends = AppendsOfOtherProcesses(TracedFile(path, FailingOnce(SELECT_APPENDED_PARTITIONS)), lambda *_: heard.set())
    appends.attend()
    with closing(SqliteLog(path, SystemClock())) as there:
        there.create_topic("t", 1)
        there.append("t", {0: [Record(b"1")]})
        assert heard.wait(PATIENCE)
    appends.close()
    assert "Looking for events of other processes failed" in caplog.text
