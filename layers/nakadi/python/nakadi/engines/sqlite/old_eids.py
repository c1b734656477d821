"""Finds the rows of older ids, for which there is no room in memory (`eid_index`). The index is a table by id, so an
entry costs a write of a page, and a look-up costs a read of a page. It contains the ids of all rows up to a certain
row, and none of later rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

EIDS_PER_LOOKUP = 100
"""How many ids one statement looks up. Statements for different numbers of ids would be prepared and cached separately,
so there is one for all numbers, and unused places in it are null.
"""

_SELECT_ROWS = f"SELECT eid, row FROM old_eids WHERE eid IN ({', '.join('?' * EIDS_PER_LOOKUP)})"  # noqa: S608


def last_row_with_old_eids(connection: sqlite3.Connection) -> int:
    """The last row that is indexed here; 0 if no indexed row is left."""
    (row,) = connection.execute(
        "SELECT coalesce(max(last), 0) FROM old_eid_rows WHERE last >= (SELECT min(id) FROM eids)"
    ).fetchone()
    return int(row)


def find_old_eids(connection: sqlite3.Connection, eids: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """The rows of these ids, for ids that are indexed here."""
    for start in range(0, len(eids), EIDS_PER_LOOKUP):
        some = eids[start : start + EIDS_PER_LOOKUP]
        yield from connection.execute(_SELECT_ROWS, (*some, *[None] * (EIDS_PER_LOOKUP - len(some))))


def add_old_eids(connection: sqlite3.Connection, rows: Iterable[tuple[int, Sequence[bytes]]]) -> int:
    """Index the ids of the next rows, and return the last of them."""
    last, entries = 0, []
    for row, eids in rows:
        last = row
        entries += [(eid, row) for eid in eids]
    # The ids are sorted, so that entries for one page are adjacent.
    connection.executemany("INSERT OR IGNORE INTO old_eids (eid, row) VALUES (?, ?)", sorted(entries))
    connection.execute("DELETE FROM old_eid_rows")
    connection.execute("INSERT INTO old_eid_rows (last) VALUES (?)", (last,))
    return last


def remove_old_eids(connection: sqlite3.Connection, row: int, eids: Iterable[bytes]) -> None:
    connection.executemany("DELETE FROM old_eids WHERE eid = ? AND row = ?", sorted((eid, row) for eid in eids))
