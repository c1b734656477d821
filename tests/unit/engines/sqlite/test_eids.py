"""The ids of events in the data file: across runs, restarts, processes and failures, and at the end of windows."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite import eid_index, eids
from nakadi.engines.sqlite.eid_index import EidIndex
from nakadi.engines.sqlite.eids import EidMemory
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.engines.sqlite.old_eids import add_old_eids
from nakadi.model.events import AppendStoredExcept, DuplicateEvent, EventPlace, microseconds_since_epoch
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
    monkeypatch.setattr(eids, "MAX_EIDS_OF_RUN", 20)
    monkeypatch.setattr(eids, "MAX_ROWS_PRUNED_AT_ONCE", 3)
    monkeypatch.setattr(eids, "ROWS_LOADED_AT_ONCE", 3)


def append_once(log: SqliteLog, *numbers: int, window: timedelta = WINDOW) -> dict[int, EventPlace]:
    """Append events with these ids. Returns the place of the first event for the index of each duplicate."""
    ids = EventIds(
        scope="a type",
        timeline=1,
        window=window,
        packed_eids=b"".join(number.to_bytes(16) for number in numbers),
        partitions=[0] * len(numbers),
    )
    fate = run_blocking(log.append_once("t", {0: [a_record(str(number)) for number in numbers]}, ids))[0]
    exceptions = fate.exceptions if isinstance(fate, AppendStoredExcept) else {}
    return {index: each.first for index, each in exceptions.items() if isinstance(each, DuplicateEvent)}


def rows(path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM eids").fetchone()[0]


def test_ids_are_known_in_runs_and_after_a_restart(path, clock):
    """An id is known whether it is recent or old, and another process that opens the file knows it, too."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        for start in range(0, 100, 7):
            assert append_once(log, *range(start, start + 7)) == {}
        assert append_once(log, 0, 50, 104, 200) == {0: at(0), 1: at(50), 2: at(104)}
    with closing(SqliteLog(path, clock)) as log:
        assert append_once(log, 0, 50, 104, 200, 201) == {0: at(0), 1: at(50), 2: at(104), 3: at(105)}


def test_rows_go_when_their_windows_have_passed(path, clock):
    """Housekeeping removes the oldest rows up to the first one that is needed, and never the last one."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        for number in range(0, 100, 2):
            append_once(log, number, number + 1)
        append_once(log, 100, window=timedelta(days=1))
        append_once(log, 101)
        clock.move(WINDOW.total_seconds() - 1)
        log._cleaner.prune_eids()
        assert rows(path) == 52
        clock.move(1)
        log._cleaner.prune_eids()
        assert rows(path) == 2
        assert append_once(log, 100, window=timedelta(days=1)) == {0: at(100)}
        assert append_once(log, 5, 99, window=timedelta(days=1)) == {}
        clock.move(2 * 24 * 3600)
        log._cleaner.prune_eids()
        assert rows(path) == 1
        assert append_once(log, 5, 100) == {}


def test_memory_forgets_what_is_pruned(path, clock):
    """The memory for the ids of removed rows is freed when the next run of ids is made."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        memory = log._writer._eids
        for number in range(100):
            append_once(log, number)
        assert len(memory._last_row_of_run) == 5
        clock.move(WINDOW.total_seconds())
        log._cleaner.prune_eids()
        for number in range(100, 120):
            append_once(log, number)
        assert len(memory._last_row_of_run) <= 2


