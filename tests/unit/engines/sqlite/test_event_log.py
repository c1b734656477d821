"""Properties of the log in a SQLite file that go beyond the contract of every event log."""

import gc
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from nakadi.common.metrics import Metrics
from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite import event_log, writing
from nakadi.engines.sqlite.changes import AppendPoller
from nakadi.engines.sqlite.event_log import LogCleaner, PartitionCompaction, SqliteLog
from nakadi.engines.sqlite.file import SqliteFile
from nakadi.engines.sqlite.writing import LogWriter
from nakadi.model.events import OffsetBounds, Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock
from nakadi.ports.event_log import UnknownTopic
from tests.support.clock import HandMovedClock
from tests.support.engines import a_record, append_and_wait, record_text
from tests.support.patience import PATIENCE, started_threads, until
from tests.support.sqlite import TracedFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture
def clock():
    return BlockingClock()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def log(path, clock, metrics):
    log = SqliteLog(path, clock, metrics)
    log.create_topic("t", 4)
    yield log
    log.close()


class TestWriting:
    def test_what_was_stored_is_there_after_a_restart(self, path, clock, log):
        """Topics, events, seals, trims and offsets survive the end of the process."""
        run_blocking(log.append("t", {0: [a_record("a"), a_record("b")]}))
        clock.move(60)
        log.trim("t", 0, clock.now())
        log.create_topic("sealed", 1)
        log.seal_topic("sealed")
        log.close()
        again = SqliteLog(path, clock)
        run_blocking(again.append("t", {0: [a_record("c")]}))
        assert again.bounds("t", [0]) == {0: OffsetBounds(2, 3)}
        assert record_text(again.read("t", 0, 2).events[0].record) == "c"
        with pytest.raises(Exception, match="sealed"):
            run_blocking(again.append("sealed", {0: [a_record("d")]}))
        again.close()

    def test_appends_that_wait_together_share_a_commit_and_a_row(self, path, log, clock, metrics):
        """During one commit, single events of many threads accumulate; they become one commit and one row."""
        with ThreadPoolExecutor(21) as threads:
            with held_commit(threads, log, clock) as waiting:
                waiting += [
                    threads.submit(append_and_wait, log, "t", {0: [a_record(f"{number}")]}) for number in range(20)
                ]
                until(lambda: appends_waiting(metrics) == 20)
            for each in waiting:
                each.result(PATIENCE)
        assert len(log.read("t", 0, 0).events) == 21
        assert rows_in(path) == 2
        assert metrics.log_commit_appends.rows()[()].sum_of_values == 21

    def test_one_append_that_is_refused_does_not_hurt_the_others(self, log, clock, metrics):
        """Each of the appends that share a commit has its own outcome."""
        with ThreadPoolExecutor(10) as threads:
            with held_commit(threads, log, clock) as waiting:
                waiting += [threads.submit(append_and_wait, log, "t", {0: [a_record("fine")]}) for _ in range(8)]
                lost = threads.submit(append_and_wait, log, "nowhere", {0: [a_record("lost")]})
                until(lambda: appends_waiting(metrics) == 9)
            with pytest.raises(UnknownTopic):
                lost.result(PATIENCE)
            for each in waiting:
                each.result(PATIENCE)
        assert len(log.read("t", 0, 0).events) == 9

    @pytest.mark.parametrize("value", [b"1\n2", b'{"a":\n1}'])
    def test_a_record_that_cannot_be_kept_is_its_publishers_mistake(self, log, value):
        """A value with a line break is refused before its append waits for anything."""
        with pytest.raises(ValueError, match="line break"):
            run_blocking(log.append("t", {0: [Record(value)]}))
        run_blocking(log.append("t", {0: [a_record("fine")]}))
        assert len(log.read("t", 0, 0).events) == 1

    def test_too_many_waiting_appends_are_refused(self, log, clock, metrics, monkeypatch):
        """While a commit lasts, a bounded number of appends wait, and the next ones are refused at once."""
        monkeypatch.setattr(writing, "MAX_WAITING_APPENDS", 5)
        with ThreadPoolExecutor(20) as threads:
            with held_commit(threads, log, clock) as waiting:
                waiting += [threads.submit(append_and_wait, log, "t", {0: [a_record("x")]}) for _ in range(5)]
                until(lambda: appends_waiting(metrics) == 5)
                with pytest.raises(Unavailable, match="Too many"):
                    run_blocking(log.append("t", {0: [a_record("y")]}))
            for each in waiting:
                each.result(PATIENCE)
        run_blocking(log.append("t", {0: [a_record("z")]}))
        assert len(log.read("t", 0, 0).events) == 7

    def test_a_file_that_stays_locked_is_reported(self, path, clock):
        """If another process locks the file for too long, an append raises `Unavailable`; later appends succeed."""
        log = SqliteLog(path, clock, patience=0.05)
        log.create_topic("t", 1)
        with locked_file(path), pytest.raises(Unavailable, match="locked"):
            run_blocking(log.append("t", {0: [a_record("x")]}))
        run_blocking(log.append("t", {0: [a_record("y")]}))
        assert [record_text(event.record) for event in log.read("t", 0, 0).events] == ["y"]
        log.close()

    def test_large_appends_are_kept_in_rows_of_moderate_size(self, path, log):
        """A large append is stored in rows of moderate size, so readers need not fetch all of it to read one event."""
        run_blocking(log.append("t", {0: [Record(b'"%s"' % (b"%06d" % number * 200)) for number in range(500)]}))
        assert rows_in(path) > 5
        assert [event.offset for event in log.read("t", 0, 250, limit=3).events] == [250, 251, 252]

    def test_readers_do_not_wait_for_a_writer(self, path, log):
        """While a transaction locks the file, everything that was stored before can be read."""
        run_blocking(log.append("t", {0: [a_record("a")]}))
        with locked_file(path):
            assert len(log.read("t", 0, 0).events) == 1
            assert log.bounds("t", [0]) == {0: OffsetBounds(0, 1)}


