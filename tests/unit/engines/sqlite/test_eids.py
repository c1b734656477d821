"""The ids of events in the data file: over runs, restarts, several processes, failures and the end of windows."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta

import pytest

from nakadi.engines.sqlite import eids
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.model.events import Duplicate, EventPlace, StoredExcept
from nakadi.model.outcomes import Unavailable
from nakadi.ports.deduplication import EventIds
from tests.support import everything
from tests.support.clock import HandMovedClock
from tests.support.engines import a_record

WINDOW = timedelta(minutes=5)


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch):
    monkeypatch.setattr(eids, "MAX_RECENT_EIDS", 20)
    monkeypatch.setattr(eids, "ENTRIES_PER_PAGE", 3)


def once(log: SqliteLog, *numbers: int, window: timedelta = WINDOW) -> dict[int, EventPlace]:
    """Append events with these ids; the places of the first ones of those that are duplicates, by index."""
    ids = EventIds(
        scope="a type", timeline=1, window=window, eids=[n.to_bytes(16) for n in numbers], partitions=[0] * len(numbers)
    )
    fate = log.append_once("t", {0: [a_record(str(number)) for number in numbers]}, ids)[0]
    exceptions = fate.exceptions if isinstance(fate, StoredExcept) else {}
    return {index: each.first for index, each in exceptions.items() if isinstance(each, Duplicate)}


def rows(path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_ids_are_known_in_runs_and_after_a_restart(path, clock):
    """An id is known whether it is in the journal or in a run, and another process that opens the file knows it."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        for start in range(0, 100, 7):
            assert once(log, *range(start, start + 7)) == {}
        assert rows(path, "eid_runs") == 5
        assert once(log, 0, 50, 104, 200) == {0: at(0), 1: at(50), 2: at(104)}
    with closing(SqliteLog(path, clock)) as log:
        assert once(log, 0, 50, 104, 200, 201) == {0: at(0), 1: at(50), 2: at(104), 3: at(105)}


def test_rows_go_when_their_windows_have_passed(path, clock):
    """Housekeeping removes runs and rows of the journal that no window needs; what was stored later stays."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        once(log, *range(100), window=timedelta(days=7))
        once(log, *range(100, 150))
        once(log, 150)
        once(log, 151)
        clock.move(WINDOW.total_seconds() - 1)
        once(log, 152)
        log._cleaner.prune_eids()
        assert (rows(path, "eid_runs"), rows(path, "eid_journal")) == (2, 3)
        clock.move(1)
        log._cleaner.prune_eids()
        assert (rows(path, "eid_runs"), rows(path, "eid_journal")) == (1, 1)
        assert once(log, 5, 152, window=timedelta(days=7)) == {0: at(5), 1: at(152)}
        assert once(log, 120, window=timedelta(days=7)) == {}
        clock.move(8 * 24 * 3600)
        log._cleaner.prune_eids()
        assert (rows(path, "eid_runs"), rows(path, "eid_pages"), rows(path, "eid_journal")) == (0, 0, 1)
        assert once(log, 5, 120) == {}


def at(offset: int) -> EventPlace:
    return EventPlace(1, 0, offset)


def test_a_failed_commit_remembers_nothing(path, clock, monkeypatch):
    """When the commit fails, its ids are new to the next attempt, also when they have made a run."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        once(log, *range(15))
        with monkeypatch.context() as failing:
            failing.setattr("nakadi.engines.sqlite.writing._insert_frames", failing_insert)
            with pytest.raises(Unavailable):
                once(log, *range(10, 30))
        assert once(log, *range(10, 30)) == {index: at(10 + index) for index in range(5)}
        assert [text for _, text in texts(log)] == [str(number) for number in range(30)]


def failing_insert(*_: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")


def texts(log: SqliteLog) -> Iterator[tuple[int, str]]:
    for event in log.read("t", 0, 0, limit=10_000).events:
        yield event.offset, (event.record.value or b"").decode().strip('"')


class Model:
    """What should be there: when and where each id was stored last."""

    def __init__(self) -> None:
        self.last: dict[int, tuple[datetime, int]] = {}
        self.stored: list[int] = []

    def append(self, numbers: list[int], window: timedelta, now: datetime) -> dict[int, EventPlace]:
        found = {}
        for index, number in enumerate(numbers):
            known = self.last.get(number)
            if known is not None and now - known[0] < window:
                found[index] = at(known[1])
            else:
                self.last[number] = now, len(self.stored)
                self.stored.append(number)
        return found


@pytest.mark.parametrize("seed", range(everything.choose_count(4, 12)))
def test_any_history_stores_each_id_once(path, clock, seed, monkeypatch):
    """Two processes, restarts, failures, housekeeping and time: what is stored is what a simple model says."""
    print(f"seed {seed}")
    drawn, model = random.Random(seed), Model()
    window = timedelta(seconds=drawn.choice([30, 300]))
    logs = [SqliteLog(path, clock) for _ in range(2)]
    try:
        logs[0].create_topic("t", 1)
        for _ in range(200):
            log = drawn.choice(logs)
            match drawn.randrange(30):
                case 0:
                    log.close()
                    logs[logs.index(log)] = SqliteLog(path, clock)
                case 1:
                    log._cleaner.prune_eids()
                case 2:
                    with monkeypatch.context() as failing:
                        failing.setattr("nakadi.engines.sqlite.writing._insert_frames", failing_insert)
                        with pytest.raises(Unavailable):
                            once(log, *drawn.sample(range(200), 9), window=window)
                case 3:
                    clock.move(drawn.choice([1, 100]))
                case _:
                    numbers = [drawn.randrange(drawn.choice([20, 200])) for _ in range(drawn.randrange(1, 9))]
                    clock.move(drawn.choice([0.0, 0.5]))
                    assert once(log, *numbers, window=window) == model.append(numbers, window, clock.now())
        assert [text for _, text in texts(logs[0])] == [str(number) for number in model.stored]
    finally:
        for log in logs:
            log.close()