def test_other_appends_do_not_wait_until_the_ids_are_read(path, clock, monkeypatch):
    """After a start, ids are read in pieces: only appends that need the ids wait."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        append_once(log, 1, 2, 3)
    may_read, load_some = threading.Event(), EidMemory.load_some
    monkeypatch.setattr(EidMemory, "load_some", lambda *each: load_some(*each) if may_read.wait(0.01) else False)
    with closing(SqliteLog(path, clock)) as log, ThreadPoolExecutor(2) as pool:
        try:
            repeated = pool.submit(append_once, log, 1, 4)
            pool.submit(run_blocking, log.append("t", {0: [a_record("plain")]})).result(60)
            assert not repeated.done()
        finally:
            may_read.set()
        assert repeated.result(60) == {0: at(0)}
        assert [text for _, text in texts(log)] == ["1", "2", "3", "plain", "4"]


def test_new_ids_take_one_statement(path, clock, monkeypatch):
    """A commit whose ids are all new needs no transaction of several calls; a commit with a duplicate does."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        append_once(log, 1)
        with monkeypatch.context() as watched:
            watched.setattr(log._writer._file, "transaction", unwanted_transaction)
            assert append_once(log, *range(2, 90)) == {}
            assert append_once(log, *range(90, 200)) == {}
            with pytest.raises(AssertionError):
                append_once(log, 200, 1)
        assert append_once(log, 200, 1) == {1: at(0)}


def unwanted_transaction(*_: object) -> None:
    raise AssertionError("A transaction of several calls.")


def at(offset: int) -> EventPlace:
    return EventPlace(1, 0, offset)


def test_a_failed_commit_remembers_nothing(path, clock, monkeypatch):
    """When the commit fails, its ids are new to the next attempt, even if they have formed a run."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        append_once(log, *range(15))
        with monkeypatch.context() as failing:
            failing.setattr("nakadi.engines.sqlite.writing._frame_rows_of_appends", failing_insert)
            with pytest.raises(Unavailable):
                append_once(log, *range(10, 30))
        assert append_once(log, *range(10, 30)) == {index: at(10 + index) for index in range(5)}
        assert [text for _, text in texts(log)] == [str(number) for number in range(30)]


def failing_insert(*_: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")


def texts(log: SqliteLog) -> Iterator[tuple[int, str]]:
    for event in log.read("t", 0, 0, limit=10_000).events:
        yield event.offset, (event.record.value or b"").decode().strip('"')


class EidModel:
    """The expected content of the index: when and where each id was last stored."""

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


@pytest.fixture
def crowded_memory(monkeypatch):
    """Memory has room for a hundred ids, and frees some when it has sixty."""
    monkeypatch.setattr(eid_index, "MIN_SLOTS", 64)
    monkeypatch.setattr(eids, "EidIndex", partial(EidIndex, max_slots=256))


def old_eids(path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM old_eids").fetchone()[0]


@pytest.mark.usefixtures("crowded_memory")
def test_ids_that_memory_has_no_room_for_are_indexed_in_the_file(path, clock):
    """However many ids there are, memory has few of them, no id is searched for in every row, and each id is known."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        index = log._writer._eids._index
        indexed = 0
        for start in range(0, 1000, 5):
            assert append_once(log, *range(start, start + 5)) == {}
            log._writer.run(lambda _: None)  # wait for what the writer does after the append
            before, indexed = indexed, old_eids(path)
            assert indexed - before <= 20
            assert not index._runs_without_table
            assert sum(len(table.slots) for table in index._tables) <= 256
        assert old_eids(path) > 900
        assert append_once(log, 0, 500, 999, 1000) == {0: at(0), 1: at(500), 2: at(999)}
    with closing(SqliteLog(path, clock)) as log:
        assert append_once(log, 3, 503, 996, 1001) == {0: at(3), 1: at(503), 2: at(996)}
        assert sum(table.key_count for table in log._writer._eids._index._tables) < 100


