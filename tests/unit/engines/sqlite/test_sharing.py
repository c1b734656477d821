"""Appends of several processes, committed by one of them. The contract suite tests the promises of every event log."""

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import closing

import pytest

from nakadi.common.metrics import Metrics
from nakadi.common.waiting import begin_task, run_blocking
from nakadi.engines.sqlite import sharing
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.engines.sqlite.reading import ChunkedRecords, split_into_chunks
from nakadi.engines.sqlite.sharing import AppendService
from nakadi.model.events import AppendStored, Record
from nakadi.model.outcomes import Unavailable
from tests.support.clock import HandMovedClock
from tests.support.engines import a_record, append_async, read_everything, record_text
from tests.support.patience import PATIENCE, wait_on_loop
from tests.support.sharing import commit_for


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def committing_log(path, metrics):
    with closing(SqliteLog(path, HandMovedClock(), metrics)) as log:
        log.create_topic("t", 2)
        yield log


@pytest.fixture
def stalled_connection(path):
    """A log, and the other end of its connection, from which nobody reads yet."""
    ours, theirs = socket.socketpair()
    with closing(ours), closing(SqliteLog(path, HandMovedClock(), committer=theirs)) as log:
        try:
            yield log, ours
        finally:
            # The log waits for outcomes until the connection is closed.
            ours.close()


def test_appends_of_two_processes_are_committed_by_one(path, committing_log, metrics):
    """Each process gets the outcomes of its own appends; one process makes all commits, and offsets have no gaps."""
    with (
        commit_for(committing_log, 2) as (first, second),
        closing(SqliteLog(path, HandMovedClock(), committer=first)) as one,
        closing(SqliteLog(path, HandMovedClock(), committer=second)) as other,
    ):
        waiting = [
            append_async(log, "t", {0: [a_record(f"{name}{number}")]})
            for number in range(20)
            for name, log in (("a", one), ("b", other))
        ]
        assert [each.result(PATIENCE) for each in waiting] == [{0: AppendStored()}] * 40
        texts = [record_text(event.record) for event in read_everything(one, "t", 0, 0)]
        assert [text for text in texts if text.startswith("a")] == [f"a{number}" for number in range(20)]
        assert sorted(texts) == sorted(f"{name}{number}" for name in "ab" for number in range(20))
    assert metrics.log_commit_appends.rows()[()].sum_of_values == 40


def test_one_process_hears_at_once_of_what_another_stored(path, committing_log):
    """A watcher learns which partitions grew by the appends of any process, without reading the file."""
    heard: Future = Future()
    with (
        commit_for(committing_log, 2) as (first, second),
        closing(SqliteLog(path, HandMovedClock(), committer=first)) as one,
        closing(SqliteLog(path, HandMovedClock(), committer=second)) as other,
    ):
        end = other.add_change_listener(lambda *place: heard.done() or heard.set_result(place))
        run_blocking(one.append("t", {1: [a_record("x")]}))
        assert heard.result(PATIENCE) == ("t", 1)
        end()
        assert other.read("t", 1, 0, wait=PATIENCE).events


def test_a_connection_that_breaks_leaves_nothing_waiting(stalled_connection):
    """If a connection breaks, appends in progress end with an unknown outcome, and so do all later appends."""
    log, other_side = stalled_connection
    waiting = [append_async(log, "t", {0: [a_record("x")]}) for _ in range(3)]
    assert other_side.recv(1)
    other_side.close()
    for each in waiting:
        with pytest.raises(Unavailable, match="not known to be stored"):
            each.result(PATIENCE)
    for attempt in (
        lambda: run_blocking(log.append("t", {0: [a_record("y")]})),
        lambda: log.add_change_listener(lambda *_: None),
    ):
        with pytest.raises(Unavailable, match="has ended"):
            attempt()


def test_an_append_does_not_wait_for_a_process_that_does_not_read(committing_log, stalled_connection):
    """Bytes beyond the socket's capacity are kept in order until the other side reads them; none is lost or
    duplicated."""
    log, other_side = stalled_connection
    large = b'"%s"' % (b"x" * 7_000)
    waiting = [append_async(log, "t", {0: [Record(large), a_record(str(number))]}) for number in range(200)]
    assert not any(each.done() for each in waiting)

    async def serve():
        service = AppendService(committing_log)
        serving = asyncio.create_task(service.serve(other_side))
        await wait_on_loop(lambda: all(each.done() for each in waiting))
        log_closes = asyncio.get_running_loop().run_in_executor(None, log.close)
        await serving
        await log_closes

    asyncio.run(serve())
    assert {str(each.result()) for each in waiting} == {str({0: AppendStored()})}
    assert [record_text(event.record) for event in read_everything(committing_log, "t", 0, 0)][1::2] == [
        str(number) for number in range(200)
    ]


def test_no_more_waits_than_there_is_room_for(stalled_connection, monkeypatch):
    """An append beyond the limit is refused at once, even if the other side does not answer."""
    log, _ = stalled_connection
    monkeypatch.setattr(sharing, "MAX_WAITING_APPENDS", 2)
    waiting = [append_async(log, "t", {0: [a_record("x")]}) for _ in range(3)]
    with pytest.raises(Unavailable, match="Too many events"):
        waiting[2].result(PATIENCE)
    assert not waiting[0].done()


def test_a_process_that_does_not_read_has_each_partition_kept_once(committing_log):
    """While the socket is full, the partitions that grew are kept as a set, so they cannot fill the memory."""
    sent = []

    class Transport:
        def write(self, data):
            sent.append(data)

    sender = sharing._WorkerConnection(committing_log, lambda: None, lambda: None)
    sender.connection_made(Transport())
    sender.pause_writing()
    for number in range(1000):
        sender.news.append(("t", number % 3))
        sender.flush()
    assert (sent, list(sender._grown), len(sender.news)) == ([], [("t", 0), ("t", 1), ("t", 2)], 0)
    sender.resume_writing()
    (message,) = sharing.take_whole_messages(bytearray(sent[0]))
    assert sharing._ANSWER_DECODER.decode(message).grown_partitions == [("t", 0), ("t", 1), ("t", 2)]


def test_prepared_records_are_the_records():
    """Prepared records can be read, whether they are in frames or not."""
    records = [Record(b'"%s"' % (b"y" * size), "key") for size in (10, 70_000, 10)] + [Record(None, "gone")]
    prepared = ChunkedRecords([sharing._without_redundant_records(chunk) for chunk in split_into_chunks(records)])
    assert (len(prepared), list(prepared), prepared[1:3], prepared[3]) == (4, records, records[1:3], records[3])


def test_a_listener_that_fails_does_not_end_the_thread_of_outcomes(path, committing_log):
    """If a listener fails, later appends still get their outcomes."""
    with (
        commit_for(committing_log) as (connection,),
        closing(SqliteLog(path, HandMovedClock(), committer=connection)) as log,
    ):
        called = threading.Event()

        def fails(*_):
            called.set()
            raise RuntimeError("a listener's own fault")

        begin_task(log.append("t", {0: [a_record("x")]}), fails)
        assert called.wait(PATIENCE)
        assert append_async(log, "t", {0: [a_record("y")]}).result(PATIENCE) == {0: AppendStored()}
