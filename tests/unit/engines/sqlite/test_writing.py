"""The statements that commits of events and of cursors need, and what the writer caches between them."""

import sqlite3
from contextlib import closing
from itertools import groupby

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite import writing
from nakadi.engines.sqlite.coordination import SqliteCoordination
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.engines.sqlite.file import SqliteFile
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EMPTY_ASSIGNMENT, CommitResult, OffsetsCommitted
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from tests.support.builders import A_MOMENT
from tests.support.clock import HandMovedClock
from tests.support.coordination import (
    LATER,
    SUBSCRIPTION,
    a_place,
    an_assignment,
    at,
    begin_assignment,
    commit,
    commit_async,
    position,
)
from tests.support.engines import a_record, read_everything, record_text
from tests.support.patience import PATIENCE


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture
def log(path):
    with closing(SqliteLog(path, HandMovedClock())) as log:
        log.create_topic("t", 40)
        yield log


def texts(log, partition=0):
    found = read_everything(log, "t", partition, 0)
    assert [event.offset for event in found] == list(range(len(found)))
    return [record_text(event.record) for event in found]


@pytest.fixture
def statements(monkeypatch):
    """The statements of the connections that write, without their values."""
    seen = []
    open_connection = SqliteFile.write_connection

    def open_traced(file):
        manager = open_connection(file)

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

    monkeypatch.setattr(SqliteFile, "write_connection", open_traced)
    return seen


def test_a_commit_to_a_known_place_is_one_statement(log, statements):
    """Up to sixteen rows are inserted in one statement, if nobody else has written since; more need a transaction."""
    run_blocking(log.append("t", {number: [a_record("a")] for number in range(16)}))
    one = ["INSERT"]
    for partitions, expected in ((1, one), (16, one), (17, ["BEGIN", *one, *one, "COMMIT"])):
        batches = {number: [a_record("b")] for number in range(partitions)}
        run_blocking(log.append("t", batches))
        statements.clear()
        run_blocking(log.append("t", batches))
        kinds = [
            text.split()[0] for text in statements if not text.startswith("--")
        ]  # the other statements begin transactions
        assert kinds == expected


def test_what_others_write_to_the_file_is_noticed(log, path):
    """Two logs with the same file append alternately: every event has its own offset."""
    with closing(SqliteLog(path, HandMovedClock())) as other:
        for number in range(5):
            run_blocking(log.append("t", {0: [a_record(f"a{number}")]}))
            run_blocking(other.append("t", {0: [a_record(f"b{number}")]}))
            run_blocking(other.append("t", {0: [a_record(f"c{number}")]}))
        assert texts(log) == [f"{name}{number}" for number in range(5) for name in "abc"]
        other.seal_topic("t")
        with pytest.raises(SealedTopic):
            run_blocking(log.append("t", {0: [a_record("late")]}))
        other.delete_topic("t")
        with pytest.raises(UnknownTopic):
            run_blocking(log.append("t", {0: [a_record("late")]}))


def test_what_this_log_changes_itself_is_noticed(log):
    """After a log has sealed or deleted a topic, it no longer appends by what it has cached about the topic."""
    run_blocking(log.append("t", {0: [a_record("a")]}))
    log.create_topic("u", 1)
    run_blocking(log.append("u", {0: [a_record("b")]}))
    log.seal_topic("t")
    with pytest.raises(SealedTopic):
        run_blocking(log.append("t", {0: [a_record("c")]}))
    log.delete_topic("u")
    with pytest.raises(UnknownTopic):
        run_blocking(log.append("u", {0: [a_record("d")]}))


@pytest.mark.parametrize("partitions", [1, 17])
def test_a_commit_that_failed_is_forgotten(log, path, partitions):
    """A failed append uses no offset: the next append gets the same one."""
    with closing(sqlite3.connect(path)) as other:
        other.execute(
            """CREATE TRIGGER small_disk BEFORE INSERT ON frames WHEN NEW.size > 1000 AND NEW.log = 1
            BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"""
        )
    batches = {number: [a_record("a")] for number in range(partitions)}
    run_blocking(log.append("t", batches))
    for _ in range(2):
        run_blocking(log.append("t", batches))
        with pytest.raises(Unavailable, match="full"):
            run_blocking(
                log.append("t", {number: [a_record("lost" * 300), a_record("too")] for number in range(partitions)})
            )
    run_blocking(log.append("t", {number: [a_record("b")] for number in range(partitions)}))
    assert [texts(log, number) for number in range(partitions)] == [["a", "a", "a", "b"]] * partitions


def test_only_so_many_ends_are_remembered(log, monkeypatch):
    """The log caches the ends of a limited number of partitions. It reads the ends of others again, and the stored
    events are the same.
    """
    monkeypatch.setattr(writing, "MAX_KNOWN_ENDS", 3)
    for turn in range(3):
        for partition in range(8):
            run_blocking(log.append("t", {partition: [a_record(f"{turn}")]}))
    assert [texts(log, partition) for partition in range(8)] == [["0", "1", "2"]] * 8


