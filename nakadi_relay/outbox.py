"""The outbox in PostgreSQL: which rows wait, and their results.

Several relays may work on one outbox. A relay locks slots (`FOR UPDATE SKIP LOCKED`) until its transaction ends, so
no other relay publishes rows of the same keys meanwhile. If the relay dies, PostgreSQL rolls the transaction back: the
rows are unchanged, and the next relay publishes them again, with the same `eid`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import class_row, tuple_row

from nakadi_relay.rows import Row
from nakadi_relay.schema import OutboxNames

APPLICATION_NAME = "nakadi-relay"
# Longer reasons are truncated, because a reason may quote an event.
_MAX_REASON_CHARACTERS = 2_000


# Timeouts in seconds, and a number of attempts. A DSN may set other values.
_CONNECTION_LIMITS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
_SERVER_KEEPALIVES = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}


class RefusedRow(msgspec.Struct, frozen=True):
    """A row that the broker refused, and why."""

    id: int
    event_type: str
    key: str | None
    eid: UUID
    written_at: datetime
    refused_at: datetime
    reason: str


def check_dsn(dsn: str) -> None:
    """Raise `ValueError` for a text that is not in the form of a DSN. The library's own message would show the text,
    including a password."""
    try:
        conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ValueError(
            "The DSN is neither a URL such as postgresql://user@host/database nor key=value pairs."
        ) from None


def connect(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect to the database, with keep-alives by which each side notices that the other is unreachable."""
    chosen = conninfo_to_dict(dsn)
    connection = psycopg.connect(
        dsn,
        autocommit=True,
        application_name=APPLICATION_NAME,
        **{name: value for name, value in _CONNECTION_LIMITS.items() if name not in chosen},
    )
    # Without these settings, the server would keep the locks of an unreachable client for two hours. Unix sockets
    # ignore them.
    for name, value in _SERVER_KEEPALIVES.items():
        connection.execute(f"SET {name} = {value}")
    return connection


