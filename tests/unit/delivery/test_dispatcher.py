"""The dispatcher of a process that ends."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from nakadi.delivery.dispatcher import Dispatcher
from tests.support.logs import records_of
from tests.support.patience import PATIENCE, wait_on_loop


def test_it_ends_silently_when_its_threads_take_no_more_work(caplog):
    """The interpreter shuts executors down when a program ends without closing its broker."""
    threads = ThreadPoolExecutor(1)
    looks = []

    class Repository:
        def all(self):
            looks.append(1)
            # Before the next look, as at the end of a program.
            threads.shutdown(wait=False)
            return []

    dispatcher = Dispatcher(Repository(), SimpleNamespace(threads=threads), list)
    asyncio.run(asyncio.wait_for(dispatcher.run(), PATIENCE))

    assert looks == [1]
    assert records_of("nakadi.delivery", caplog) == []


def test_a_look_that_fails_is_repeated_and_logged(caplog, monkeypatch):
    """A store that fails for a moment does not end the dispatcher."""
    monkeypatch.setattr("nakadi.delivery.dispatcher.LOOK_INTERVAL_SECONDS", 0.0)
    looks = []

    class Repository:
        def all(self):
            looks.append(1)
            if len(looks) == 1:
                raise RuntimeError("the store is busy")
            return []

    async def run():
        with ThreadPoolExecutor(1) as threads:
            running = asyncio.create_task(Dispatcher(Repository(), SimpleNamespace(threads=threads), list).run())
            await wait_on_loop(lambda: len(looks) > 2)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    [record] = records_of("nakadi.delivery", caplog)
    assert record.getMessage() == "Looking for sinks failed, tried again in 0.0 s"
