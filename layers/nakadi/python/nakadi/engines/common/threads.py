"""Appends and commits that nothing waits for, in stores where they take no time, or wait for a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from nakadi.model.events import Record
from nakadi.ports.event_log import AppendCallback, AppendResultByPartition

T = TypeVar("T")
Batches = Mapping[int, Sequence[Record]]


def call_and_report(work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
    try:
        outcome: T | Exception = work()
    except Exception as error:  # noqa: BLE001  # it is for the one who is called
        outcome = error
    done(outcome)


class CallThreads:
    """Threads for work that waits, started when they are first needed."""

    def __init__(self, name: str, threads: int = 64) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def call(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        try:
            self._threads.submit(call_and_report, work, done)
        except RuntimeError:
            # The threads are closed, and so is the store, which says so itself.
            call_and_report(work, done)

    def close(self) -> None:
        """Let what was begun come to its end, and end the threads."""
        self._threads.shutdown()


class AppendThreads(CallThreads):
    def __init__(self, append: Callable[[str, Batches], AppendResultByPartition], threads: int = 64) -> None:
        super().__init__("nakadi-append", threads)
        self._append = append

    def begin_append(self, topic: str, batches: Batches, done: AppendCallback) -> None:
        self.call(partial(self._append, topic, batches), done)
