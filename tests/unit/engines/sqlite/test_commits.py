"""What a commit of the event log asks of SQLite, and what the writer remembers from one to the next."""

import sqlite3
from contextlib import closing

import pytest

from nakadi.engines.sqlite import writing
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.engines.sqlite.file import SqliteFile
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from tests.support.clock import HandMovedClock
from tests.support.engines import a_record, everything, text_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture
def log(path):
    with closing(SqliteLog(path, HandMovedClock())) as log:
        log.create_topic("t", 40)
        yield log


def texts(log, partition=0):
    found = everything(log, "t", partition, 0)
    assert [event.offset for event in found] == list(range(len(found)))
    return [text_of(event.record) for event in found]


@pytest.fixture
def statements(monkeypatch):
    """The statements of connections that write, without their values."""
    seen = []
    begun = SqliteFile.lent_to_write

    def traced(file):
        manager = begun(file)

        class Traced:
            def __enter__(self):
                self.connection = manager.__enter__()
                self.connection.set_trace_callback(lambda text: seen.append(text.split("(")[0].split("?")[0].strip()))
                return self.connection

            def __exit__(self, *error):
                result = manager.__exit__(*error)
                self.connection.set_trace_callback(None)
                return result

        return Traced()

    monkeypatch.setattr(SqliteFile, "lent_to_write", traced)
    return seen


def test_a_commit_to_a_known_place_is_one_statement(log, statements):
    """The rows are inserted if nothing else has written, all at once; a transaction is needed for more than sixteen."""
    log.append("t", {number: [a_record("a")] for number in range(16)})
    one = ["INSERT"]
    for partitions, expected in ((1, one), (16, one), (17, ["BEGIN", *one, *one, "COMMIT"])):
        batches = {number: [a_record("b")] for number in range(partitions)}
        log.append("t", batches)
        statements.clear()
        log.append("t", batches)
        kinds = [text.split()[0] for text in statements if not text.startswith("--")]  # parts of others begin so
        assert kinds == expected


def test_what_others_write_to_the_file_is_noticed(log, path):
    """Two logs of one file append in turns: every event has an offset of its own."""
    with closing(SqliteLog(path, HandMovedClock())) as other:
        for number in range(5):
            log.append("t", {0: [a_record(f"a{number}")]})
            other.append("t", {0: [a_record(f"b{number}")]})
            other.append("t", {0: [a_record(f"c{number}")]})
        assert texts(log) == [f"{name}{number}" for number in range(5) for name in "abc"]
        other.seal_topic("t")
        with pytest.raises(SealedTopic):
            log.append("t", {0: [a_record("late")]})
        other.delete_topic("t")
        with pytest.raises(UnknownTopic):
            log.append("t", {0: [a_record("late")]})


def test_what_this_log_changes_itself_is_noticed(log):
    """Sealing, deleting and trimming are not appends, and change what may be appended where."""
    log.append("t", {0: [a_record("a")]})
    log.create_topic("u", 1)
    log.append("u", {0: [a_record("b")]})
    log.seal_topic("t")
    with pytest.raises(SealedTopic):
        log.append("t", {0: [a_record("c")]})
    log.delete_topic("u")
    with pytest.raises(UnknownTopic):
        log.append("u", {0: [a_record("d")]})


@pytest.mark.parametrize("partitions", [1, 17])
def test_a_commit_that_failed_is_forgotten(log, path, partitions):
    """What was to be stored has no offset: the next append gets it."""
    with closing(sqlite3.connect(path)) as other:
        other.execute(
            """CREATE TRIGGER small_disk BEFORE INSERT ON frames WHEN NEW.size > 1000 AND NEW.log = 1
            BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"""
        )
    batches = {number: [a_record("a")] for number in range(partitions)}
    log.append("t", batches)
    for _ in range(2):
        log.append("t", batches)
        with pytest.raises(Unavailable, match="full"):
            log.append("t", {number: [a_record("lost" * 300), a_record("too")] for number in range(partitions)})
    log.append("t", {number: [a_record("b")] for number in range(partitions)})
    assert [texts(log, number) for number in range(partitions)] == [["a", "a", "a", "b"]] * partitions


def test_only_so_many_ends_are_remembered(log, monkeypatch):
    """Partitions beyond that number are asked for again, and nothing is stored differently."""
    monkeypatch.setattr(writing, "MOST_KNOWN_ENDS", 3)
    for turn in range(3):
        for partition in range(8):
            log.append("t", {partition: [a_record(f"{turn}")]})
    assert [texts(log, partition) for partition in range(8)] == [["0", "1", "2"]] * 8


def test_a_record_that_no_frame_can_hold_is_refused_alone(log):
    """Its own append raises, before it shares a commit with others."""
    with pytest.raises(ValueError, match="line break"):
        log.append("t", {0: [Record(b"1\n2")]})
    log.append("t", {0: [a_record("a")]})
    assert texts(log) == ["a"]
