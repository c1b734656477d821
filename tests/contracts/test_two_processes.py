"""Properties of a data file that two processes use at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nakadi.app.engines import open_event_log, open_registry
from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite.changes import APPEND_CHECK_INTERVAL_SECONDS
from nakadi.ports.clock import SystemClock
from nakadi.ports.event_log import OffsetUnavailable, SealedTopic
from nakadi.ports.registry import ChangedMeanwhile, Document, PutDocument
from tests.support.engines import a_record, read_everything, record_text
from tests.support.patience import PATIENCE
from tests.support.second_process import a_second_process


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/nakadi.db"


@pytest.fixture
def other(url):
    with a_second_process(url) as started:
        yield started


@pytest.fixture
def log(url):
    log = open_event_log(url, SystemClock())
    log.create_topic("t", 2)
    yield log
    log.close()


@pytest.fixture
def registry(url):
    registry = open_registry(url)
    yield registry
    registry.close()


class TestEventLog:
    def test_gives_no_offset_twice(self, log, other):
        """If two processes append to one partition from many threads, the offsets have no gaps, and no event is
        lost."""
        other.begin("append_in_threads", "t", "theirs", 4, 50)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda thread: append(log, f"mine{thread}", 50), range(4)))
        other.answer()
        events = read_everything(log, "t", 0, 0)
        assert [event.offset for event in events] == list(range(400))
        for publisher in [f"{who}{thread}" for who in ("mine", "theirs") for thread in range(4)]:
            names = [
                name for name in map(record_text, (event.record for event in events)) if name.startswith(publisher)
            ]
            assert names == [f"{publisher}/{number}" for number in range(50)]
        moments = [event.stored_at for event in events]
        assert moments == sorted(moments)

    def test_shows_at_once_what_the_other_stored(self, log, other):
        """A read sees the events that another process stored before the read began."""
        for number in range(10):
            other.ask("append", "t", f"{number}", 1)
            assert log.bounds("t", [0])[0].next_offset == number + 1
            assert record_text(log.read("t", 0, number).events[0].record) == f"{number}/0"

    def test_wakes_readers_soon(self, log, other):
        """A read that waits returns when another process has appended, because its own process checks many times a
        second.
        """
        assert APPEND_CHECK_INTERVAL_SECONDS <= 0.05
        with ThreadPoolExecutor(1) as reader:
            for number in range(10):
                reading = reader.submit(log.read, "t", 0, number, wait=10 * PATIENCE)
                other.ask("append", "t", f"{number}", 1)
                assert len(reading.result(PATIENCE).events) == 1

    def test_notifies_watchers_soon(self, log, other):
        """A watcher is notified of an append by another process, and again of a later one."""
        told = threading.Event()
        places = set()
        end = log.add_change_listener(lambda *place: (places.add(place), told.set()))
        for number in range(5):
            told.clear()
            other.ask("append", "t", f"{number}", 1)
            assert told.wait(PATIENCE)
        assert places == {("t", 0)}
        end()

    def test_notifies_watchers_that_come_later(self, log, other):
        """A watcher that begins after others have ended is notified of events that are stored from then on."""
        log.add_change_listener(lambda *_: None)()
        other.ask("append", "t", "unwatched", 3)
        told = threading.Event()
        end = log.add_change_listener(lambda *_: told.set())
        other.ask("append", "t", "watched", 1)
        assert told.wait(PATIENCE)
        end()

    def test_takes_nothing_once_the_other_sealed(self, log, other):
        """After another process has sealed a topic, nothing is stored after the end that readers see."""
        with ThreadPoolExecutor(2) as threads:
            publishing = [threads.submit(append_until_sealed, log) for _ in range(2)]
            assert log.read("t", 0, 0, wait=PATIENCE).events
            end = other.ask("seal", "t")
            acknowledged = sum(each.result(PATIENCE) for each in publishing)
        assert log.bounds("t", [0])[0].next_offset == end == acknowledged

    def test_refuses_what_the_other_trimmed(self, log, other):
        """A read of events that another process has removed is refused."""
        append(log, "a", 5)
        other.ask("trim", "t")
        with pytest.raises(OffsetUnavailable):
            log.read("t", 0, 0)
        assert log.bounds("t", [0])[0].oldest == 5


class TestRegistry:
    def test_creates_a_key_once(self, registry, other):
        """If two processes create the same keys, each key is created by one of them."""
        other.begin("create", "theirs", 60)
        mine = []
        for number in range(60):
            try:
                registry.write(PutDocument("thing", f"{number}", {"by": "mine"}, expected_revision=0))
                mine.append(f"{number}")
            except ChangedMeanwhile:
                continue
        theirs = other.answer()
        assert sorted(mine + theirs) == sorted(f"{number}" for number in range(60))
        assert {each.key for each in registry.list("thing") if each.body["by"] == "mine"} == set(mine)

    def test_loses_no_update(self, registry, other):
        """If two processes increment a number in a document from several threads, no increment is lost."""
        registry.write(PutDocument("thing", "counter", {"n": 0}))
        other.begin("count_up", 50)

        def count_up(_: int) -> None:
            done = 0
            while done < 25:
                found = registry.get("thing", "counter")
                try:
                    registry.write(
                        PutDocument("thing", "counter", {"n": found.body["n"] + 1}, expected_revision=found.revision)
                    )
                    done += 1
                except ChangedMeanwhile:
                    continue

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(count_up, range(2)))
        other.answer()
        assert registry.get("thing", "counter") == Document("counter", {"n": 100}, 101)

    def test_is_written_while_the_other_publishes(self, log, registry, other):
        """A process that publishes without pause does not keep another one from writing: the other one gets a turn each
        time."""
        other.begin("append_in_threads", "t", "theirs", 4, 250)
        assert log.read("t", 0, 0, wait=PATIENCE).events
        for number in range(50):
            registry.write(PutDocument("thing", f"{number}", {}))
        other.answer()


def append(log, name: str, count: int) -> None:
    for number in range(count):
        run_blocking(log.append("t", {0: [a_record(f"{name}/{number}")]}))


def append_until_sealed(log) -> int:
    acknowledged = 0
    while True:
        try:
            run_blocking(log.append("t", {0: [a_record("x")]}))
            acknowledged += 1
        except SealedTopic:
            return acknowledged
