"""The ids of events that were stored, so that none is stored twice within its window.

The transaction that stores events adds a row with their ids at the end of a table, and no row is changed until its
window has passed: an index by id would have a page of the file written for each event. In memory are the newest ids,
each with its row, and a few bytes of each older one (`eid_index`), which say among which rows it may be. What they say
is checked in these rows.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

from msgspec import Struct

from nakadi.engines.common.duplicates import PlacesByPartition
from nakadi.engines.sqlite.eid_index import EidIndex
from nakadi.model.events import MICROSECOND, EventPlace, indices_within_partitions
from nakadi.ports.deduplication import EventIds

SCOPE_BYTES = 16
EID_BYTES = 16

MAX_RECENT_EIDS = 4_096
"""So many ids, with those that come in the same append, are among the rows that are looked through for an older one."""

MAX_ROWS_PRUNED_AT_ONCE = 300

EID_COLUMNS = "scope, stored_at, expires_at, timeline, count, body"
"""A body has the ids, then the partition of each in four bytes, then the offset of each in eight."""

RowRange = tuple[int, int]


class _StoredEid(Struct, frozen=True):
    stored_at: int
    place: EventPlace


class EidMemory:
    """The ids as the connection that writes sees them. In a transaction, `catch_up` comes first; one that failed has to
    be followed by `forget_all`."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self.forget_all()

    def forget_all(self) -> None:
        self._connection = None
        self._last_row = 0
        # The row of each of the newest ids; those of older ones are in `_index`, by numbers that stand for their rows.
        self._recent: dict[bytes, int] = {}
        self._first_recent_row = 1
        self._index = EidIndex()
        self._rows_of_run: dict[int, RowRange] = {}

    def load(self, connection: sqlite3.Connection) -> None:
        """Read what there is, unless that was done: before a transaction, for it may take long."""
        if self._connection is None:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            self.catch_up(connection, version)

    def catch_up(self, connection: sqlite3.Connection, version: int) -> None:
        """Read what other connections have added, if the file has another version than when that was last done.

        Within a transaction that may write, nothing is missing then.
        """
        if connection is self._connection and version == self._version:
            return
        for row, scope, count, body in connection.execute(
            "SELECT id, scope, count, body FROM eids WHERE id > ? ORDER BY id", (self._last_row,)
        ):
            self._note_row(row, list(map(scope.__add__, _eids_of_body(body, count))))
        self._connection, self._version = connection, version

    def remember(
        self, connection: sqlite3.Connection, ids: EventIds, next_offsets: dict[int, int], now: int
    ) -> PlacesByPartition:
        """Write down the ids that are new, and return the places of the first events with the others.

        `next_offsets` are those of the partitions that are appended to, and are moved on by the new events.
        """
        scope = blake2b(ids.scope.encode(), digest_size=SCOPE_BYTES).digest()
        keys = list(map(scope.__add__, ids.eids))
        window = ids.window // MICROSECOND
        known = self._find_stored_after(connection, keys, now - window)
        new = _indices_of_new_keys(keys, ids.partitions, known, next_offsets)
        new_keys, eids, partitions = keys, ids.eids, ids.partitions
        if len(new) < len(keys):
            new_keys, eids = [keys[index] for index in new], [eids[index] for index in new]
            partitions = [partitions[index] for index in new]
        offsets = _next_offsets_of(partitions, next_offsets)
        if eids:
            body = b"".join((*eids, array("I", partitions).tobytes(), array("Q", offsets).tobytes()))
            row = connection.execute(
                f"INSERT INTO eids ({EID_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608  # the columns above
                (scope, now, now + window, ids.timeline, len(eids), body),
            ).lastrowid
            assert row is not None
            self._note_row(row, new_keys)
            if not self._recent:
                self._forget_pruned_rows(connection)
        if len(new) == len(keys):
            return {}
        places = {key: each.place for key, each in known.items()}
        for key, partition, offset in zip(new_keys, partitions, offsets, strict=True):
            places[key] = EventPlace(ids.timeline, partition, offset)
        left_out = set(range(len(keys))).difference(new)
        found = [(index, places[keys[index]]) for index in left_out if ids.partitions[index] in next_offsets]
        return _places_by_partition(ids.partitions, found)

    def _note_row(self, row: int, keys: Sequence[bytes]) -> None:
        self._recent.update(zip(keys, [row] * len(keys), strict=True))
        self._last_row = row
        if len(self._recent) >= MAX_RECENT_EIDS:
            self._index.add_run(row, self._recent)
            self._rows_of_run[row] = (self._first_recent_row, row)
            self._recent, self._first_recent_row = {}, row + 1

    def _forget_pruned_rows(self, connection: sqlite3.Connection) -> None:
        """Forget the ids of rows that are gone; those of a run go together."""
        oldest = oldest_eid_row(connection)
        self._rows_of_run = {
            run: rows for run, rows in self._rows_of_run.items() if oldest is not None and rows[1] >= oldest[0]
        }
        self._index.keep_runs(self._rows_of_run)

    def _find_stored_after(
        self, connection: sqlite3.Connection, keys: Sequence[bytes], moment: int
    ) -> Mapping[bytes, _StoredEid]:
        """The newest of each of these ids that was stored after this moment."""
        wanted: dict[RowRange, set[bytes]] = {}
        if not self._recent.keys().isdisjoint(keys):
            for key in keys:
                if (row := self._recent.get(key)) is not None:
                    wanted.setdefault((row, row), set()).add(key)
        for key, runs in self._index.find_candidates(keys):
            for rows in filter(None, map(self._rows_of_run.get, runs)):
                wanted.setdefault(rows, set()).add(key)
        found: dict[bytes, _StoredEid] = {}
        # Later rows have later ids. What the index says of one may be wrong, and its row may be gone.
        for rows in sorted(wanted):
            found.update(_find_in_rows(connection, rows, wanted[rows]))
        return {key: each for key, each in found.items() if each.stored_at > moment}


