"""What the log in a SQLite file does beyond the promises of every event log."""

import gc
import resource
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from nakadi.engines.sqlite import maintenance, writing
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.model.events import Bounds, Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock
from nakadi.ports.event_log import UnknownTopic
from tests.support.clock import HandMovedClock
from tests.support.engines import a_record, text_of
from tests.support.patience import PATIENCE, until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def log(path, clock):
    log = SqliteLog(path, clock)
    log.create_topic("t", 4)
    yield log
    log.close()


class TestWriting:
    def test_what_was_stored_is_there_after_a_restart(self, path, clock, log):
        """Topics, events, seals, trims and numbers outlive the process."""
        log.append("t", {0: [a_record("a"), a_record("b")]})
        clock.move(60)
        log.trim("t", 0, clock.now())
        log.create_topic("sealed", 1)
        log.seal_topic("sealed")
        log.close()
        again = SqliteLog(path, clock)
        again.append("t", {0: [a_record("c")]})
        assert again.bounds("t", [0]) == {0: Bounds(2, 3)}
        assert text_of(again.read("t", 0, 2).events[0].record) == "c"
        with pytest.raises(Exception, match="sealed"):
            again.append("sealed", {0: [a_record("d")]})
        again.close()

    def test_appends_that_wait_together_share_a_commit_and_a_row(self, path, log):
        """While one transaction holds the file, single events of many threads gather, and become one row."""
        asked_for = counted_appends(log)
        with ThreadPoolExecutor(20) as threads:
            with the_turn_of_somebody_else(path):
                waiting = [threads.submit(log.append, "t", {0: [a_record(f"{number}")]}) for number in range(20)]
                until(lambda: asked_for() == 20)
            for each in waiting:
                each.result(PATIENCE)
        assert len(log.read("t", 0, 0).events) == 20
        assert rows_in(path) <= 2

    def test_one_append_that_is_refused_does_not_hurt_the_others(self, path, log):
        """Of appends that share a commit each has its own outcome."""
        asked_for = counted_appends(log)
        with ThreadPoolExecutor(10) as threads:
            with the_turn_of_somebody_else(path):
                waiting = [threads.submit(log.append, "t", {0: [a_record("fine")]}) for _ in range(8)]
                lost = threads.submit(log.append, "nowhere", {0: [a_record("lost")]})
                until(lambda: asked_for() == 9)
            with pytest.raises(UnknownTopic):
                lost.result(PATIENCE)
            for each in waiting:
                each.result(PATIENCE)
        assert len(log.read("t", 0, 0).events) == 8

    @pytest.mark.parametrize("value", [b"1\n2", b'{"a":\n1}'])
    def test_a_record_that_cannot_be_kept_is_its_publishers_mistake(self, log, value):
        """A value with a line break is refused before anything waits for it."""
        with pytest.raises(ValueError, match="line break"):
            log.append("t", {0: [Record(value)]})
        log.append("t", {0: [a_record("fine")]})
        assert len(log.read("t", 0, 0).events) == 1

    def test_too_many_waiting_appends_are_refused(self, path, log, monkeypatch):
        """When the file stands still, a bounded number of appends waits, and the next ones are refused at once."""
        monkeypatch.setattr(writing, "WAITING_APPENDS", 5)
        begun, commit = threading.Event(), log._writer._commit
        monkeypatch.setattr(log._writer, "_commit", lambda appends: (begun.set(), commit(appends)))
        with ThreadPoolExecutor(20) as threads:
            with the_turn_of_somebody_else(path):
                waiting = [threads.submit(log.append, "t", {0: [a_record("x")]})]
                # The writer takes all that is there into a commit: the others come when it has begun one.
                assert begun.wait(PATIENCE)
                waiting += [threads.submit(log.append, "t", {0: [a_record("x")]}) for _ in range(5)]
                until(lambda: len(log._writer._appends) == 5)
                with pytest.raises(Unavailable, match="Too many"):
                    log.append("t", {0: [a_record("y")]})
            for each in waiting:
                each.result(PATIENCE)
        log.append("t", {0: [a_record("z")]})
        assert len(log.read("t", 0, 0).events) == 7

    def test_a_file_that_stays_locked_is_reported(self, path, log):
        """When another process keeps the file for too long, whoever appends is told, and later appends work."""
        log._file._patience = 0.05
        with the_turn_of_somebody_else(path), pytest.raises(Unavailable, match="locked"):
            log.append("t", {0: [a_record("x")]})
        log.append("t", {0: [a_record("y")]})
        assert [text_of(event.record) for event in log.read("t", 0, 0).events] == ["y"]

    def test_large_appends_are_kept_in_rows_of_moderate_size(self, path, log):
        """Readers need not fetch a huge append to get at one event of it."""
        log.append("t", {0: [Record(b'"%s"' % (b"%06d" % number * 200)) for number in range(500)]})
        assert rows_in(path) > 5
        assert [event.offset for event in log.read("t", 0, 250, limit=3).events] == [250, 251, 252]

    def test_readers_do_not_wait_for_a_writer(self, path, log):
        """While a transaction holds the file, everything that was stored before is read."""
        log.append("t", {0: [a_record("a")]})
        with the_turn_of_somebody_else(path):
            assert len(log.read("t", 0, 0).events) == 1
            assert log.bounds("t", [0]) == {0: Bounds(0, 1)}


