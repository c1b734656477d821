"""Tasks: coroutines that `await` operations, while whoever runs the task decides which thread waits for them.

    async def publish(event_log: EventLog) -> bool:
        fates = await event_log.append("a-topic", {0: [record]})
        return fates[0] == AppendStored()

    run_blocking(publish(event_log))

They are not asyncio tasks, and need no event loop: a Lambda function only needs `run_blocking`. An event loop starts
the operation that a task waits for, and resumes the task when the result is available.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Task = Coroutine["Wait[Any]", Any, T]
"""A coroutine that awaits nothing but instances of `Wait`, and other tasks."""

Done = Callable[[T | Exception], None]
"""Called once, with a result or with the exception in its place, in any thread. It must return quickly."""


class Wait(ABC, Generic[T]):
    """An operation that takes time. A task that awaits it gets its result, or its exception."""

    __slots__ = ()

    def __await__(self) -> Generator[Wait[Any], Any, T]:
        result: T = yield self
        return result

    @abstractmethod
    def begin(self, done: Done[T]) -> None:
        """Begin the operation, and return without waiting. Never raises. `done` may be called before this returns."""

    @abstractmethod
    def run(self) -> T:
        """Wait for the operation in this thread, and return its result."""


class Callback(Wait[T]):
    """Work of another thread, which calls back when it is done. `begin_work` hands it over, or raises."""

    __slots__ = ("_begin_work",)

    def __init__(self, begin_work: Callable[[Done[T]], None]) -> None:
        self._begin_work = begin_work

    def begin(self, done: Done[T]) -> None:
        try:
            self._begin_work(done)
        except Exception as error:  # noqa: BLE001  # the error belongs to the callback
            done(error)

    def run(self) -> T:
        waiting: SimpleQueue[T | Exception] = SimpleQueue()
        self._begin_work(waiting.put)
        outcome = waiting.get()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class ThreadCall(Wait[T]):
    """A blocking call. It runs in one of these threads, or in the current thread if the runner of the task blocks."""

    __slots__ = ("_threads", "_work")

    def __init__(self, threads: CallThreads, work: Callable[[], T]) -> None:
        self._threads = threads
        self._work = work

    def begin(self, done: Done[T]) -> None:
        self._threads.call(self._work, done)

    def run(self) -> T:
        return self._work()


class CallThreads:
    """Threads for work that waits, started when they are first needed."""

    def __init__(self, name: str, threads: int = 64) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def call(self, work: Callable[[], T], done: Done[T]) -> None:
        try:
            self._threads.submit(call_and_report, work, done)
        except RuntimeError:
            # The threads are closed, so call here: the store is closed too, and raises that itself.
            call_and_report(work, done)

    def close(self) -> None:
        """Let calls in progress finish, and end the threads."""
        self._threads.shutdown()


class _LeaveLoop(Wait[None]):
    __slots__ = ()

    def begin(self, done: Done[None]) -> None:
        done(None)

    def run(self) -> None:
        pass


LEAVE_LOOP: Wait[None] = _LeaveLoop()
"""A task awaits this before work that takes more than a moment. On an event loop, it then continues in a thread."""


def call_and_report(work: Callable[[], T], done: Done[T]) -> None:
    try:
        outcome: T | Exception = work()
    except Exception as error:  # noqa: BLE001  # it is for the one who is called
        outcome = error
    done(outcome)


def resume(task: Task[T], outcome: Any) -> Wait[Any]:
    """Run a task until it waits next: from its beginning if the outcome is None, otherwise from where it waited for
    this outcome. Raises `StopIteration` with the task's result when it ends.
    """
    return task.throw(outcome) if isinstance(outcome, Exception) else task.send(outcome)


def run_blocking(task: Task[T]) -> T:
    """Run a task to its result, and wait in this thread wherever it waits."""
    outcome: Any = None
    try:
        while True:
            wait = resume(task, outcome)
            try:
                outcome = wait.run()
            except Exception as error:  # noqa: BLE001  # the task handles it
                outcome = error
    except StopIteration as end:
        result: T = end.value
        return result


def begin_task(task: Task[T], done: Done[T], outcome: Any = None) -> None:
    """Run a task until it waits, and return. The task then continues in the threads that deliver the awaited
    results.
    """
    try:
        wait = resume(task, outcome)
    except StopIteration as end:
        done(end.value)
    except Exception as error:  # noqa: BLE001  # it is for the one who is called
        done(error)
    else:
        wait.begin(partial(begin_task, task, done))