@pytest.mark.usefixtures("crowded_memory")
def test_new_ids_take_one_statement_beside_indexed_ones(path, clock, monkeypatch):
    """A commit of new ids uses the index in the file, and is still a single statement."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        for number in range(200):
            append_once(log, number)
        assert old_eids(path)
        with monkeypatch.context() as watched:
            watched.setattr(EidMemory, "remember", unwanted_transaction)
            assert append_once(log, *range(200, 210)) == {}
            with pytest.raises(AssertionError):
                append_once(log, 210, 1)


@pytest.mark.usefixtures("crowded_memory")
def test_the_index_in_the_file_goes_with_its_rows(path, clock, monkeypatch):
    """Housekeeping removes the index entries of the rows that it removes, in bounded steps."""
    monkeypatch.setattr(eids, "MAX_OLD_EIDS_PRUNED_AT_ONCE", 7)
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        for number in range(0, 300, 4):
            append_once(log, *range(number, number + 4))
        before = old_eids(path)
        clock.move(WINDOW.total_seconds())
        with log._writer._file.write_transaction() as connection:
            assert eids.prune_expired_eids(connection, microseconds_since_epoch(clock.now()))
        assert before - old_eids(path) == 8
        log._cleaner.prune_eids()
        assert (old_eids(path), rows(path)) == (0, 1)
        assert append_once(log, 5, 150) == {}


@pytest.mark.usefixtures("crowded_memory")
def test_an_index_that_cannot_be_written_costs_nothing_but_time(path, clock, monkeypatch):
    """If the index in the file cannot be written, appends succeed, ids are still recognized, and the next commit
    tries again.
    """
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        with monkeypatch.context() as failing:
            failing.setattr("nakadi.engines.sqlite.eids.add_old_eids", failing_insert)
            for number in range(200):
                assert append_once(log, number) == {}
            assert append_once(log, 3, 150, 200) == {0: at(3), 1: at(150)}
        for number in range(201, 500):
            assert append_once(log, number) == {}
        assert not log._writer._eids._index._runs_without_table
        assert append_once(log, 3, 150, 200) == {0: at(3), 1: at(150), 2: at(200)}


def test_the_newest_of_an_id_counts_when_another_process_has_indexed_an_older_one(path, clock):
    """If another process has indexed an older row of an id, the newest row, which memory knows, still counts."""
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        append_once(log, 1)
        append_once(log, 2)
        clock.move(WINDOW.total_seconds())
        append_once(log, 3)
        assert append_once(log, 2) == {}
        with closing(sqlite3.connect(path)) as another, another:
            add_old_eids(another, [(1, [(1).to_bytes(16)]), (2, [(2).to_bytes(16)])])
        assert append_once(log, 2, 1) == {0: at(3)}


def test_no_row_is_long(path, clock, monkeypatch):
    """The ids of a large commit are in several rows, so the steps that index or remove a row stay short."""
    monkeypatch.setattr(eids, "MAX_EIDS_OF_ROW", 30)
    with closing(SqliteLog(path, clock)) as log:
        log.create_topic("t", 1)
        assert append_once(log, *range(100)) == {}
        assert rows(path) == 4
        assert append_once(log, 0, *range(100, 200)) == {0: at(0)}
        assert rows(path) == 8
        assert append_once(log, 29, 30, 99, 100, 199) == {0: at(29), 1: at(30), 2: at(99), 3: at(100), 4: at(199)}


@pytest.mark.parametrize("memory", ["roomy", "crowded"])
@pytest.mark.parametrize("seed", range(everything.choose_by_suite(2, 12)))
def test_any_history_stores_each_id_once(path, clock, seed, memory, monkeypatch, request):
    """After any sequence of appends by two processes, restarts, failures, housekeeping and time, the stored events
    match a simple model."""
    print(f"seed {seed}")
    if memory == "crowded":
        request.getfixturevalue("crowded_memory")
    drawn, model = random.Random(seed), EidModel()
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
                        failing.setattr("nakadi.engines.sqlite.writing._frame_rows_of_appends", failing_insert)
                        with pytest.raises(Unavailable):
                            append_once(log, *drawn.sample(range(200), 9), window=window)
                case 3:
                    clock.move(drawn.choice([1, 100]))
                case _:
                    numbers = [drawn.randrange(drawn.choice([20, 200])) for _ in range(drawn.randrange(1, 9))]
                    clock.move(drawn.choice([0.0, 0.5]))
                    assert append_once(log, *numbers, window=window) == model.append(numbers, window, clock.now())
        assert [text for _, text in texts(logs[0])] == [str(number) for number in model.stored]
    finally:
        for log in logs:
            log.close()
