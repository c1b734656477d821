"""Finds the runs in which an id may be. It takes a few bytes of memory for each id, in tables of fixed size.

    >>> index = EidIndex()
    >>> index.add_to_run(7, [b"a", b"b"])
    >>> list(index.find_candidates([b"a", b"c"]))
    [(b'a', [7])]

It always finds an id that was added, and wrongly finds one in a hundred thousand others. A table collects runs until it
is full. The next table is as large as all earlier ones together, so that there are few tables. A table is dropped once
all its runs are dropped. Hashes are private to this process, so nobody can choose ids to collide.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter

MIN_SLOTS = 1 << 22
"""The slots of the first table, enough for 1.6 million ids. It is large, because each further table makes each lookup
slower.
"""

MAX_SLOTS = 1 << 24
"""The slots of all tables together, of four bytes each. Further ids would have to be looked up in each of their runs,
which takes long, so the owner of the index drops the oldest runs before that."""

MAX_LOAD_PERCENT = 40
CROWDED_LOAD_PERCENT = 24
"""The share of all slots that may be filled before the oldest runs should go: then the first tables can be dropped
before the last one is full."""

MAX_RUNS_PER_TABLE = 4095

_FINGERPRINT_BITS = 20
_FINGERPRINT_MASK = (1 << _FINGERPRINT_BITS) - 1
_FINGERPRINT_SHIFT = 40


class _RunTable:
    """A hash table whose entries are 20 bits of an id's hash and the index of a run; 0 is an empty slot."""

    def __init__(self, slot_count: int) -> None:
        self.runs: list[int] = []
        self.slots = array("I", bytes(4 * slot_count))
        self._left = slot_count * MAX_LOAD_PERCENT // 100

    @property
    def key_count(self) -> int:
        return len(self.slots) * MAX_LOAD_PERCENT // 100 - self._left

    def has_room_for(self, key_count: int) -> bool:
        return key_count <= self._left and len(self.runs) < MAX_RUNS_PER_TABLE

    def add_to_run(self, run: int, keys: Collection[bytes]) -> None:
        slots, mask, marked = self.slots, len(self.slots) - 1, self._mark_of(run)
        for hashed in map(hash, keys):
            slot = hashed & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = marked | (hashed >> _FINGERPRINT_SHIFT & _FINGERPRINT_MASK)
        self._left -= len(keys)

    def add_if_all_new(self, run: int, keys: Collection[bytes]) -> bool:
        slots, mask, marked = self.slots, len(self.slots) - 1, self._mark_of(run)
        self._left -= len(keys)
        hashes = list(map(hash, keys))
        first_slots = [hashed & mask for hashed in hashes]
        # This call only brings the entries into the processor's cache, because it waits for several of them at a time.
        itemgetter(*first_slots)(slots)
        crowded: list[int] = []
        # For most keys, the first slot is empty. A repeated key finds its own entry.
        for hashed, slot in zip(hashes, first_slots, strict=True):
            if slots[slot]:
                crowded.append(hashed)
            else:
                slots[slot] = marked | (hashed >> _FINGERPRINT_SHIFT & _FINGERPRINT_MASK)
        for hashed in crowded:
            slot, fingerprint = hashed & mask, hashed >> _FINGERPRINT_SHIFT & _FINGERPRINT_MASK
            while entry := slots[slot]:
                if entry & _FINGERPRINT_MASK == fingerprint:
                    return False
                slot = (slot + 1) & mask
            slots[slot] = marked | fingerprint
        return True

    def _mark_of(self, run: int) -> int:
        if not self.runs or self.runs[-1] != run:
            self.runs.append(run)
        return len(self.runs) << _FINGERPRINT_BITS

    def find_candidates(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
        slots, mask = self.slots, len(self.slots) - 1
        # Most keys are new, and for most of these the first slot is empty. Leaving them out first halves the time.
        for key in [key for key in keys if slots[hash(key) & mask]]:
            hashed = hash(key)
            slot = hashed & mask
            while entry := slots[slot]:
                if entry & _FINGERPRINT_MASK == hashed >> _FINGERPRINT_SHIFT & _FINGERPRINT_MASK:
                    yield key, self.runs[(entry >> _FINGERPRINT_BITS) - 1]
                slot = (slot + 1) & mask


class EidIndex:
    def __init__(self, max_slots: int = MAX_SLOTS) -> None:
        self._max_slots = max_slots
        self._tables: list[_RunTable] = []
        self._runs_without_table: list[int] = []

    @property
    def is_crowded(self) -> bool:
        """Whether the oldest runs should go soon."""
        keys = sum(table.key_count for table in self._tables)
        return bool(self._runs_without_table) or 100 * keys > self._max_slots * CROWDED_LOAD_PERCENT

    def add_to_run(self, run: int, keys: Collection[bytes]) -> None:
        """Add keys of a run, which must be the newest known run or a newer one."""
        self._table_for(len(keys)).add_to_run(run, keys)

    def add_if_all_new(self, run: int, keys: Sequence[bytes]) -> bool:
        """Add keys that are in no run.

        Returns False if one of them may be in a run or is repeated; some keys may have been added nevertheless.
        """
        if self._runs_without_table:
            return False
        last = self._table_for(len(keys))
        return not any(any(table.find_candidates(keys)) for table in self._tables[:-1]) and last.add_if_all_new(
            run, keys
        )

    def keep_runs(self, runs: Iterable[int]) -> None:
        """Drop keys that are in none of these runs."""
        live = set(runs)
        self._tables = [table for table in self._tables if not live.isdisjoint(table.runs)]
        self._runs_without_table = [run for run in self._runs_without_table if run in live]

    def find_candidates(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, list[int]]]:
        """The runs that may contain each key, for keys that have any."""
        found: dict[bytes, list[int]] = {}
        for table in self._tables:
            for key, run in table.find_candidates(keys):
                found.setdefault(key, []).append(run)
        if self._runs_without_table:
            found = {key: [*self._runs_without_table, *found.get(key, ())] for key in keys}
        return iter(found.items())

    def _table_for(self, key_count: int) -> _RunTable:
        if not self._tables or not self._tables[-1].has_room_for(key_count):
            self._add_table(key_count)
        return self._tables[-1]

    def _add_table(self, key_count: int) -> None:
        wanted = max(MIN_SLOTS, sum(len(table.slots) for table in self._tables), 100 * key_count // MAX_LOAD_PERCENT)
        slot_count = 1 << (wanted - 1).bit_length()
        self._tables.append(_RunTable(min(slot_count, max(MIN_SLOTS, self._max_slots // 2))))
        while sum(len(table.slots) for table in self._tables) > self._max_slots and len(self._tables) > 1:
            self._runs_without_table += self._tables.pop(0).runs
