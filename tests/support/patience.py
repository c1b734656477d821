"""Waits for conditions, and measures work, on machines whose processors other programs may keep busy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")

PATIENCE = 60.0
"""How many seconds a test waits for something that usually takes a moment. After that, the reason is a fault, not a
busy machine.
"""


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds, by polling: for changes elsewhere that notify nobody."""
    end = time.monotonic() + seconds
    used = time.thread_time()
    while not condition():
        assert time.monotonic() < end, "it is still not so"
        # Pause longer after an expensive check, which would otherwise take the processor from the awaited work.
        time.sleep(max(0.005, 3 * (time.thread_time() - used)))
        used = time.thread_time()


async def wait_on_loop(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, like `until`, while the event loop runs everything else."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # the awaited change notifies nobody
            await asyncio.sleep(0.005)


def run_in_threads(work: Callable[[int], Result], count: int) -> list[Result]:
    """Call a function in this number of threads at the same time, and raise the exception of any. There is no deadline,
    because a test cannot end before its threads, and a deadline would only fail on a busy machine.
    """
    with ThreadPoolExecutor(count) as threads:
        return [each.result() for each in [threads.submit(work, number) for number in range(count)]]


@contextmanager
def started_threads() -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns the names of the living threads that were started inside the block. Threads of
    earlier tests may end at any moment, so the number of threads says nothing.
    """
    before = set(threading.enumerate())
    yield lambda: [each.name for each in threading.enumerate() if each not in before]


def measure_cpu(work: Callable[[], object]) -> float:
    """Measure the processor time of `work`, as a multiple of a loop that takes about five milliseconds. Only this
    thread's time counts, so other programs matter little. But busy processors share caches and slow down, by up to six
    times, so bounds should be ten times the measured figure.
    """
    before = _measure_once(_loop)
    taken = _measure_once(work)
    return taken / max(before, _measure_once(_loop))


def _measure_once(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def _loop() -> None:
    numbers: dict[int, int] = {}
    for number in range(100_000):
        numbers[number & 0xFF] = number
