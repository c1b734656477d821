"""Data files whose statements a test can observe, and let fail."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nakadi.engines.sqlite.file import SqliteFile


class TracedFile(SqliteFile):
    """Calls a function with every statement before it is executed; an error of the function becomes the statement's."""

    def __init__(self, path: Path, before: Callable[[str], object]) -> None:
        super().__init__(path)
        self._before = before

    @contextmanager
    def read_connection(self) -> Iterator[Any]:
        with super().read_connection() as connection:
            yield TracedConnection(connection, self._before)


class TracedConnection:
    def __init__(self, connection: sqlite3.Connection, before: Callable[[str], object]) -> None:
        self._connection = connection
        self._before = before

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        self._before(statement)
        return self._connection.execute(statement, *arguments)