class TestCleaning:
    def test_goes_in_steps_that_let_appends_through(self, log, clock):
        """Appends beside a long trim or compaction wait for a step at most, and each of the steps is small."""
        fill(log, 3000, keys=50)
        clock.move(60)
        steps = rows_of_steps(log)
        log.compact("t", 0, upto=clock.now(), tombstones_before=clock.now())
        log.trim("t", 0, clock.now())
        assert len(steps) > 10
        assert max(steps) <= 60
        assert log.bounds("t", [0])[0].oldest == 3000

    def test_lets_appends_in_between(self, log, clock, monkeypatch):
        """Events are stored while old ones are being removed, not only afterwards."""
        monkeypatch.setattr(maintenance, "STEP_BYTES", 10_000)
        fill(log, 3000)
        clock.move(60)
        stored = 0
        with ThreadPoolExecutor(1) as cleaner:
            trimming = cleaner.submit(log.trim, "t", 0, clock.now())
            while not trimming.done():
                log.append("t", {1: [a_record("x")]})
                stored += 1
            trimming.result(PATIENCE)
        assert stored > 3

    def test_gives_space_back(self, path, log, clock):
        """A log that is filled and trimmed again and again does not make the file grow."""
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
        """Deleting returns at once, and the events are removed soon after, all but the file's last row."""
        fill(log, 1500)
        log.delete_topic("t")
        until(lambda: rows_in(path) <= 1)
        log.create_topic("next", 1)
        log.append("next", {0: [a_record("a")]})
        log.delete_topic("never there")
        until(lambda: (rows_in(path), logs_in(path)) == (1, 1))

    def test_is_finished_after_a_restart(self, path, clock, log):
        """What a process that ended did not remove, the next one does."""
        fill(log, 300)
        log._cleaner.stop()
        log._writer.run(lambda connection: connection.execute("UPDATE logs SET topic = NULL").close())
        log.close()
        again = SqliteLog(path, clock)
        until(lambda: rows_in(path) <= 1)
        again.close()

    def test_stops_when_the_log_is_closed(self, log, clock):
        """A trim that is under way ends early, and says so."""
        fill(log, 3000)
        clock.move(60)
        with ThreadPoolExecutor(1) as cleaner:
            first = threading.Event()
            run = log._writer.run
            log._writer.run = lambda work: (run(work), first.set())[0]
            trimming = cleaner.submit(log.trim, "t", 0, clock.now())
            assert first.wait(PATIENCE)
            log.close()
            with pytest.raises(Unavailable):
                trimming.result(PATIENCE)


