"""How processes with one file hear of each other, whatever goes wrong."""

import threading
from contextlib import closing

import pytest

from nakadi.engines.sqlite.changes import ARRIVED, SINCE, AppendsByOthers, FileChangePoller
from nakadi.engines.sqlite.coordination import SqliteCoordination
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.subscription import NOTHING_YET
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
    changes = FileChangePoller(TracedFile(path, FailingOnce(SINCE)), lambda *_: heard.set())
    changes.attend()
    with closing(SqliteCoordination(path)) as there:
        there.write("s", NOTHING_YET, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
        assert heard.wait(PATIENCE)
    changes.close()
    assert "Looking for changes of other processes failed" in caplog.text


def test_events_are_heard_after_a_look_that_failed(tmp_path, caplog, heard):
    """A look for events of other processes that fails, for whatever reason, is logged and not the last one. (L34)"""
    path = tmp_path / "nakadi.db"
    appends = AppendsByOthers(TracedFile(path, FailingOnce(ARRIVED)), lambda *_: heard.set())
    appends.attend()
    with closing(SqliteLog(path, SystemClock())) as there:
        there.create_topic("t", 1)
        there.append("t", {0: [Record(b"1")]})
        assert heard.wait(PATIENCE)
    appends.close()
    assert "Looking for events of other processes failed" in caplog.text