class TestCleaning:
    def test_goes_in_steps_that_let_appends_through(self, log, parts):
        """Appends during a long trim or compaction wait for one step at most, and each step is small."""
        fill(log, 3000, keys=50)
        PartitionCompaction(parts.file, parts.cleaner, "t", 0).run(3000, 0)
        parts.cleaner.trim("t", 0, 3000)
        assert len(parts.writer.rows_of_steps) > 10
        assert max(parts.writer.rows_of_steps) <= 60
        assert log.bounds("t", [0])[0].oldest == 3000

    def test_cleaning_that_finds_nothing_writes_nothing(self, log, parts):
        """A trim that finds nothing writes nothing, because housekeeping trims each partition every minute, even
        empty ones.
        """
        fill(log, 30)
        parts.cleaner.trim("t", 0, 10)
        written = len(parts.writer.rows_of_steps)
        assert written
        for partition, oldest in ((0, 10), (0, 0), (1, 0)):
            parts.cleaner.trim("t", partition, oldest)
        assert len(parts.writer.rows_of_steps) == written
        with pytest.raises(UnknownTopic):
            parts.cleaner.trim("unknown", 0, 10)

    def test_is_finished_by_the_next_trim(self, path, log, parts):
        """If a process is killed after the first step of a trim, it leaves rows that nobody can read; the next trim
        removes them.
        """
        fill(log, 30)
        with locked_file(path) as connection:
            connection.execute("UPDATE logs SET oldest = 20 WHERE id = 1")
            connection.commit()
        assert (rows_in(path), log.bounds("t", [0])[0].oldest) == (3, 20)
        parts.cleaner.trim("t", 0, 20)
        assert rows_in(path) == 1

    def test_removes_the_emptied_row_once_another_is_the_last(self, path, log, parts):
        """If all events are removed, the last row stays, empty, to preserve the next offset; once another row follows,
        the empty one is removed.
        """
        fill(log, 10)
        parts.cleaner.trim("t", 0, 10)
        written = len(parts.writer.rows_of_steps)
        parts.cleaner.trim("t", 0, 10)
        assert (rows_in(path), len(parts.writer.rows_of_steps)) == (1, written)
        fill(log, 10)
        assert rows_in(path) == 2
        parts.cleaner.trim("t", 0, 10)
        assert (rows_in(path), log.bounds("t", [0])[0]) == (1, OffsetBounds(10, 20))

    def test_lets_appends_in_between(self, log, clock, monkeypatch):
        """Events are stored while old ones are being removed, not only afterwards."""
        monkeypatch.setattr(event_log, "MAX_BYTES_PER_STEP", 10_000)
        fill(log, 3000)
        clock.move(60)
        stored = 0
        with ThreadPoolExecutor(1) as cleaner:
            trimming = cleaner.submit(log.trim, "t", 0, clock.now())
            while not trimming.done():
                run_blocking(log.append("t", {1: [a_record("x")]}))
                stored += 1
            trimming.result(PATIENCE)
        assert stored > 3

    def test_gives_space_back(self, path, log, clock):
        """Filling and trimming a log repeatedly does not make the file grow."""
        sizes = []
        for _ in range(5):
            fill(log, 500)
            clock.move(60)
            log.trim("t", 0, clock.now())
            checkpoint(path)
            sizes.append(path.stat().st_size)
        assert sizes[-1] <= 1.3 * sizes[0]
        assert rows_in(path) == 1

    def test_removes_deleted_topics_in_the_background(self, path, log):
        """Deleting returns at once, and the topic's rows are removed soon after, except for the last row in the file,
        which is removed once another row follows it.
        """
        fill(log, 1500)
        log.delete_topic("t")
        until(lambda: rows_in(path) <= 1)
        log.create_topic("next", 1)
        run_blocking(log.append("next", {0: [a_record("a")]}))
        log.delete_topic("never there")
        until(lambda: (rows_in(path), logs_in(path)) == (1, 1))

    def test_is_finished_after_a_restart(self, path, clock, log):
        """The next process removes what is left by a process that has ended."""
        fill(log, 300)
        log.close()
        with locked_file(path) as connection:
            connection.execute("UPDATE logs SET topic = NULL")
            connection.execute("DELETE FROM topics")
            connection.commit()
        again = SqliteLog(path, clock)
        until(lambda: rows_in(path) <= 1)
        again.close()

    def test_stops_when_the_log_is_closed(self, log, parts):
        """A trim in progress ends after its current step with `Unavailable`."""
        fill(log, 3000)
        parts.writer.before_step(3, parts.cleaner.stop)
        with pytest.raises(Unavailable):
            parts.cleaner.trim("t", 0, 3000)
        assert len(parts.writer.rows_of_steps) == 3