class TestCompaction:
    def test_of_more_keys_than_fit_takes_several_rounds(self, log, clock, monkeypatch):
        """With room for a few keys only, the result is the same."""
        monkeypatch.setattr(maintenance, "MOST_KEYS", 10)
        monkeypatch.setattr(maintenance, "STEP_ROWS", 7)
        for number in range(200):
            log.append("t", {0: [a_record(f"{number}", f"key {number * 7 % 60}")]})
        clock.move(60)
        log.compact("t", 0, upto=clock.now(), tombstones_before=clock.now())
        assert [event.offset for event in log.read("t", 0, 0).events] == list(range(140, 200))

    def test_with_nothing_new_reads_nothing(self, log, clock, monkeypatch):
        """Compacting again when nothing came costs a look at one row."""
        fill(log, 300, keys=10)
        clock.move(60)
        log.compact("t", 0, upto=clock.now(), tombstones_before=clock.now())
        monkeypatch.setattr(maintenance.Compaction, "_rows", None)
        log.compact("t", 0, upto=clock.now(), tombstones_before=clock.now())

    def test_that_is_interrupted_is_finished_by_the_next(self, log, clock, monkeypatch):
        """A run that ends in the middle leaves every key there, and the next run removes the rest."""
        fill(log, 2000, keys=40)
        clock.move(60)
        carry_out, calls = maintenance._carry_out, []

        def fail_at_the_third(*arguments: object) -> None:
            calls.append(arguments)
            if len(calls) == 3:
                raise Unavailable("power cut")
            carry_out(*arguments)

        monkeypatch.setattr(maintenance, "_carry_out", fail_at_the_third)
        with pytest.raises(Unavailable):
            log.compact("t", 0, upto=clock.now(), tombstones_before=clock.now())
        assert {event.record.key for event in everything(log)} == {f"{key}" for key in range(40)}
        monkeypatch.setattr(maintenance, "_carry_out", carry_out)
        log.compact("t", 0, upto=clock.now(), tombstones_before=clock.now())
        assert [event.offset for event in everything(log)] == list(range(1960, 2000))

    def test_leaves_alone_what_another_changed(self, path, log, clock):
        """Two who compact the same partition at the same time remove no more than one would."""
        fill(log, 1000, keys=10)
        clock.move(60)
        other = SqliteLog(path, clock)
        with ThreadPoolExecutor(2) as threads:
            runs = [
                threads.submit(each.compact, "t", 0, upto=clock.now(), tombstones_before=clock.now())
                for each in (log, other)
            ]
            for run in runs:
                run.result(PATIENCE)
        other.close()
        assert [event.offset for event in everything(log)] == list(range(990, 1000))


class TestDamage:
    @pytest.mark.parametrize("body", [b"", b"x" * 10, b"y" * 500])
    def test_that_is_met_while_reading_is_reported(self, path, log, body):
        """A frame that cannot be read makes the read fail; nothing is skipped in silence."""
        log.append("t", {0: [a_record("a")]})
        with the_turn_of_somebody_else(path) as connection:
            connection.execute("UPDATE frames SET body = ?", (body,))
            connection.commit()
        with pytest.raises(Unavailable, match="damaged"):
            log.read("t", 0, 0)

    def test_of_a_single_byte_is_noticed_in_what_is_compressed(self, path, log):
        """A byte that changed on the disk does not reach a reader."""
        log.append("t", {0: [Record(b'"%s"' % (b"abcdefgh" * 1000))]})
        with the_turn_of_somebody_else(path) as connection:
            (body,) = connection.execute("SELECT body FROM frames").fetchone()
            damaged = bytearray(body)
            damaged[-8] ^= 1
            connection.execute("UPDATE frames SET body = ?", (bytes(damaged),))
            connection.commit()
        with pytest.raises(Unavailable, match="damaged"):
            log.read("t", 0, 0)


