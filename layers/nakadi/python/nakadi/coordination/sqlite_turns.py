"""Writers who come at the same time share a transaction: it is the wait for the disk that takes long."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from nakadi.sqlite_file import SqliteFile

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

MOST_TURNS = 500


class _Turn(Generic[T]):
    """A piece of work, which raises before it has changed anything, or not at all."""

    def __init__(self, work: Work[T]) -> None:
        self._work = work
        self._result: T | None = None
        self._error: BaseException | None = None
        self.done = False

    def take(self, connection: sqlite3.Connection) -> None:
        try:
            self._result = self._work(connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001  # it is raised by whoever waits
            self._error = error

    def failed(self, error: BaseException) -> None:
        self._error = error

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._result)


class Turns:
    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._waiting: deque[_Turn[Any]] = deque()
        self._lock = threading.Lock()

    def run(self, work: Work[T]) -> T:
        """Have work done in a transaction, perhaps together with that of others, and return when it is durable."""
        turn = _Turn(work)
        self._waiting.append(turn)
        with self._lock:
            # Whoever gets the lock does what has piled up; the others find theirs done.
            while not turn.done:
                self._take([self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TURNS))])
        return turn.outcome()

    def _take(self, turns: Sequence[_Turn[Any]]) -> None:
        try:
            with self._file.writing() as connection:
                for turn in turns:
                    turn.take(connection)
        except BaseException as error:  # noqa: BLE001  # it is raised by those who wait
            for turn in turns:
                turn.failed(error)
        finally:
            for turn in turns:
                turn.done = True
