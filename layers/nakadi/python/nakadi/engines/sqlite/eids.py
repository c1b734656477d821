"""The ids of events that were stored, so that none is stored twice within its window.

An id is written in the transaction that stores its event, into a row of the journal for each commit. When the journal
has `MAX_RECENT_EIDS`, they become a *run*: sorted, in pages of which one answers whether an id is in it. All writing is
at the ends of tables, whereas an index by id would have a page of the file changed for each event.

In memory are the ids of the journal, and of those in runs a few bytes each (`eid_index`), which say in which runs an id
may be. What they say is checked in the file.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import repeat

from nakadi.engines.common.duplicates import PlacesByPartition
from nakadi.engines.sqlite.eid_index import EidIndex
from nakadi.model.events import MICROSECOND, EventPlace, indices_within_partitions
from nakadi.ports.deduplication import EventIds

SCOPE_BYTES = 16
KEY_BYTES = 32
ENTRY_FORMAT = struct.Struct("<32sqIIQ")
"""The scope's hash and the id, when the event was stored, its timeline, its partition and its offset."""

MAX_RECENT_EIDS = 8_192
"""Beyond this many a run is made of them, which holds up appends for about ten milliseconds."""

ENTRIES_PER_PAGE = 128
MAX_RUNS_PRUNED_AT_ONCE = 2

SELECT_PAGE = "SELECT body FROM eid_pages WHERE run = ? AND first <= ? ORDER BY first DESC LIMIT 1"
SELECT_LAST_RUN = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'eid_runs'"
SELECT_NEXT_EXPIRY = """
    SELECT min(expires_at) FROM (
        SELECT expires_at FROM eid_runs
        UNION ALL SELECT expires_at FROM eid_journal WHERE id < (SELECT max(id) FROM eid_journal))
"""