class TestCompaction:
    def test_compacting_more_keys_than_fit_takes_several_rounds(self, log, clock, monkeypatch):
        """If there are more keys than memory has room for, compaction takes several rounds, with the same result."""
        monkeypatch.setattr(event_log, "MAX_KEYS_AT_ONCE", 10)
        monkeypatch.setattr(event_log, "MAX_ROWS_PER_STEP", 7)
        for number in range(200):
            run_blocking(log.append("t", {0: [a_record(f"{number}", f"key {number * 7 % 60}")]}))
        clock.move(60)
        log.compact("t", 0, stored_before=clock.now(), tombstones_before=clock.now())
        assert [event.offset for event in log.read("t", 0, 0).events] == list(range(140, 200))

    def test_compacting_again_without_new_events_reads_nothing(self, log, clock, monkeypatch):
        """Compacting again without new events reads just one row."""
        fill(log, 300, keys=10)
        clock.move(60)
        log.compact("t", 0, stored_before=clock.now(), tombstones_before=clock.now())
        monkeypatch.setattr(event_log.PartitionCompaction, "_read_rows_between", None)
        log.compact("t", 0, stored_before=clock.now(), tombstones_before=clock.now())

    def test_that_is_interrupted_is_finished_by_the_next(self, log, clock, parts):
        """A compaction that ends in the middle leaves every key readable, and the next compaction removes the rest."""
        fill(log, 2000, keys=40)
        clock.move(60)

        def fail() -> None:
            raise Unavailable("power cut")

        parts.writer.before_step(3, fail)
        with pytest.raises(Unavailable, match="power cut"):
            PartitionCompaction(parts.file, parts.cleaner, "t", 0).run(2000, 0)
        left = read_everything(log)
        assert 40 < len(left) < 2000
        assert {event.record.key for event in left} == {f"{key}" for key in range(40)}
        log.compact("t", 0, stored_before=clock.now(), tombstones_before=clock.now())
        assert [event.offset for event in read_everything(log)] == list(range(1960, 2000))

    def test_leaves_alone_what_another_changed(self, path, log, clock):
        """Two processes that compact the same partition at the same time remove no more events than one would."""
        fill(log, 1000, keys=10)
        clock.move(60)
        other = SqliteLog(path, clock)
        with ThreadPoolExecutor(2) as threads:
            runs = [
                threads.submit(each.compact, "t", 0, stored_before=clock.now(), tombstones_before=clock.now())
                for each in (log, other)
            ]
            for run in runs:
                run.result(PATIENCE)
        other.close()
        assert [event.offset for event in read_everything(log)] == list(range(990, 1000))