class Outbox:
    """One connection to an outbox. Threads do not share it.

    `keep` marks published rows instead of deleting them.
    """

    def __init__(self, dsn: str, names: OutboxNames, *, keep: bool = False) -> None:
        check_dsn(dsn)
        self._connection = connect(dsn)
        self._names = names
        self._keep = keep

    def close(self) -> None:
        self._connection.close()

    def listen(self) -> None:
        """Ask the database to notify this connection of inserts."""
        self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._names.channel)))

    def wait_for_insert(self, seconds: float) -> bool:
        """Wait until somebody inserts rows, for this many seconds at most. Returns whether somebody did."""
        return any(True for _ in self._connection.notifies(timeout=seconds, stop_after=1))

    @contextmanager
    def locked_rows(self, slots: int, limit: int, paused: Collection[str]) -> Iterator[list[Row]]:
        """Lock up to `slots` slots that have rows to publish until the block ends, and yield their oldest rows.

        The changes that the block makes to rows are committed when the block ends. Rows of the event types `paused` are
        left out, and so are rows that wait because an earlier row with their key was refused.
        """
        with self._connection.transaction():
            locked = self._lock_slots(slots, paused)
            yield self._oldest_rows(locked, limit, paused) if locked else []

    def _lock_slots(self, limit: int, paused: Collection[str]) -> list[int]:
        # `LIMIT 1` in the subquery has PostgreSQL look into the index for each slot. For `EXISTS`, it would read all
        # waiting rows.
        query = f"""
            SELECT slots.slot FROM {self._names.slots} AS slots, LATERAL (
                SELECT 1 FROM {self._names.quoted} AS waiting
                WHERE waiting.slot = slots.slot AND {self._is_ready("waiting")} ORDER BY waiting.id LIMIT 1
            ) AS oldest ORDER BY random() LIMIT %(limit)s FOR UPDATE OF slots SKIP LOCKED"""
        found = self._connection.execute(query, {"limit": limit, "paused": list(paused)})
        return [slot for (slot,) in found]

    def _oldest_rows(self, slots: Sequence[int], limit: int, paused: Collection[str]) -> list[Row]:
        # A statement of its own, which sees what the previous holder of the locks committed; the statement that took
        # the locks may have begun before that. Each slot supplies an equal part of `limit`, so that a round reads only
        # rows that it publishes.
        query = f"""
            SELECT waiting.* FROM unnest(%(slots)s::smallint[]) AS locked (slot), LATERAL (
                SELECT id, event_type, key, event::text AS event, eid, written_at FROM {self._names.quoted} AS waiting
                WHERE waiting.slot = locked.slot AND {self._is_ready("waiting")} ORDER BY id LIMIT %(limit)s
            ) AS waiting ORDER BY id"""
        with self._connection.cursor(row_factory=class_row(Row)) as cursor:
            values = {"slots": slots, "limit": -(-limit // len(slots)), "paused": list(paused)}
            return cursor.execute(query, values).fetchall()

    def _is_ready(self, row: str) -> str:
        return f"""{row}.published_at IS NULL AND {row}.event_type <> ALL(%(paused)s) AND NOT EXISTS (
            SELECT 1 FROM {self._names.refused} AS refused
            WHERE refused.event_type = {row}.event_type AND refused.key = {row}.key AND refused.id < {row}.id)"""

    def mark_published(self, rows: Sequence[Row]) -> None:
        """Delete rows that the broker has acknowledged; with `keep`, mark them as published instead."""
        change = "UPDATE {} SET published_at = clock_timestamp()" if self._keep else "DELETE FROM {}"
        query = change.format(self._names.quoted) + " WHERE id = ANY(%s)"
        self._connection.execute(query, [[row.id for row in rows]])

    def mark_refused(self, row: Row, reason: str) -> None:
        """Move a row to the table of refused rows. From now on, later rows with its key wait."""
        # PostgreSQL stores no NUL in a text.
        shown = reason.replace("\x00", "")[:_MAX_REASON_CHARACTERS]
        self._connection.execute(
            f"""WITH gone AS (DELETE FROM {self._names.quoted} WHERE id = %(id)s RETURNING *)
            INSERT INTO {self._names.refused} (id, event_type, key, event, eid, written_at, reason)
            SELECT id, event_type, key, event, eid, written_at, %(reason)s FROM gone""",
            {"id": row.id, "reason": shown},
        )

    def refused_rows(self, limit: int = 1_000) -> list[RefusedRow]:
        """The rows that were refused, oldest first."""
        query = f"""SELECT id, event_type, key, eid, written_at, refused_at, reason FROM {self._names.refused}
            ORDER BY id LIMIT %s"""
        with self._connection.cursor(row_factory=class_row(RefusedRow)) as cursor:
            return cursor.execute(query, [limit]).fetchall()

    def retry(self, row_id: int) -> bool:
        """Put a refused row back in its place. Returns whether the row existed."""
        return self._resolve(
            f"""WITH gone AS (DELETE FROM {self._names.refused} WHERE id = %s RETURNING *)
            INSERT INTO {self._names.quoted} (id, event_type, key, event, eid, written_at) OVERRIDING SYSTEM VALUE
            SELECT id, event_type, key, event, eid, written_at FROM gone RETURNING id""",
            row_id,
        )

    def skip(self, row_id: int) -> bool:
        """Delete a refused row, so that later rows with its key are published. Returns whether the row existed."""
        resolved = self._resolve(f"DELETE FROM {self._names.refused} WHERE id = %s RETURNING id", row_id)
        # The rows that waited for the refused one are in the table already, so no insert wakes a relay.
        self._connection.execute("SELECT pg_notify(%s, '')", [self._names.channel])
        return resolved

    def _resolve(self, query: str, row_id: int) -> bool:
        return self._connection.execute(query, [row_id]).fetchone() is not None

    def waiting(self) -> tuple[int, float]:
        """How many rows wait, and for how many seconds the oldest one has."""
        query = f"""SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(written_at)), 0)::float
            FROM {self._names.quoted} WHERE published_at IS NULL"""
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            found = cursor.execute(query).fetchone()
        assert found is not None
        return int(found[0]), float(found[1])
