"""How processes with one file hear of each other, whatever goes wrong."""

import threading

import pytest

from nakadi.engines.sqlite.coordination import SqliteCoordination
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.model.coordination import NOTHING_YET
from nakadi.model.events import Record
from nakadi.model.timeline import Position
from nakadi.ports.clock import SystemClock
from tests.support.builders import A_MOMENT
from tests.support.coordination import a_place, an_assignment

PATIENCE_SECONDS = 60


def failing_once(monkeypatch, whom, name):
    """Have a method raise what nobody expects, once."""
    method, failed = getattr(whom, name), threading.Event()

    def once(*args):
        if not failed.is_set():
            failed.set()
            raise KeyError("a mistake")
        return method(*args)

    monkeypatch.setattr(whom, name, once)


@pytest.fixture
def heard():
    return threading.Event()


def test_changes_are_heard_after_a_look_that_failed(tmp_path, monkeypatch, caplog, heard):
    """A look for changes of other processes that fails, for whatever reason, is logged and not the last one. (S198)"""
    here, there = (SqliteCoordination(tmp_path / "nakadi.db") for _ in range(2))
    failing_once(monkeypatch, here._changes, "_tell_since")
    here.watch("s", lambda _: heard.set())
    there.write("s", NOTHING_YET, an_assignment("a"), A_MOMENT, {a_place(): Position(1, -1)})
    assert heard.wait(PATIENCE_SECONDS)
    here.close()
    there.close()
    assert "Looking for changes of other processes failed" in caplog.text


def test_events_are_heard_after_a_look_that_failed(tmp_path, monkeypatch, caplog, heard):
    """A look for events of other processes that fails, for whatever reason, is logged and not the last one. (L34)"""
    here, there = (SqliteLog(tmp_path / "nakadi.db", SystemClock()) for _ in range(2))
    here.create_topic("t", 1)
    failing_once(monkeypatch, here._appends_by_others, "_report")
    here.watch(lambda *_: heard.set())
    there.append("t", {0: [Record(b"1")]})
    assert heard.wait(PATIENCE_SECONDS)
    here.close()
    there.close()
    assert "Looking for events of other processes failed" in caplog.text