class EidMemory:
    """The ids as the connection that writes sees them. In a transaction, `catch_up` comes first; one that failed has to
    be followed by `forget_all`."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self._last_run = 0
        self._last_journal_row = 0
        self._recent: dict[bytes, bytes] = {}
        self._recent_expire_at = 0
        self._index = EidIndex()

    def forget_all(self) -> None:
        self._connection = None

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Read what other connections have changed. Within a transaction that may write, nothing is missing then."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if connection is self._connection and version == self._version:
            return
        (last_run,) = connection.execute(SELECT_LAST_RUN).fetchone()
        if self._connection is None or last_run != self._last_run:
            self._recent, self._recent_expire_at, self._last_journal_row = {}, 0, 0
            self._index = EidIndex()
            for run in _live_runs(connection):
                self._index.add_run(run, _keys_of_run(connection, run))
            self._last_run = last_run
        for row, expires_at, body in connection.execute(
            "SELECT id, expires_at, body FROM eid_journal WHERE id > ? ORDER BY id", (self._last_journal_row,)
        ):
            self._last_journal_row = row
            entries = list(_entries(body))
            self._note_recent([entry[:KEY_BYTES] for entry in entries], entries, expires_at)
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
        new_keys, partitions = keys, ids.partitions
        if len(new) < len(keys):
            new_keys, partitions = [keys[index] for index in new], [partitions[index] for index in new]
        offsets = _next_offsets_of(partitions, next_offsets)
        entries = list(map(ENTRY_FORMAT.pack, new_keys, repeat(now), repeat(ids.timeline), partitions, offsets))
        if entries:
            row = connection.execute(
                "INSERT INTO eid_journal (expires_at, body) VALUES (?, ?)", (now + window, b"".join(entries))
            )
            self._last_journal_row = row.lastrowid or 0
            self._note_recent(new_keys, entries, now + window)
        if len(new) == len(keys):
            return {}
        known.update(zip(new_keys, entries, strict=True))
        left_out = set(range(len(keys))).difference(new)
        found = [(index, known[keys[index]]) for index in sorted(left_out) if ids.partitions[index] in next_offsets]
        return _places_by_partition(ids.partitions, found)

    def make_run_if_due(self, connection: sqlite3.Connection) -> None:
        if len(self._recent) >= MAX_RECENT_EIDS:
            self._make_run(connection)

    def _note_recent(self, keys: Iterable[bytes], entries: Iterable[bytes], expires_at: int) -> None:
        self._recent.update(zip(keys, entries, strict=True))
        self._recent_expire_at = max(self._recent_expire_at, expires_at)

    def _find_stored_after(
        self, connection: sqlite3.Connection, keys: Sequence[bytes], moment: int
    ) -> dict[bytes, bytes]:
        """The newest entry of each of these keys that has one from after this moment."""
        found: dict[bytes, bytes] = {}
        if not self._recent.keys().isdisjoint(keys):
            found = {key: self._recent[key] for key in keys if key in self._recent}
        for key, runs in self._index.find_candidates(keys):
            if key not in found:
                # Later runs have later entries. What the index says of one may be wrong, or the run be gone.
                entries = (_entry_in_run(connection, run, key) for run in sorted(runs, reverse=True))
                newest = next((entry for entry in entries if entry is not None), None)
                if newest is not None:
                    found[key] = newest
        return {key: entry for key, entry in found.items() if ENTRY_FORMAT.unpack(entry)[1] > moment}

    def _make_run(self, connection: sqlite3.Connection) -> None:
        entries = sorted(self._recent.values())
        run = connection.execute("INSERT INTO eid_runs (expires_at) VALUES (?)", (self._recent_expire_at,)).lastrowid
        assert run is not None
        pages = (entries[start : start + ENTRIES_PER_PAGE] for start in range(0, len(entries), ENTRIES_PER_PAGE))
        connection.executemany(
            "INSERT INTO eid_pages (run, first, body) VALUES (?, ?, ?)",
            [(run, page[0][:KEY_BYTES], b"".join(page)) for page in pages],
        )
        connection.execute("DELETE FROM eid_journal")
        self._index.add_run(run, self._recent)
        self._index.keep_runs(_live_runs(connection))
        self._recent, self._recent_expire_at = {}, 0
        self._last_run, self._last_journal_row = run, 0


def prune_expired_eids(connection: sqlite3.Connection, now: int) -> bool:
    """Remove some ids whose windows have passed; whether any were left to remove.

    Any process may do this at any time: what others remember of a run that is gone, they look up in vain. The last row
    of the journal stays, so that its number is not given to another row that others would then not read.
    """
    runs = [
        run
        for (run,) in connection.execute(
            "SELECT id FROM eid_runs WHERE expires_at <= ? ORDER BY id LIMIT ?", (now, MAX_RUNS_PRUNED_AT_ONCE)
        )
    ]
    connection.executemany("DELETE FROM eid_pages WHERE run = ?", [(run,) for run in runs])
    connection.executemany("DELETE FROM eid_runs WHERE id = ?", [(run,) for run in runs])
    removed = connection.execute(
        "DELETE FROM eid_journal WHERE expires_at <= ? AND id < (SELECT max(id) FROM eid_journal)", (now,)
    )
    return bool(runs) or removed.rowcount > 0


def next_expiry(connection: sqlite3.Connection) -> int | None:
    """When there will be something to prune; None if there is nothing."""
    (moment,) = connection.execute(SELECT_NEXT_EXPIRY).fetchone()
    return None if moment is None else int(moment)


def _live_runs(connection: sqlite3.Connection) -> list[int]:
    return [run for (run,) in connection.execute("SELECT id FROM eid_runs ORDER BY id")]


def _keys_of_run(connection: sqlite3.Connection, run: int) -> list[bytes]:
    pages = connection.execute("SELECT body FROM eid_pages WHERE run = ? ORDER BY first", (run,))
    return [entry[:KEY_BYTES] for (body,) in pages for entry in _entries(body)]


def _entry_in_run(connection: sqlite3.Connection, run: int, key: bytes) -> bytes | None:
    page = connection.execute(SELECT_PAGE, (run, key)).fetchone()
    return None if page is None else next((entry for entry in _entries(page[0]) if entry.startswith(key)), None)


def _entries(body: bytes) -> Iterator[bytes]:
    size = ENTRY_FORMAT.size
    return (body[start : start + size] for start in range(0, len(body), size))


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


def _places_by_partition(partitions: Sequence[int], found: Sequence[tuple[int, bytes]]) -> PlacesByPartition:
    """The places in entries, by the partition and the index within it of the event at an index of the batch."""
    if not found:
        return {}
    indices = list(indices_within_partitions(partitions))
    places: dict[int, dict[int, EventPlace]] = {}
    for index, entry in found:
        _, _, timeline, partition, offset = ENTRY_FORMAT.unpack(entry)
        places.setdefault(partitions[index], {})[indices[index]] = EventPlace(timeline, partition, offset)
    return places