class TestDamage:
    @pytest.mark.parametrize("body", [b"", b"x" * 10, b"y" * 500])
    def test_that_is_met_while_reading_is_reported(self, path, log, body):
        """An unreadable frame makes the read fail; nothing is skipped silently."""
        run_blocking(log.append("t", {0: [a_record("a")]}))
        with locked_file(path) as connection:
            connection.execute("UPDATE frames SET body = ?", (body,))
            connection.commit()
        with pytest.raises(Unavailable, match="damaged"):
            log.read("t", 0, 0)

    def test_a_damaged_byte_of_compressed_events_is_noticed(self, path, log):
        """A byte that changed on the disk never reaches a reader."""
        run_blocking(log.append("t", {0: [Record(b'"%s"' % (b"abcdefgh" * 1000))]}))
        with locked_file(path) as connection:
            (body,) = connection.execute("SELECT body FROM frames").fetchone()
            damaged = bytearray(body)
            damaged[-8] ^= 1
            connection.execute("UPDATE frames SET body = ?", (bytes(damaged),))
            connection.commit()
        with pytest.raises(Unavailable, match="damaged"):
            log.read("t", 0, 0)


class TestWaiting:
    def test_costs_next_to_nothing(self, path):
        """While many callers wait and watch, and nothing happens, the process uses hardly any CPU time."""
        log = SqliteLog(path, SystemClock())
        log.create_topic("t", 1)
        end = log.add_change_listener(lambda *_: None)
        with ThreadPoolExecutor(20) as threads:
            waiting = [threads.submit(log.read, "t", 0, 0, wait=10 * PATIENCE) for _ in range(20)]
            until(lambda: all(each.running() for each in waiting))
            # Threads of earlier tests and the garbage collector may also work, but not all the time.
            until(lambda: measure_cpu_share(0.5) < 0.1)
            fill(log, 10)
            for each in waiting:
                each.result(PATIENCE)
        end()
        log.close()

    def test_the_file_is_not_polled_without_watchers(self, path):
        """The file is polled while there is a watcher, and not afterwards."""
        statements: list[str] = []
        appends = AppendPoller(TracedFile(path, statements.append), lambda *_: None)
        appends.add_watcher()
        until(lambda: len(statements) > 3)
        appends.remove_watcher()
        statements.clear()
        time.sleep(0.3)
        assert len(statements) <= 2  # a check may have been about to begin
        appends.close()


def fill(log: SqliteLog, count: int, keys: int = 0) -> None:
    """Append a number of events of about 1 KB, in as many appends as busy publishers would make."""
    filler = "".join(chr(97 + number * number % 26) for number in range(1000))
    for start in range(0, count, 10):
        records = [
            a_record(f"{number}{filler}", f"{number % keys}" if keys else None) for number in range(start, start + 10)
        ]
        run_blocking(log.append("t", {0: records}))


def read_everything(log: SqliteLog):
    place, found = log.bounds("t", [0])[0].oldest, []
    while piece := log.read("t", 0, place).events:
        found += piece
        place = piece[-1].offset + 1
    return found


@contextmanager
def locked_file(path):
    connection = sqlite3.connect(path)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        connection.close()


def query_plan(path, question: str) -> int:
    connection = sqlite3.connect(path, timeout=PATIENCE)
    try:
        return connection.execute(question).fetchone()[0]
    finally:
        connection.close()


def rows_in(path) -> int:
    return query_plan(path, "SELECT count(*) FROM frames")


def logs_in(path) -> int:
    return query_plan(path, "SELECT count(*) FROM logs")


