import random
import sqlite3
from contextlib import closing
from datetime import timedelta
from functools import partial

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.engines.sqlite.file import open_connection
from nakadi.engines.sqlite.wiping import CLAIM_SECONDS, DataFileWiper, request_wipe
from nakadi.model.events import Record
from tests.support import everything
from tests.support.builders import A_MOMENT
from tests.support.clock import HandMovedClock

TOPICS = ("a", "b", "c", "d")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


def values_in(path):
    """The values among `<<0>>`, `<<1>>` … that occur anywhere in the file and its log."""
    content = b"".join(each.read_bytes() for each in path.parent.iterdir())
    return {int(piece.partition(b">>")[0]) for piece in content.split(b"<<")[1:] if piece[:8].partition(b">>")[1]}


class RandomlyChangedLog:
    """A log whose values change randomly; `kept` has the values that can be read, by topic."""

    def __init__(self, path, drawn, largest):
        self.clock = HandMovedClock(A_MOMENT)
        self.log = SqliteLog(path, self.clock)
        self.kept = {topic: {} for topic in TOPICS}
        self._drawn = drawn
        self._largest = largest
        self._count = 0
        for topic in TOPICS:
            self.log.create_topic(topic, 1)

    def append_some(self):
        for _ in range(self._drawn.randint(1, 40)):
            topic = self._drawn.choice(TOPICS)
            filler = b"x" * self._drawn.randint(1, self._largest)
            self.clock.move(1)
            run_blocking(self.log.append(topic, {0: [Record(b"<<%d>>" % self._count + filler, None)]}))
            self.kept[topic][self._count] = self.clock.now()
            self._count += 1

    def trim_random_prefix(self):
        topic = self._drawn.choice(TOPICS)
        if self.kept[topic]:
            first = self._drawn.choice(list(self.kept[topic]))
            self.log.trim(topic, 0, self.kept[topic][first])
            self.kept[topic] = {value: at for value, at in self.kept[topic].items() if value >= first}

    def read(self):
        found = {}
        for topic in TOPICS:
            oldest = self.log.bounds(topic, [0])[0].oldest
            events = self.log.read(topic, 0, oldest, limit=10_000, max_bytes=1 << 40).events
            found[topic] = [int(each.record.value[2:].partition(b">>")[0]) for each in events]
        return found


@pytest.mark.parametrize("largest", [300, 3_000, 30_000])
def test_no_byte_of_deleted_rows_is_left(path, largest):
    """After any appends and deletions, in rows that share pages and in rows of many pages, the file and SQLite's log
    contain only the values that can be read."""
    busy = RandomlyChangedLog(path, random.Random(everything.SEED), largest)
    with closing(busy.log):
        for _ in range(15):
            busy.append_some()
            busy.trim_random_prefix()
        kept = {value for values in busy.kept.values() for value in values}
        assert values_in(path) > kept

        request_wipe(path)
        assert DataFileWiper(path).run(patience_seconds=10)

        assert values_in(path) == kept
        assert busy.read() == {topic: list(values) for topic, values in busy.kept.items()}


@pytest.fixture
def log_with_deleted_value(path):
    """A log with a value that was deleted, and one that is kept."""
    with closing(SqliteLog(path, clock := HandMovedClock(A_MOMENT))) as log:
        log.create_topic("a", 1)
        for value in (b"<<1>>", b"<<2>>"):
            run_blocking(log.append("a", {0: [Record(value, None)]}))
            clock.move(1)
        log.trim("a", 0, A_MOMENT + timedelta(seconds=1))
        yield log


@pytest.mark.usefixtures("log_with_deleted_value")
def test_a_reader_of_an_old_state_is_waited_for(path):
    """While a reader needs SQLite's log, a wipe cannot be completed, and its request stays in the file; the next
    attempt continues.
    """
    request_wipe(path)
    with closing(open_connection(path, 1)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM frames").fetchone()
        assert not DataFileWiper(path).run(patience_seconds=0)
        assert 1 in values_in(path)
        reader.execute("COMMIT")
    assert DataFileWiper(path).run(patience_seconds=10)
    assert values_in(path) == {2}


@pytest.mark.usefixtures("log_with_deleted_value")
def test_a_wipe_that_was_stopped_is_completed_by_the_next(path):
    """Wherever a process stops, the next one completes its wipe, and no byte of the deleted values is left."""
    stopped = 0
    while True:
        steps = iter(range(stopped))
        request_wipe(path)
        if DataFileWiper(path, is_stopping=lambda steps=steps: next(steps, None) is None).run(patience_seconds=10):
            break
        assert DataFileWiper(path).run(patience_seconds=10)
        assert values_in(path) == {2}
        stopped += 1
    assert stopped > 5
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'blanks'").fetchone() == (0,)


@pytest.mark.usefixtures("log_with_deleted_value")
def test_one_process_at_a_time_wipes(path):
    """A process has the sole right to wipe until it has been silent for a while; once another process has taken over,
    the first one changes nothing.
    """
    now = 1000.0
    others = []

    def another_looks():
        others.append(DataFileWiper(path, now=lambda: now).run(patience_seconds=10))
        return False

    request_wipe(path)
    assert DataFileWiper(path, now=lambda: now, is_stopping=another_looks).run(patience_seconds=10)
    assert set(others) == {False}

    later = partial(DataFileWiper(path, now=lambda: now + CLAIM_SECONDS).run, patience_seconds=10)
    request_wipe(path)
    assert not DataFileWiper(path, now=lambda: now, is_stopping=lambda: not later()).run(patience_seconds=10)
    assert values_in(path) == {2}


@pytest.mark.usefixtures("log_with_deleted_value")
def test_a_request_that_comes_meanwhile_is_not_lost(path):
    """A wipe that is requested while another one is in progress is carried out by the next attempt."""
    request_wipe(path)
    requests = iter([lambda: request_wipe(path)])
    assert not DataFileWiper(path, is_stopping=lambda: bool(next(requests, bool)())).run(patience_seconds=10)
    assert DataFileWiper(path).run(patience_seconds=10)


@pytest.mark.usefixtures("log_with_deleted_value")
def test_a_broker_completes_a_wipe(path):
    """A broker wipes its data file if a job could not: the request is stored in the file."""
    url = f"sqlite:///{path}"
    request_wipe(path)
    with closing(open_broker(Settings(registry=url, event_log=url))) as broker:
        broker.wipe_data_files()
        assert values_in(path) == {2}
