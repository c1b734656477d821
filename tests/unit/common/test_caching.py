"""Caching values that were read."""

import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from nakadi.common.caching import (
    CHANGE_COUNT_FORMAT,
    MAX_CACHE_ENTRIES,
    MAX_CACHE_ENTRY_AGE_SECONDS,
    Cache,
    ChangeCounter,
    ChangeCountingRegistry,
    ChangeWatch,
    ChangeWatchOfSeveralProcesses,
)
from nakadi.common.work import NeedsThread, run_without_blocking
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.model.outcomes import Unavailable
from nakadi.ports.registry import ChangeCounters, PutDocument, RemoveDocument
from tests.support.clock import HandMovedClock
from tests.support.patience import PATIENCE, until


def test_a_value_is_read_once_while_it_is_fresh():
    """A value is read again when it is too old, and not before."""
    clock, reads = HandMovedClock(), []
    cache = Cache(clock, 1.0)

    for _ in range(3):
        cache.get("a", lambda _: reads.append(1))
        clock.move(0.4)
    assert len(reads) == 1
    cache.get("a", lambda _: reads.append(1))

    assert len(reads) == 2


def test_what_is_forgotten_is_read_again():
    """After an entry is forgotten, the next look-up reads it."""
    cache = Cache(HandMovedClock(), 1.0)
    cache.get("a", lambda _: 1)
    cache.invalidate("a")

    assert cache.get("a", lambda _: 2) == 2


def test_a_read_that_met_a_change_is_not_remembered():
    """A value that was read before a change, and arrives after it, may be outdated: it is returned, but not cached."""
    cache = Cache(HandMovedClock(), 1.0)

    def read_and_meet_a_change(_):
        cache.invalidate("a")
        return "old"

    assert cache.get("a", read_and_meet_a_change) == "old"
    assert cache.get("a", lambda _: "new") == "new"


def test_what_nobody_asks_for_any_more_is_dropped():
    """Keys that nobody requests any more, such as old versions of event types, are removed once they are too old. A
    key that is requested continuously stays.
    """
    clock, reads = HandMovedClock(), []
    cache = Cache(clock, 1.0)
    for number in range(1000):
        cache.get("used", reads.append)
        cache.get(number, lambda _: None)
        clock.move(0.1)

    assert len(cache._entries) <= 20
    assert "used" in cache._entries
    assert len(reads) <= 120


def test_strangers_cannot_fill_the_memory():
    """The cache keeps a limited number of keys, however many are requested."""
    cache = Cache(HandMovedClock(), 1.0)
    for number in range(MAX_CACHE_ENTRIES + 5):
        cache.get(number, lambda _: None)

    assert len(cache._entries) <= MAX_CACHE_ENTRIES


KIND = "event-types"


class CacheSetup:
    """A registry that counts its calls, and caches that watch its changes."""

    def __init__(self) -> None:
        self.clock = HandMovedClock()
        self.registry = MemoryRegistry()
        self.asked: Counter[str] = Counter()
        self.watch = ChangeWatch(self._changes, self.clock)
        self.cache = self.a_cache()

    def a_cache(self, kind: str = KIND) -> Cache:
        return Cache(self.clock, 1.0, self.watch, kind)

    def _changes(self) -> ChangeCounters:
        self.asked["changes"] += 1
        return self.registry.change_counters()

    def get(self, key: str = "a"):
        return self.cache.get(key, self.read)

    def read(self, key: str):
        self.asked[key] += 1
        document = self.registry.get(KIND, key)
        return None if document is None else document.body["n"]

    def write(self, n: int, key: str = "a") -> None:
        self.registry.write(PutDocument(KIND, key, {"n": n}))


@pytest.fixture
def setup():
    made = CacheSetup()
    made.write(1)
    return made


