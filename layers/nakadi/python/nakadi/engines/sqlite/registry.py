"""The registry in a SQLite file, for as many processes on one machine as you like."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path

import orjson

from nakadi.engines.common.documents import (
    NUMBERS,
    check_changes_of_one_write,
    counted_buckets,
    document_in,
    documents_in,
    entry_of,
    outcome_of,
)
from nakadi.engines.sqlite.file import PATIENCE, SqliteFile
from nakadi.ports.registry import ABSENT, Change, Changes, Document, Remove

# One row, however many documents there are: SQLite's binding lets other threads run at every row.
LIST = """
    SELECT '[' || coalesce(group_concat(entry), '') || ']' FROM (
        SELECT entry FROM documents
        WHERE kind = :kind AND key >= :prefix AND key > :after AND (:end IS NULL OR key < :end)
        ORDER BY key LIMIT :limit)
"""

PUT = """
    INSERT INTO documents (kind, key, revision, entry) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (kind, key) DO UPDATE SET revision = ?3, entry = ?4
"""


# Numbers lie among the documents: a file of an older version has room for them, and an older broker passes them over.
COUNT = """
    INSERT INTO documents (kind, key, revision, entry) VALUES (?1, ?2, 1, '')
    ON CONFLICT (kind, key) DO UPDATE SET revision = revision + 1
"""

NUMBERS_LIST = "SELECT json_group_object(key, revision) FROM documents WHERE kind = ?"


class SqliteRegistry:
    def __init__(self, path: Path, *, patience: float = PATIENCE) -> None:
        self._file = SqliteFile(path, patience=patience)

    def get(self, kind: str, key: str) -> Document | None:
        with self._file.lent() as connection:
            found = connection.execute("SELECT entry FROM documents WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return document_in(found[0]) if found else None

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        wanted = {
            "kind": kind,
            "prefix": prefix,
            "after": after,
            "end": _end_of(prefix),
            "limit": -1 if limit is None else limit,
        }
        with self._file.lent() as connection:
            (found,) = connection.execute(LIST, wanted).fetchone()
        return documents_in(found)

    def write(self, *changes: Change) -> None:
        check_changes_of_one_write(changes)
        with self._file.writing() as connection:
            for change in changes:
                _make(connection, change)
            count(connection, counted_buckets(changes))

    def changes(self) -> Changes:
        with self._file.lent() as connection:
            return numbers_in(connection)

    def close(self) -> None:
        self._file.close()


def _make(connection: sqlite3.Connection, change: Change) -> None:
    place = (change.kind, change.key)
    found = connection.execute("SELECT revision FROM documents WHERE kind = ? AND key = ?", place).fetchone()
    document = outcome_of(change, found[0] if found else ABSENT)
    if document is not None:
        connection.execute(PUT, (*place, document.revision, entry_of(document).decode()))
    elif isinstance(change, Remove):
        connection.execute("DELETE FROM documents WHERE kind = ? AND key = ?", place)


def count(connection: sqlite3.Connection, buckets: Collection[int]) -> None:
    connection.executemany(COUNT, [(NUMBERS, str(bucket)) for bucket in buckets])


def numbers_in(connection: sqlite3.Connection) -> Changes:
    (found,) = connection.execute(NUMBERS_LIST, (NUMBERS,)).fetchone()
    return Changes({int(bucket): number for bucket, number in orjson.loads(found).items()})


def _end_of(prefix: str) -> str | None:
    """The least text that is greater than all that begin so; None when there is none."""
    for length in range(len(prefix), 0, -1):
        point = ord(prefix[length - 1])
        if point < 0x10FFFF:
            # No text is kept that contains one of the surrogates.
            return prefix[: length - 1] + chr(0xE000 if point == 0xD7FF else point + 1)
    return None
