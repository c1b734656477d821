"""How a process finds the sinks to which it delivers, and how its deliveries end."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest

from nakadi.app.engines import open_coordination, open_registry
from nakadi.delivery.dispatcher import LOOK_INTERVAL_SECONDS, Dispatcher, KnownSinks
from nakadi.delivery.sinks import SinkRepository
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.model.sink import SinkPause, SinkType
from nakadi.subscriptions.api.lease_watch import CLOCK_MARGIN, LEASE_DURATION, LeaseWatch
from nakadi.subscriptions.stream.leases import LeaseKeeper
from tests.support.clock import HandMovedClock
from tests.support.engines import DYNAMODB, prepare_engine
from tests.support.logs import records_of_this_thread
from tests.support.patience import PATIENCE, wait_on_loop
from tests.support.sinks import NOW, a_sink, stored_sink


class FailingRepository:
    """A repository without sinks. It calls `look` whenever it is read, and `look` may raise."""

    def __init__(self, look):
        self.registry = SimpleNamespace(change_counters=self._count)
        self.looks = 0
        self._look = look

    def _count(self):
        self.looks += 1
        self._look(self.looks)
        return self.looks

    def all(self):
        return []


def test_the_dispatcher_ends_silently_when_its_threads_accept_no_work(caplog):
    """If a program ends without closing its broker, the interpreter shuts down executors; the dispatcher then ends
    without an error.
    """
    threads = ThreadPoolExecutor(1)
    # The threads are closed before the dispatcher looks for the next time, as when a program ends.
    repository = FailingRepository(lambda _: threads.shutdown(wait=False))

    dispatcher = Dispatcher(repository, SimpleNamespace(threads=threads), list)
    asyncio.run(asyncio.wait_for(dispatcher.run(), PATIENCE))

    assert repository.looks == 1
    assert records_of_this_thread(caplog) == []


def test_a_look_that_fails_is_repeated_and_logged(caplog, monkeypatch):
    """If the store fails for a moment, the dispatcher logs that, and looks again."""
    monkeypatch.setattr("nakadi.delivery.dispatcher.LOOK_INTERVAL_SECONDS", 0.0)

    def fail_first(number):
        if number == 1:
            raise RuntimeError("the store is busy")

    repository = FailingRepository(fail_first)

    async def run():
        with ThreadPoolExecutor(1) as threads:
            running = asyncio.create_task(Dispatcher(repository, SimpleNamespace(threads=threads), list).run())
            await wait_on_loop(lambda: repository.looks > 2)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    [record] = records_of_this_thread(caplog)
    assert record.getMessage() == "Looking for sinks failed, trying again in 0.0 s"


class CountingRepository(SinkRepository, frozen=True):
    """Counts the reads of all sinks."""

    reads: list

    def all(self):
        self.reads.append(1)
        return super().all()


def test_sinks_are_read_again_only_after_a_change():
    """A process looks for changes of sinks every second; without a change, it decodes no sink. (X1)"""
    repository = CountingRepository(MemoryRegistry(), [])
    known = KnownSinks(repository)
    assert known.read() == {}
    sink = stored_sink(repository, a_sink(SinkType.HTTP, "https://example.org/"))
    found = known.read()
    assert found == {sink.subscription_id: sink}
    assert known.read() is found
    assert len(repository.reads) == 2
    repository.write_pause(sink, SinkPause("a reason", NOW))
    assert known.read()[sink.subscription_id].pause is not None
    repository.remove(sink.subscription_id)
    assert known.read() == {}
    assert len(repository.reads) == 4


class Process:
    """A process that looks for sinks, as its dispatcher does once per `LOOK_INTERVAL_SECONDS`."""

    def __init__(self, registry, coordination, clock):
        self._keeper = LeaseKeeper(coordination, clock)
        parts = SimpleNamespace(
            get_sender=lambda _: None,
            streams=SimpleNamespace(ensure_process_lease=lambda: self._keeper.ensure_lease().process_id),
        )
        live_holders = LeaseWatch(coordination, clock).live_holders
        self._dispatcher = Dispatcher(SinkRepository(registry), parts, live_holders)

    def look_up_sinks(self):
        """Look for sinks once, and return the names of those that the process has."""
        found = self._dispatcher._found = self._dispatcher._look_up_sinks()
        return set(found.sinks)


@pytest.fixture(params=["memory:", DYNAMODB])
def two_processes(request, tmp_path):
    clock = HandMovedClock()
    with (
        prepare_engine(request.param, tmp_path) as url,
        closing(open_registry(url)) as registry,
        closing(open_coordination(url)) as coordination,
    ):
        yield registry, clock, [Process(registry, coordination, clock) for _ in range(2)]


def test_a_sink_without_a_process_is_found_with_the_next_look(two_processes):
    """A newly registered sink is found within two intervals. A sink whose process has died is found soon after the
    lease of that process has expired, as streams are. Each sink has one process at any time. (X1, X31, X32)
    """
    registry, clock, (first, second) = two_processes
    assert 2 * LOOK_INTERVAL_SECONDS <= 5
    for each in (first, second, first):
        each.look_up_sinks()
    names = {f"subscription-{number}" for number in range(20)}
    for each in names:
        stored_sink(SinkRepository(registry), a_sink(SinkType.HTTP, "https://example.org/"), each)
    clock.move(LOOK_INTERVAL_SECONDS)
    # The first two looks: each process has to see the other's lease.
    first.look_up_sinks()
    found = second.look_up_sinks(), first.look_up_sinks()
    assert found[0] | found[1] == names
    assert found[0].isdisjoint(found[1])
    assert min(map(len, found)) > 0

    # The second process is killed.
    lease_seconds = (LEASE_DURATION + CLOCK_MARGIN).total_seconds()
    looks = 0
    while first.look_up_sinks() != names:
        clock.move(LOOK_INTERVAL_SECONDS)
        looks += 1
        assert looks <= lease_seconds / LOOK_INTERVAL_SECONDS + 1
    assert looks >= LEASE_DURATION.total_seconds() - 1
