"""How long tests wait, and how they measure work: other processes may keep every processor busy beside them."""

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
"""Seconds that a test waits for what takes a moment. Whoever waits so long has found a fault, not a busy machine."""


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds; for changes elsewhere without a notification."""
    end = time.monotonic() + seconds
    used = time.thread_time()
    while not condition():
        assert time.monotonic() < end, "it is still not so"
        # An expensive look is not repeated at once: it would take the processor from the awaited work.
        time.sleep(max(0.005, 3 * (time.thread_time() - used)))
        used = time.thread_time()


async def wait_on_loop(condition: Callable[[], object]) -> None:
    """The same, while the event loop runs everything else."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # the awaited change notifies nobody
            await asyncio.sleep(0.005)


def run_in_threads(work: Callable[[int], Result], count: int) -> list[Result]:
    """Call a function in this number of threads at the same time; an exception in one of them is raised here.

    However long it takes: the threads have to end before a test can, so a deadline would only fail on a busy machine.
    """
    with ThreadPoolExecutor(count) as threads:
        return [each.result() for each in [threads.submit(work, number) for number in range(count)]]


@contextmanager
def started_threads() -> Iterator[Callable[[], list[str]]]:
    """The names of the threads that were started here and are alive when one asks.

    The process has others, of tests before this one; they end whenever they like, so a number of threads says nothing.
    """
    before = set(threading.enumerate())
    yield lambda: [each.name for each in threading.enumerate() if each not in before]


def measure_cpu(work: Callable[[], object]) -> float:
    """The work for the processor, compared with a loop of about five milliseconds.

    Only this thread's time on the processor counts, so other programs matter little. It matters somewhat, because
    processors share caches and slow down when all are busy, by up to six times: bounds should be ten times the
    measured figure.
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
