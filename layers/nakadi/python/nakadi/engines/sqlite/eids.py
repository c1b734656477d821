"""The ids of events that were stored, so that none is stored twice within its window.

The transaction that stores events adds a row with their ids at the end of a table, and no row is changed until its
window has passed: an index by id would write a page of the file for each event. Memory holds a few bytes of each id
(`eid_index`), which say in which rows the id may be; these rows then confirm it. If there are too many ids for memory,
the oldest rows are indexed in the file (`old_eids`), and memory drops them.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

from msgspec import Struct

from nakadi.engines.common.duplicates import PlacesByPartition
from nakadi.engines.sqlite.eid_index import EidIndex
from nakadi.engines.sqlite.old_eids import add_old_eids, find_old_eids, last_row_with_old_eids, remove_old_eids
from nakadi.model.events import MICROSECOND, EventPlace, indices_within_partitions
from nakadi.ports.deduplication import EID_BYTES, EventIds, unpack_eids

SCOPE_BYTES = 16

MAX_EIDS_OF_RUN = 1_024
"""A run of rows ends with the row that brings the run to this many ids. A search for an id reads its whole run."""

MAX_EIDS_OF_ROW = 1_024
"""How many ids a row has at most. A row is indexed, or removed once it is indexed, in one step, for which appends
wait.
"""

EIDS_INDEXED_PER_NEW_ONE = 2
"""How many old ids are indexed for each new one while memory is crowded. With one or fewer, memory would stay
crowded.
"""

MAX_EIDS_INDEXED_AT_ONCE = 5_000
MAX_EIDS_LEFT_TO_INDEX = 50_000
"""With more old ids than this still to be indexed, appends wait: otherwise fast publishers could fill the memory."""

ROWS_LOADED_AT_ONCE = 100
"""How many rows are read in one step, for which appends wait."""

ALL_ROWS = -1

MAX_ROWS_PRUNED_AT_ONCE = 300
MAX_OLD_EIDS_PRUNED_AT_ONCE = 2_000

EID_COLUMNS = "scope, stored_at, expires_at, timeline, count, body"
"""The columns of a row of ids. Its body has the ids, then the partition of each id in four bytes, then the offset of
each in eight.
"""

FRAMES_AND_EIDS_VIEW = "frames_and_eids"
# A temporary view belongs to the connection, not to the file.
_CREATE_VIEW = """
    CREATE TEMP VIEW IF NOT EXISTS frames_and_eids AS
        SELECT NULL AS eid_row, log AS a, first AS b, count AS c, stored_at AS d, size AS e, body AS f FROM main.frames;
    CREATE TEMP TRIGGER IF NOT EXISTS insert_frame INSTEAD OF INSERT ON frames_and_eids WHEN NEW.eid_row IS NULL BEGIN
        INSERT INTO frames (log, first, count, stored_at, size, body)
        VALUES (NEW.a, NEW.b, NEW.c, NEW.d, NEW.e, NEW.f);
    END;
    CREATE TEMP TRIGGER IF NOT EXISTS insert_eids INSTEAD OF INSERT ON frames_and_eids WHEN NEW.eid_row IS NOT NULL
    BEGIN
        INSERT INTO eids (id, scope, stored_at, expires_at, timeline, count, body)
        VALUES (NEW.eid_row, NEW.a, NEW.b, NEW.c, NEW.d, NEW.e, NEW.f);
    END;
