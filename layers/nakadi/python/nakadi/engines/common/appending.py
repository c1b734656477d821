"""Appends that nothing waits for, in logs whose own appends either take no time or wait for a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from nakadi.model.events import Record
from nakadi.ports.event_log import Appended, Fates

Batches = Mapping[int, Sequence[Record]]


def append_at_once(append: Callable[[], Fates], done: Appended) -> None:
    """Make an append, and call `done` with what it returns or raises."""
    try:
        outcome: Fates | Exception = append()
    except Exception as error:  # noqa: BLE001  # it is for the one who is called
        outcome = error
    done(outcome)


class AppendThreads:
    """Threads for appends that wait, started when they are first needed."""

    def __init__(self, append: Callable[[str, Batches], Fates], threads: int = 64) -> None:
        self._append = append
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="nakadi-append")

    def append_soon(self, topic: str, batches: Batches, done: Appended) -> None:
        append = partial(self._append, topic, batches)
        try:
            self._threads.submit(append_at_once, append, done)
        except RuntimeError:
            # The threads are closed, and so is the log, which says so itself.
            append_at_once(append, done)

    def close(self) -> None:
        """Let what was begun come to its end, and end the threads."""
        self._threads.shutdown()