class TestWaiting:
    def test_costs_next_to_nothing(self, path):
        """While many wait and watch and nothing happens, the process uses hardly any time."""
        log = SqliteLog(path, SystemClock())
        log.create_topic("t", 1)
        end = log.watch(lambda *_: None)
        with ThreadPoolExecutor(20) as threads:
            waiting = [threads.submit(log.read, "t", 0, 0, wait=10 * PATIENCE) for _ in range(20)]
            until(lambda: all(each.running() for each in waiting))
            time.sleep(0.2)
            before, begun = used(), time.monotonic()
            time.sleep(0.8)
            share = (used() - before) / (time.monotonic() - begun)
            fill(log, 10)
            for each in waiting:
                each.result(PATIENCE)
        assert share < 0.1
        end()
        log.close()

    def test_no_one_looks_when_no_one_is_interested(self, log, monkeypatch):
        """Without a watcher the file is not looked at."""
        looks: list[object] = []
        monkeypatch.setattr(log._appends_by_others, "_look_once", lambda *_: looks.append(1) or 1)
        end = log.watch(lambda *_: None)
        until(lambda: looks)
        end()
        looks.clear()
        time.sleep(0.3)
        assert len(looks) <= 1  # one may have been about to begin


def fill(log: SqliteLog, count: int, keys: int = 0) -> None:
    """So many events of about 1 KB in as many appends as the file would get from busy publishers."""
    filler = "".join(chr(97 + number * number % 26) for number in range(1000))
    for start in range(0, count, 10):
        records = [
            a_record(f"{number}{filler}", f"{number % keys}" if keys else None) for number in range(start, start + 10)
        ]
        log.append("t", {0: records})


def everything(log: SqliteLog):
    place, found = log.bounds("t", [0])[0].oldest, []
    while piece := log.read("t", 0, place).events:
        found += piece
        place = piece[-1].offset + 1
    return found


@contextmanager
def the_turn_of_somebody_else(path):
    connection = sqlite3.connect(path)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        connection.close()


def asked(path, question: str) -> int:
    connection = sqlite3.connect(path, timeout=PATIENCE)
    try:
        return connection.execute(question).fetchone()[0]
    finally:
        connection.close()


def rows_in(path) -> int:
    return asked(path, "SELECT count(*) FROM frames")


def logs_in(path) -> int:
    return asked(path, "SELECT count(*) FROM logs")


def checkpoint(path) -> None:
    asked(path, "PRAGMA wal_checkpoint(TRUNCATE)")


def rows_of_steps(log: SqliteLog) -> list[int]:
    """How many rows each step of the writer changed."""
    changed: list[int] = []
    run = log._writer.run

    def counted(step):
        def work(connection):
            before = connection.total_changes
            result = step(connection)
            changed.append(connection.total_changes - before)
            return result

        return run(work)

    log._writer.run = counted
    return changed


def counted_appends(log: SqliteLog) -> Callable[[], int]:
    """How many appends the writer has been asked for."""
    begun: list[object] = []
    commit = log._writer._commit

    def counted(appends) -> None:
        begun.extend(appends)
        commit(appends)

    log._writer._commit = counted
    return lambda: len(begun) + len(log._writer._appends)


def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def test_nothing_is_left_open(path, clock, recwarn):
    """A closed log leaves no connection, and its threads have ended."""
    before = set(threading.enumerate())
    log = SqliteLog(path, clock)
    log.create_topic("t", 1)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: log.append("t", {0: [a_record("a")]}), range(50)))
        list(threads.map(lambda _: log.read("t", 0, 0), range(50)))
    log.close()
    gc.collect()
    assert {thread for thread in threading.enumerate() if thread.name.startswith("event-log")} <= before
    assert not recwarn.list
    assert not list(path.parent.glob("*-wal"))