class TestWithAWatch:
    def test_a_value_is_not_read_again_while_nothing_changes(self, setup: CacheSetup):
        """However many values are cached, one query renews all of them when they are too old."""
        for key in ("a", "b", "c"):
            setup.write(1, key)
        for _ in range(10):
            assert [setup.get(key) for key in ("a", "b", "c")] == [1, 1, 1]
            setup.clock.move(2)
        assert setup.asked == {"changes": 10, "a": 1, "b": 1, "c": 1}

    def test_a_function_that_stood_still_asks_again(self, setup: CacheSetup):
        """After a process was suspended, it forgets the values that it read before, although its steady clock stood
        still.
        """
        setup.get()
        setup.clock.stand_still(3600)
        setup.write(2)
        assert setup.get() == 1
        setup.watch.forget_snapshot_from_before_pause(1.0)
        assert setup.get() == 2

    def test_a_function_that_did_not_stand_still_asks_nothing(self, setup: CacheSetup):
        """The result of a query in the previous invocation is used as long as it is fresh by both clocks."""
        setup.get()
        setup.clock.move(0.9)
        setup.watch.forget_snapshot_from_before_pause(1.0)
        setup.get()
        assert setup.asked == {"changes": 1, "a": 1}

    def test_a_time_of_day_that_was_put_back_proves_nothing(self, setup: CacheSetup):
        """A result whose time is in the future is forgotten: nobody knows how old it is."""
        setup.get()
        setup.clock.set_back(60)
        setup.write(2)
        setup.watch.forget_snapshot_from_before_pause(1.0)
        assert setup.get() == 2

    def test_nothing_is_asked_while_everything_is_fresh(self, setup: CacheSetup):
        """While the values are fresh, there are no queries."""
        setup.get()
        setup.clock.move(0.9)
        setup.get()
        assert setup.asked == {"changes": 1, "a": 1}

    def test_quick_work_is_never_interrupted_by_all_at_once(self, setup: CacheSetup):
        """Shortly before the cache is too old, one caller that must not block is sent to a thread, which reads the
        changes; the others still get the cached value.
        """
        setup.get()
        setup.clock.move(0.6)
        with pytest.raises(NeedsThread):
            run_without_blocking(setup.get)
        assert [run_without_blocking(setup.get) for _ in range(3)] == [1, 1, 1]
        assert setup.asked["changes"] == 1
        assert setup.get() == 1
        assert setup.asked["changes"] == 2
        setup.clock.move(0.6)
        setup.get()
        assert setup.asked["changes"] == 2
        setup.clock.move(0.5)
        for _ in range(2):
            with pytest.raises(NeedsThread):
                run_without_blocking(setup.get)

    def test_quick_work_does_not_read(self, setup: CacheSetup):
        """Quick work never reads; values that are not cached are left to a thread."""
        setup.get("a")
        with pytest.raises(NeedsThread):
            run_without_blocking(lambda: setup.get("b"))
        assert setup.asked["b"] == 0

    def test_a_change_is_seen_in_time(self, setup: CacheSetup):
        """Changes and removals by another process are seen as soon as the cache is too old."""
        assert setup.get() == 1
        setup.write(2)
        setup.clock.move(1)
        assert setup.get() == 2
        setup.registry.write(RemoveDocument(KIND, "a"))
        setup.clock.move(1)
        assert setup.get() is None

    def test_a_change_releases_what_it_is_about(self, setup: CacheSetup):
        """If one of many values changes, only few values are read again."""
        keys = [f"key-{each}" for each in range(50)]
        for key in keys:
            setup.write(1, key)
        for key in keys:
            setup.get(key)
        setup.write(2, keys[0])
        setup.clock.move(2)
        assert [setup.get(key) for key in keys] == [2, *[1] * 49]
        assert 51 <= sum(setup.asked[key] for key in keys) < 55

    def test_a_change_between_the_question_and_the_reading_is_seen(self, setup: CacheSetup):
        """A value that was read before a change is read again, although the change was made after the query."""

        def read_and_meet_a_change(_: str) -> int:
            old = setup.read("a")
            setup.write(2)
            return old

        assert setup.cache.get("a", read_and_meet_a_change) == 1
        setup.clock.move(1)
        assert setup.get() == 2

    def test_what_is_forgotten_is_read_again_at_once(self, setup: CacheSetup):
        """A process sees its own writes at once."""
        setup.get()
        setup.write(2)
        setup.cache.invalidate("a")
        assert setup.get() == 2

    def test_all_caches_share_the_question(self, setup: CacheSetup):
        """A second cache uses the result of the same query."""
        setup.get()
        setup.a_cache("settings").get("x", lambda _: 0)
        assert setup.asked["changes"] == 1

    def test_a_value_is_read_again_some_day(self, setup: CacheSetup):
        """A change that was not counted, because an older version of the broker made it, is seen within an hour."""
        setup.get()
        setup.clock.move(MAX_CACHE_ENTRY_AGE_SECONDS)
        setup.get()
        assert setup.asked["a"] == 2

    def test_an_unanswered_look_confirms_no_entry(self, setup: CacheSetup):
        """While a cache cannot read the changes, it does not use entries that are too old."""
        setup.get()
        setup.registry.close()
        setup.clock.move(0.5)
        assert setup.get() == 1
        setup.clock.move(0.5)
        with pytest.raises(Unavailable):
            setup.get()

    def test_documents_whose_changes_are_not_counted_cannot_be_remembered(self, setup: CacheSetup):
        """A cache for a kind of document whose changes the registry does not count is refused at once."""
        with pytest.raises(AssertionError):
            setup.a_cache("measured")