def test_a_record_that_no_frame_can_hold_is_refused_alone(log):
    """An append of a record that no frame can hold raises before it shares a commit with others."""
    with pytest.raises(ValueError, match="line break"):
        run_blocking(log.append("t", {0: [Record(b"1\n2")]}))
    run_blocking(log.append("t", {0: [a_record("a")]}))
    assert texts(log) == ["a"]


@pytest.fixture
def coordination(path):
    with closing(SqliteCoordination(path)) as coordination:
        begin_assignment(coordination, *["a"] * 20)
        yield coordination


@pytest.fixture
def commit_statements(monkeypatch, statements):
    """The statements of all connections that write, including those that only commits use."""
    opened = SqliteFile.open_write_connection

    def open_traced(file):
        connection = opened(file)
        connection.set_trace_callback(lambda text: statements.append(text.strip()))
        return connection

    monkeypatch.setattr(SqliteFile, "open_write_connection", open_traced)
    return statements


def kinds_of(statements):
    """The first words of statements. A statement that returns rows is traced again for each row."""
    return [text.split()[0] for text, _ in groupby(statements) if not text.startswith("--")]


def test_a_commit_of_cursors_is_one_statement(coordination, commit_statements):
    """One statement moves the offsets and records the change, for one partition and for sixteen. A commit that does not
    move an offset is checked again in a transaction.
    """
    commit(coordination, "a", 0)
    one = ["WITH"]
    transaction = ["BEGIN", "UPDATE", "SELECT", "COMMIT"]
    for partitions, offset, expected in ((1, 1, one), (16, 2, one), (1, 2, [*one, *transaction])):
        commit_statements.clear()
        run_blocking(coordination.commit(SUBSCRIPTION, "a", {a_place(n): at(offset) for n in range(partitions)}, LATER))
        assert kinds_of(commit_statements) == expected


def test_commits_that_wait_together_are_one_statement(coordination, commit_statements):
    """Commits that wait together share a statement, but commits for the same partition follow each other, in order of
    arrival.
    """
    commit(coordination, "a", 0)
    commit_statements.clear()
    with coordination._changing._turn:
        outcomes = [commit_async(coordination, "a", {a_place(number): at(1)}) for number in range(16)]
        outcomes += [commit_async(coordination, "a", {a_place(0): at(offset)}) for offset in (2, 3)]
    results = [*map(dict, (each.result(PATIENCE) for each in outcomes))]
    assert {result for each in results for result in each.values()} == {CommitResult.COMMITTED}
    assert kinds_of(commit_statements) == ["WITH"] * 3


def test_a_full_disk_fails_the_commits_that_it_is_asked_for(coordination, path):
    """If the disk is full, a commit fails, none of its changes are stored, and the next commit is unaffected."""
    commit(coordination, "a", 0)
    with closing(sqlite3.connect(path)) as other:
        other.execute(
            """CREATE TRIGGER small_disk BEFORE UPDATE ON offsets WHEN NEW.position > 1000
            BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"""
        )
    outcome = commit_async(coordination, "a", {a_place(0): at(1), a_place(1): at(1001)})
    with pytest.raises(Unavailable, match="full"):
        outcome.result(PATIENCE)
    assert [position(coordination, each) for each in (0, 1)] == [at(0), at(-1)]
    assert commit(coordination, "a", 1) is CommitResult.COMMITTED


def test_commits_of_this_process_are_no_news_to_it(coordination):
    """Listeners are notified of each commit once, with its positions, however many commits share a transaction."""
    heard = []
    end = coordination.add_change_listener(SUBSCRIPTION, heard.append)
    with coordination._changing._turn:
        outcomes = [commit_async(coordination, "a", {a_place(number): at(1)}) for number in range(5)]
    for each in outcomes:
        each.result(PATIENCE)
    with coordination._file.read_connection() as connection:
        coordination._changes._report_if_file_changed(connection, -1)
    end()
    assert heard == [OffsetsCommitted("a", ((a_place(number), at(1)),)) for number in range(5)]


def test_news_of_deleted_subscriptions_are_forgotten_in_time(coordination, path):
    """After a hundred thousand later changes, the file forgets changes of deleted subscriptions, but not those of
    others.
    """
    coordination.replace_assignment("gone", EMPTY_ASSIGNMENT, an_assignment("a"), A_MOMENT, {a_place(): at(-1)})
    coordination.remove_subscription_state("gone")
    commit(coordination, "a", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("INSERT INTO coordination_news VALUES ('busy', 'offsets', 200000)")
        coordination.renew_lease("holder", LATER)
        names = {name for (name,) in other.execute("SELECT subscription FROM coordination_news")}
    assert names == {SUBSCRIPTION, "busy"}