"""

RowRange = tuple[int, int]
EidRowValues = tuple[int, bytes, int, int, int, int, bytes]


class _StoredEid(Struct, frozen=True):
    row: int
    stored_at: int
    place: EventPlace


class IndexedRows(Struct, frozen=True):
    """Rows that were added to the index in the file: the last of them, and how many ids they have together."""

    last: int
    eid_count: int


NO_ROWS_INDEXED = IndexedRows(0, 0)


class EidMemory:
    """The ids as the writing connection sees them. Call `catch_up` first in a transaction, and `forget_all` after a
    transaction that failed.
    """

    def __init__(self) -> None:
        self.forget_all()

    def forget_all(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self._last_row = 0
        self._last_row_in_file_index = 0
        self._left_to_index = 0
        self._index = EidIndex()
        # The last row of each run, by the run's number, which is that of its first row. The newest run is open: it
        # collects further rows until it has enough ids.
        self._last_row_of_run: dict[int, int] = {}
        self._open_run = 1
        self._eids_in_open_run = 0

    def load_some(self, connection: sqlite3.Connection) -> bool:
        """Read some of the stored ids, and return whether all are read now."""
        connection.executescript(_CREATE_VIEW)
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if self._read_rows(connection, ROWS_LOADED_AT_ONCE) == ROWS_LOADED_AT_ONCE:
            return False
        self._connection, self._version = connection, version
        return True

    def load(self, connection: sqlite3.Connection) -> None:
        """Read all ids, unless they were read already. Call this before a transaction, because it may take long."""
        while self._connection is None and not self.load_some(connection):
            pass

    def catch_up(self, connection: sqlite3.Connection, version: int) -> None:
        """Read the ids that other connections have added, if the file has changed since the last call.

        In a transaction that may write, no id is missing afterwards.
        """
        if connection is self._connection and version == self._version:
            return
        self._read_rows(connection, ALL_ROWS)
        self._connection, self._version = connection, version

    def _read_rows(self, connection: sqlite3.Connection, limit: int) -> int:
        """Read rows after the last one that was read or indexed, and return their number."""
        last_indexed = last_row_with_old_eids(connection)
        if self._last_row < last_indexed:
            self.forget_all()
            self._last_row, self._open_run = last_indexed, last_indexed + 1
        self._last_row_in_file_index = last_indexed
        number = 0
        for row, count, body in connection.execute(
            "SELECT id, count, body FROM eids WHERE id > ? ORDER BY id LIMIT ?", (self._last_row, limit)
        ):
            self._index.add_to_run(self._open_run, _eids_of_body(body, count))
            self._note_row(connection, row, count)
            number += 1
        return number

    def begin_new_eids(self, connection: sqlite3.Connection, version: int, now: int) -> NewEids | None:
        """Begin to add the ids of a commit, all of which must be new. None if other connections may have added ids
        since this version of the file was read.
        """
        if connection is not self._connection or version != self._version:
            return None
        return NewEids(self, connection, self._last_row, now)

    def add_if_certainly_new(self, connection: sqlite3.Connection, eids: Sequence[bytes]) -> bool:
        """Add ids that are about to be stored, if they are certainly new and each occurs once; return whether this is
        so.

        Ids that are added but not stored in the end only cause needless searches.
        """
        return not any(self._find_old(connection, eids)) and self._index.add_if_all_new(self._open_run, eids)

    @property
    def has_to_make_room(self) -> bool:
        """Whether ids were added since, and there are so many that older ones must be moved from memory to the file."""
        return self._left_to_index > 0 and self._index.is_crowded

    @property
    def is_far_behind(self) -> bool:
        return self._left_to_index > MAX_EIDS_LEFT_TO_INDEX and self._index.is_crowded

    def index_oldest_rows(self, connection: sqlite3.Connection) -> IndexedRows:
        """Add the oldest of the rows whose ids are only in memory to the index in the file. Call this in a transaction,
        and `forget_indexed_rows` after it.
        """
        rows: list[tuple[int, Sequence[bytes]]] = []
        indexed = 0
        for row, count, body in connection.execute(
            "SELECT id, count, body FROM eids WHERE id > ? AND id < ? ORDER BY id",
            (last_row_with_old_eids(connection), self._open_run),
        ):
            rows.append((row, _eids_of_body(body, count)))
            indexed += count
            if indexed >= min(self._left_to_index, MAX_EIDS_INDEXED_AT_ONCE):
                break
        return IndexedRows(add_old_eids(connection, rows), indexed) if rows else NO_ROWS_INDEXED

    def forget_indexed_rows(self, rows: IndexedRows) -> None:
        if rows is NO_ROWS_INDEXED:
            self.stop_making_room()
        else:
            self._last_row_in_file_index = rows.last
            self._left_to_index -= rows.eid_count
            self._forget_runs_before(rows.last + 1)

    def stop_making_room(self) -> None:
        """Move no more ids from memory to the file until new ones arrive."""
        self._left_to_index = 0

    def _find_old(self, connection: sqlite3.Connection, eids: Sequence[bytes]) -> Iterable[tuple[bytes, int]]:
        return find_old_eids(connection, eids) if self._last_row_in_file_index else ()

    def note_stored(self, connection: sqlite3.Connection, rows: Iterable[EidRowValues]) -> None:
        """Note that these rows were stored by a commit, so that they are not read again."""
        for row, _, _, _, _, count, _ in rows:
            self._note_row(connection, row, count)

    def remember(
        self, connection: sqlite3.Connection, ids: EventIds, next_offsets: dict[int, int], now: int
    ) -> PlacesByPartition:
        """Store the new ids, and return the places of the first events with the other ids.

        `next_offsets` has the next offset of each partition of the append; the new events advance it.
        """
        scope, window = _digest_of(ids.scope), ids.window // MICROSECOND
        all_eids = unpack_eids(ids.packed_eids)
        known = self._find_stored_after(connection, scope, all_eids, now - window)
        new = _indices_of_new(all_eids, ids.partitions, known, next_offsets)
        eids, partitions = [all_eids[index] for index in new], [ids.partitions[index] for index in new]
        offsets = _next_offsets_of(partitions, next_offsets)
        for some in _NewRow(b"".join(eids), partitions, [*offsets]).split():
            row = connection.execute(
                f"INSERT INTO eids ({EID_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608  # the columns above
                (scope, now, now + window, ids.timeline, some.count, some.body()),
            ).lastrowid
            assert row is not None
            self._index.add_to_run(self._open_run, unpack_eids(bytes(some.packed_eids)))
            self._note_row(connection, row, some.count)
        if len(new) == len(all_eids):
            return {}
        places = {eid: each.place for eid, each in known.items()}
        for eid, partition, offset in zip(eids, partitions, offsets, strict=True):
            places[eid] = EventPlace(ids.timeline, partition, offset)
        left_out = set(range(len(all_eids))).difference(new)
        found = [(index, places[all_eids[index]]) for index in left_out if ids.partitions[index] in next_offsets]
        return _places_by_partition(ids.partitions, found)

    def _note_row(self, connection: sqlite3.Connection, row: int, count: int) -> None:
        """Note a row whose ids were added to the open run."""
        self._last_row = row
        # Ids that arrived while there was room are not counted: otherwise there would be millions to index at once.
        self._left_to_index = self._left_to_index + EIDS_INDEXED_PER_NEW_ONE * count if self._index.is_crowded else 0
        self._eids_in_open_run += count
        if self._eids_in_open_run >= MAX_EIDS_OF_RUN:
            self._last_row_of_run[self._open_run] = row
            self._open_run, self._eids_in_open_run = row + 1, 0
            oldest = oldest_eid_row(connection)
            first_needed = row + 1 if oldest is None else oldest[0]
            self._forget_runs_before(max(first_needed, self._last_row_in_file_index + 1))

    def _forget_runs_before(self, row: int) -> None:
        """Forget the ids of rows before this one, which were removed, or indexed in the file. The ids of a run are
        forgotten together.
        """
        gone = [run for run, last in self._last_row_of_run.items() if last < row]
        if gone:
            for run in gone:
                del self._last_row_of_run[run]
            self._index.keep_runs([*self._last_row_of_run, self._open_run])

    def _find_stored_after(
        self, connection: sqlite3.Connection, scope: bytes, eids: Sequence[bytes], moment: int
    ) -> Mapping[bytes, _StoredEid]:
        """For each of these ids that was stored after this moment, the place of the newest event with it."""
        wanted: dict[RowRange, set[bytes]] = {}
        for eid, runs in self._index.find_candidates(eids):
            for run in runs:
                # The rows of a run may have been removed. The index may also be wrong, or have found an id of another
                # scope.
                wanted.setdefault((run, self._last_row_of_run.get(run, self._last_row)), set()).add(eid)
        for eid, row in self._find_old(connection, eids):
            wanted.setdefault((row, row), set()).add(eid)
        found: dict[bytes, _StoredEid] = {}
        # Later rows have later ids. A run may also contain a row that another process has indexed.
        for rows in sorted(wanted):
            for eid, each in _find_in_rows(connection, scope, rows, wanted[rows]):
                if eid not in found or found[eid].row <= each.row:
                    found[eid] = each
        return {eid: each for eid, each in found.items() if each.stored_at > moment}


class NewEids:
    """The ids of a commit, all of which are new. They need no read of the file, so the commit may be one statement."""

    def __init__(self, memory: EidMemory, connection: sqlite3.Connection, last_row: int, now: int) -> None:
        self._memory = memory
        self._connection = connection
        self._last_row = last_row
        self._now = now
        # The new rows. A row has the ids with the same scope, timeline and window.
        self._rows: dict[tuple[bytes, int, int], _NewRow] = {}

    def add(self, ids: EventIds, next_offsets: dict[int, int]) -> bool:
        """Add the ids of an append, and advance `next_offsets`; return False if an id may be known, or belongs to no
        stored event.
        """
        if not next_offsets.keys() >= {*ids.partitions}:
            return False
        if not self._memory.add_if_certainly_new(self._connection, unpack_eids(ids.packed_eids)):
            return False
        common = _digest_of(ids.scope), ids.timeline, ids.window // MICROSECOND
        row = self._rows.setdefault(common, _NewRow(bytearray(), [], []))
        row.packed_eids += ids.packed_eids
        row.partitions += ids.partitions
        row.offsets += _next_offsets_of(ids.partitions, next_offsets)
        return True

    def rows(self) -> list[EidRowValues]:
        rows = ((common, row) for common, rows in self._rows.items() for row in rows.split())
        return [
            (number, scope, self._now, self._now + window, timeline, row.count, row.body())
            for number, ((scope, timeline, window), row) in enumerate(rows, self._last_row + 1)
        ]


class _NewRow(Struct):
    packed_eids: bytes | bytearray
    partitions: list[int]
    offsets: list[int]

    @property
    def count(self) -> int:
        return len(self.partitions)

    def split(self) -> Iterable[_NewRow]:
        """This row, divided into rows of at most `MAX_EIDS_OF_ROW` ids."""
        for start in range(0, self.count, MAX_EIDS_OF_ROW):
            part = slice(start, start + MAX_EIDS_OF_ROW)
            some = bytes(self.packed_eids[EID_BYTES * start : EID_BYTES * part.stop])
            yield _NewRow(some, self.partitions[part], self.offsets[part])

    def body(self) -> bytes:
        return b"".join((self.packed_eids, array("I", self.partitions), array("Q", self.offsets)))


def _digest_of(scope: str) -> bytes:
    return blake2b(scope.encode(), digest_size=SCOPE_BYTES).digest()


def _find_in_rows(
    connection: sqlite3.Connection, scope: bytes, rows: RowRange, eids: Collection[bytes]
) -> Iterable[tuple[bytes, _StoredEid]]:
    for row, stored_at, timeline, count, body in connection.execute(
        "SELECT id, stored_at, timeline, count, body FROM eids WHERE id BETWEEN ? AND ? AND scope = ? ORDER BY id",
        (*rows, scope),
    ):
        for index, eid in enumerate(_eids_of_body(body, count)):
            if eid in eids:
                partitions, offsets = array("I"), array("Q")
                partitions.frombytes(body[EID_BYTES * count : (EID_BYTES + 4) * count])
                offsets.frombytes(body[(EID_BYTES + 4) * count :])
                yield eid, _StoredEid(row, stored_at, EventPlace(timeline, partitions[index], offsets[index]))


def _eids_of_body(body: bytes, count: int) -> list[bytes]:
    return unpack_eids(body[: EID_BYTES * count])


def _indices_of_new(
    eids: Sequence[bytes], partitions: Sequence[int], known: Collection[bytes], next_offsets: Collection[int]
) -> Sequence[int]:
    """The indices of ids to store: those of these partitions that are unknown, each once."""
    seen = set(known)
    new: list[int] = []
    for index, (eid, partition) in enumerate(zip(eids, partitions, strict=True)):
        if eid not in seen and partition in next_offsets:
            seen.add(eid)
            new.append(index)
    return new


def _next_offsets_of(partitions: Sequence[int], next_offsets: dict[int, int]) -> Sequence[int]:
    """The offset of each event, whose partitions are given in order. Advances `next_offsets`, the next offset of each
    partition.
    """
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
    """The places of duplicates, found by their index in the batch, as a mapping by partition and by index within the
    partition.
    """
    indices = list(indices_within_partitions(partitions))
    places: dict[int, dict[int, EventPlace]] = {}
    for index, place in sorted(found):
        places.setdefault(partitions[index], {})[indices[index]] = place
    return places


def oldest_eid_row(connection: sqlite3.Connection) -> RowRange | None:
    """The number of the oldest row of ids, and when its window has passed."""
    row: RowRange | None = connection.execute("SELECT id, expires_at FROM eids ORDER BY id LIMIT 1").fetchone()
    return row


def prune_expired_eids(connection: sqlite3.Connection, now: int) -> bool:
    """Remove the oldest rows, up to the first whose window has not passed; return whether there may be more to remove.

    Any process may do this at any time: other processes that remember an id of a removed row only look it up
    needlessly. The last row stays, so that its number is not given to another row, which other processes would then not
    read.
    """
    last_indexed = last_row_with_old_eids(connection)
    expired = connection.execute(
        "SELECT id, count, CASE WHEN id <= ? THEN body END FROM eids WHERE id < coalesce("
        "(SELECT id FROM eids WHERE expires_at > ? ORDER BY id LIMIT 1), (SELECT max(id) FROM eids))"
        " ORDER BY id LIMIT ?",
        (last_indexed, now, MAX_ROWS_PRUNED_AT_ONCE),
    )
    removed = indexed = 0
    last = 0
    for row, count, body in expired.fetchall():
        if body is not None:
            remove_old_eids(connection, row, _eids_of_body(body, count))
            indexed += count
        last, removed = row, removed + 1
        if indexed >= MAX_OLD_EIDS_PRUNED_AT_ONCE:
            break
    connection.execute("DELETE FROM eids WHERE id <= ?", (last,))
    return removed == MAX_ROWS_PRUNED_AT_ONCE or indexed >= MAX_OLD_EIDS_PRUNED_AT_ONCE
