"""Compaction: a look at the new part for the newest event of each key, then a walk through all for what goes.

The keys of a look fit into memory; if there are more, it takes several rounds. The walk goes from old to new, so that
a tombstone never goes before what it covers. What was compacted once holds a key once and is looked at no more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from nakadi.eventlogs import frames
from nakadi.eventlogs.sqlite_cleaning import STEP_BYTES, STEP_ROWS, Cleaner
from nakadi.eventlogs.sqlite_reading import outline_of, records_in, rows_from
from nakadi.eventlogs.sqlite_rows import Row
from nakadi.ports import OffsetUnavailable, UnknownTopic
from nakadi.sqlite_file import SqliteFile

MOST_KEYS = 200_000

STATE = """
    SELECT logs.id, logs.oldest, logs.compacted, logs.tombstone_at,
        coalesce((SELECT first + count FROM frames WHERE log = logs.id ORDER BY first DESC LIMIT 1), 0)
    FROM topics JOIN logs ON logs.topic = topics.id AND logs.partition = ? WHERE topics.name = ?
"""


@dataclass(frozen=True, slots=True)
class State:
    """`compacted`: up to here every key is there once. `tombstone_at`: when the oldest tombstone there was stored."""

    log: int
    oldest: int
    compacted: int
    tombstone_at: int | None
    next: int

    def needs(self, upto: int, tombstones_before: int) -> bool:
        expired = self.tombstone_at is not None and self.tombstone_at < tombstones_before
        return expired or upto > max(self.compacted, self.oldest)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a row's places: which events stay, whether any goes, and whether a tombstone stays."""

    row: Row
    stays: list[bool]
    changes: bool
    keeps_tombstone: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """Which events go from a partition; its newest, at the offset `last`, does not."""

    newest: Mapping[str, int]
    last: int
    tombstones_before: int

    def spares(self, offset: int, key: str | None, stored_at: int, *, tombstone: bool) -> bool:
        if key is None or offset == self.last:
            return True
        return self.newest.get(key, offset) <= offset and not (tombstone and stored_at < self.tombstones_before)

    def judge(self, row: Row) -> Verdict:
        stays = []
        changes = keeps_tombstone = False
        for offset, entry in enumerate(outline_of(row), row.first):
            spared = entry is not None and self.spares(offset, entry[0], row.stored_at, tombstone=entry[1])
            stays.append(spared)
            changes |= entry is not None and not spared
            # The newest event is looked at again anyway once it is not the newest any more.
            keeps_tombstone |= (
                entry is not None and entry[1] and spared and entry[0] is not None and offset != self.last
            )
        return Verdict(row, stays, changes, keeps_tombstone)


class Compaction:
    """Runs over one partition."""

    def __init__(self, file: SqliteFile, cleaner: Cleaner, topic: str, partition: int) -> None:
        self._file = file
        self._cleaner = cleaner
        self._topic = topic
        self._partition = partition

    def run(self, upto: int, tombstones_before: int) -> None:
        """Compact what is before the offset `upto`."""
        state = self._state()
        if not state.needs(upto, tombstones_before):
            return
        end = max(state.compacted, state.oldest)
        while True:
            newest, end = self._newest(end, upto)
            tombstone_at = self._walk(state, Rule(newest, state.next - 1, tombstones_before), end)
            if end >= state.compacted:
                self._cleaner.step(partial(_remember, state.log, end, tombstone_at))
            if end >= upto:
                return

    def _state(self) -> State:
        with self._file.lent() as connection:
            found = connection.execute(STATE, (self._partition, self._topic)).fetchone()
        if found is None:
            raise UnknownTopic(f"{self._topic} is unknown, or has no partition {self._partition}")
        return State(*found)

    def _newest(self, start: int, upto: int) -> tuple[dict[str, int], int]:
        """The newest offset of each key from `start` on, and where the look ended."""
        newest: dict[str, int] = {}
        for rows in self._rows(start, upto):
            for row in rows:
                for offset, entry in enumerate(outline_of(row), row.first):
                    if entry is not None and entry[0] is not None:
                        newest[entry[0]] = offset
            if len(newest) >= MOST_KEYS:
                return newest, rows[-1].end
        return newest, upto

    def _walk(self, state: State, rule: Rule, end: int) -> int | None:
        """Remove what goes before `end`, and answer when the oldest tombstone that stays was stored."""
        tombstone_at: int | None = None
        for rows in self._rows(state.oldest, end):
            verdicts = [rule.judge(row) for row in rows]
            changes = [verdict for verdict in verdicts if verdict.changes]
            if changes:
                self._cleaner.step(partial(_carry_out, state.log, changes))
            if tombstone_at is None:
                tombstone_at = next((each.row.stored_at for each in verdicts if each.keeps_tombstone), None)
        return tombstone_at

    def _rows(self, start: int, end: int) -> Iterator[list[Row]]:
        """The rows that begin before `end`, some at a time."""
        place = start
        while place < end:
            try:
                with self._file.lent() as connection:
                    _, rows = rows_from(
                        connection, self._topic, self._partition, place, limit=STEP_ROWS, max_bytes=STEP_BYTES
                    )
            except OffsetUnavailable:
                place = max(place + 1, self._state().oldest)  # trimmed meanwhile
                continue
            rows = [row for row in rows if row.first < end]
            if not rows:
                return
            yield rows
            place = rows[-1].end


def _carry_out(log: int, changes: Sequence[Verdict], connection: sqlite3.Connection) -> None:
    """Change the rows that are still as they were read: somebody else may be compacting too."""
    for verdict in changes:
        row = verdict.row
        if not any(verdict.stays):
            connection.execute(
                "DELETE FROM frames WHERE log = ? AND first = ? AND body = ?", (log, row.first, row.body())
            )
            continue
        records = [record if stays else None for record, stays in zip(records_in(row), verdict.stays, strict=True)]
        frame = frames.encode(records)
        size = frames.size_of([record for record in records if record is not None])
        connection.execute(
            "UPDATE frames SET size = ?, body = ? WHERE log = ? AND first = ? AND body = ?",
            (size, row.body(frame), log, row.first, row.body()),
        )


def _remember(log: int, end: int, tombstone_at: int | None, connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE logs SET compacted = max(compacted, ?), tombstone_at = ? WHERE id = ?", (end, tombstone_at, log)
    )