def checkpoint(path) -> None:
    query_plan(path, "PRAGMA wal_checkpoint(TRUNCATE)")


class BlockingClock(HandMovedClock):
    """A clock that blocks a commit while it is held, because the writer reads the clock when it stores events."""

    def __init__(self) -> None:
        super().__init__()
        self.query_plan, self.free = threading.Event(), threading.Event()
        self.free.set()

    def now(self) -> datetime:
        self.query_plan.set()
        assert self.free.wait(PATIENCE)
        return super().now()


@contextmanager
def held_commit(threads: ThreadPoolExecutor, log: SqliteLog, clock: BlockingClock) -> Iterator[list[Future[object]]]:
    """Keep the writer in the commit of a first append, so later appends wait behind it."""
    clock.free.clear()
    clock.query_plan.clear()
    try:
        first: Future[object] = threads.submit(append_and_wait, log, "t", {0: [a_record("first")]})
        assert clock.query_plan.wait(PATIENCE)
        yield [first]
    finally:
        clock.free.set()


def appends_waiting(metrics: Metrics) -> float:
    return metrics.log_appends_waiting.rows()[()]


class SteppedWriter(LogWriter):
    """Counts the rows that each step changes, and may call a function before one of the steps."""

    def __init__(self, file: SqliteFile, clock: HandMovedClock) -> None:
        super().__init__(file, clock, lambda _: None, Metrics())
        self.rows_of_steps: list[int] = []
        self._before: tuple[int, Callable[[], None]] = (0, lambda: None)

    def before_step(self, number: int, act: Callable[[], None]) -> None:
        """Call `act` before the step with this number; the next step is number 1."""
        self._before = (len(self.rows_of_steps) + number, act)

    def run(self, work):
        number, act = self._before
        if len(self.rows_of_steps) + 1 == number:
            act()

        def count_events(connection: sqlite3.Connection) -> object:
            before = connection.total_changes
            result = work(connection)
            self.rows_of_steps.append(connection.total_changes - before)
            return result

        return super().run(count_events)


class SqliteLogParts:
    """The parts of a log, for a file that another log may fill."""

    def __init__(self, path: Path, clock: HandMovedClock) -> None:
        self.file = SqliteFile(path)
        self.writer = SteppedWriter(self.file, clock)
        self.cleaner = LogCleaner(self.file, self.writer, clock)

    def close(self) -> None:
        self.cleaner.stop()
        self.writer.close()
        self.file.close()


@pytest.fixture
def parts(path, clock):
    with closing(SqliteLogParts(path, clock)) as parts:
        yield parts


def measure_cpu_share(seconds: float) -> float:
    """Measure the share of CPU time that the process uses in a period."""
    used, begun = time.process_time(), time.monotonic()
    time.sleep(seconds)
    return (time.process_time() - used) / (time.monotonic() - begun)


def test_a_moment_is_found_while_its_event_is_trimmed(log, clock, monkeypatch):
    """If the event that was found is trimmed meanwhile, the result is the offset of the next event."""
    began = clock.now()
    for value in ("a", "b"):
        run_blocking(log.append("t", {0: [a_record(value)]}))
        clock.move(3600)
    look = event_log.first_offset_since

    def look_just_before_it_is_trimmed(*wanted):
        frame = look(*wanted)
        if not log.bounds("t", [0])[0].oldest:
            log._cleaner.trim("t", 0, 1)
        return frame

    monkeypatch.setattr(event_log, "first_offset_since", look_just_before_it_is_trimmed)

    assert log.first_offset_since("t", 0, began) == 1


def test_nothing_is_left_open(path, clock, recwarn):
    """After a log is closed, it has no connections, and its threads have ended."""
    # Resources that earlier tests left open cause warnings here rather than below.
    gc.collect()
    recwarn.clear()
    with started_threads() as started:
        log = SqliteLog(path, clock)
        log.create_topic("t", 1)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: run_blocking(log.append("t", {0: [a_record("a")]})), range(50)))
            list(threads.map(lambda _: log.read("t", 0, 0), range(50)))
        log.close()
        gc.collect()
        assert [each for each in started() if each.startswith("event-log")] == []
    assert not recwarn.list
    assert not list(path.parent.glob("*-wal"))