def _find_in_rows(
    connection: sqlite3.Connection, rows: RowRange, keys: Collection[bytes]
) -> Iterable[tuple[bytes, _StoredEid]]:
    for scope, stored_at, timeline, count, body in connection.execute(
        "SELECT scope, stored_at, timeline, count, body FROM eids WHERE id BETWEEN ? AND ? ORDER BY id", rows
    ):
        for index, eid in enumerate(_eids_of_body(body, count)):
            if scope + eid in keys:
                partitions, offsets = array("I"), array("Q")
                partitions.frombytes(body[EID_BYTES * count : (EID_BYTES + 4) * count])
                offsets.frombytes(body[(EID_BYTES + 4) * count :])
                yield scope + eid, _StoredEid(stored_at, EventPlace(timeline, partitions[index], offsets[index]))


def _eids_of_body(body: bytes, count: int) -> list[bytes]:
    return [body[start : start + EID_BYTES] for start in range(0, EID_BYTES * count, EID_BYTES)]


def _indices_of_new_keys(
    keys: Sequence[bytes], partitions: Sequence[int], known: Collection[bytes], next_offsets: Collection[int]
) -> Sequence[int]:
    """The indices of the keys that are stored: those of the partitions at hand that are not known, each once."""
    if not known and len(set(keys)) == len(keys) and set(partitions) <= set(next_offsets):
        return range(len(keys))
    seen = set(known)
    new: list[int] = []
    for index, (key, partition) in enumerate(zip(keys, partitions, strict=True)):
        if key not in seen and partition in next_offsets:
            seen.add(key)
            new.append(index)
    return new


def _next_offsets_of(partitions: Sequence[int], next_offsets: dict[int, int]) -> Sequence[int]:
    """The offset of each event, which moves that of its partition on."""
    if len(next_offsets) == 1:
        [(partition, first)] = next_offsets.items()
        next_offsets[partition] += len(partitions)
        return range(first, next_offsets[partition])
    offsets: list[int] = []
    for partition in partitions:
        offsets.append(next_offsets[partition])
        next_offsets[partition] += 1
    return offsets


def _places_by_partition(partitions: Sequence[int], found: Sequence[tuple[int, EventPlace]]) -> PlacesByPartition:
    """Places by the partition and the index within it of the event at an index of the batch."""
    indices = list(indices_within_partitions(partitions))
    places: dict[int, dict[int, EventPlace]] = {}
    for index, place in sorted(found):
        places.setdefault(partitions[index], {})[indices[index]] = place
    return places


# Housekeeping ---------------------------------------------------------------------------------------------------------


def oldest_eid_row(connection: sqlite3.Connection) -> RowRange | None:
    """The number of the oldest row, and when its window has passed."""
    row: RowRange | None = connection.execute("SELECT id, expires_at FROM eids ORDER BY id LIMIT 1").fetchone()
    return row


def prune_expired_eids(connection: sqlite3.Connection, now: int) -> bool:
    """Remove the oldest rows, up to the first whose window has not passed; whether there may be more to remove.

    Any process may do this at any time: what others remember of a row that is gone, they look up in vain. The last row
    stays, so that its number is not given to another row, which others would then not read.
    """
    removed = connection.execute(
        "DELETE FROM eids WHERE id IN (SELECT id FROM eids WHERE id < coalesce("
        "(SELECT id FROM eids WHERE expires_at > ? ORDER BY id LIMIT 1), (SELECT max(id) FROM eids))"
        " ORDER BY id LIMIT ?)",
        (now, MAX_ROWS_PRUNED_AT_ONCE),
    )
    return removed.rowcount == MAX_ROWS_PRUNED_AT_ONCE