class SlowRegistry:
    """Answers when the test allows it."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = Event()
        self.fails = False

    def __call__(self) -> ChangeCounters:
        self.asked += 1
        assert self.may_answer.wait(PATIENCE)
        if self.fails:
            raise Unavailable("not now")
        return ChangeCounters({1: self.asked})


class TestLooks:
    @pytest.mark.parametrize("fails", [False, True])
    def test_are_shared_by_those_who_need_one_at_once(self, fails):
        """If many threads ask at the same time, one reads from the store, and all get its result. If that read fails,
        each of them may read itself.
        """
        slow = SlowRegistry()
        slow.fails = fails
        watch = ChangeWatch(slow, HandMovedClock())
        with ThreadPoolExecutor(8) as threads:
            looks = [threads.submit(watch.read_counters, 1.0) for _ in range(8)]
            until(lambda: slow.asked == 1)
            slow.may_answer.set()
            found = {str(each.exception(PATIENCE) or each.result()) for each in looks}
        assert len(found) == 1
        assert slow.asked <= (8 if fails else 1)

    def test_that_began_too_early_are_not_shared(self):
        """A caller that needs the current state does not use the result of an earlier read."""
        slow = SlowRegistry()
        watch = ChangeWatch(slow, HandMovedClock())
        with ThreadPoolExecutor(2) as threads:
            looks = [threads.submit(watch.read_counters, 0.0) for _ in range(2)]
            until(lambda: slow.asked == 2)
            slow.may_answer.set()
            assert [each.result(PATIENCE).began_at for each in looks] == [0.0, 0.0]

    def test_that_failed_are_made_again(self):
        """After a read that fails, the next caller reads again."""
        slow = SlowRegistry()
        slow.may_answer.set()
        slow.fails = True
        watch = ChangeWatch(slow, HandMovedClock())
        with pytest.raises(Unavailable):
            watch.read_counters(1.0)
        slow.fails = False
        assert watch.read_counters(1.0).changes == ChangeCounters({1: 2})


class TestSeveralProcesses:
    """Caches of processes that count their changes in shared memory."""

    @pytest.fixture
    def counters(self):
        with tempfile.TemporaryFile() as file:
            file.truncate(2 * CHANGE_COUNT_FORMAT.size)
            yield ChangeCounter(file.fileno(), 0), ChangeCounter(file.fileno(), 1)

    def test_a_change_by_another_process_is_seen_at_once(self, counters):
        """After a write by another process, a value is read again, although the last query is still recent."""
        store, clock = MemoryRegistry(), HandMovedClock()
        own, others = (ChangeCountingRegistry(store, counter) for counter in counters)
        watch = ChangeWatchOfSeveralProcesses(own.change_counters, clock, counters[0].counts_of_all_processes)
        cache = Cache(clock, 1.0, watch, "event-types")

        for number in range(3):
            others.write(PutDocument("event-types", "a", {"number": number}))
            assert cache.get("a", lambda _: own.get("event-types", "a").body) == {"number": number}

    def test_nothing_is_asked_while_nothing_changes(self, counters):
        """Queries are as rare as in a broker of one process."""
        clock, looks = HandMovedClock(), []
        watch = ChangeWatchOfSeveralProcesses(
            lambda: looks.append(1) or ChangeCounters({}), clock, counters[0].counts_of_all_processes
        )
        cache = Cache(clock, 1.0, watch, "event-types")
        for _ in range(5):
            cache.get("a", lambda _: 1)
        assert len(looks) == 1
        counters[1].count_change()
        for _ in range(5):
            cache.get("a", lambda _: 1)
        assert len(looks) == 2

    def test_numbers_of_two_processes_never_hide_a_change(self, counters):
        """Each process counts its changes separately, so the numbers differ after every change by either process."""
        seen = [counters[0].counts_of_all_processes()]
        for counter in (counters[0], counters[1], counters[1], counters[0]):
            counter.count_change()
            seen.append(counters[1].counts_of_all_processes())
        assert len(set(seen)) == 5
