"""A table's rows as events of the category `data`: all rows once, and every change from then on.

A feed reads PostgreSQL's log through a replication slot, and writes events into the outbox, from where relays publish
them. So relays order them by key, treat refused ones, and share the work as for events that an application wrote.

The outbox gets each change exactly once. The slot is created first, and holds all commits from then on. Then
one transaction writes all rows of the table, together with the snapshot in which it read them, so that the feed can
skip the transactions of the log whose changes the snapshot contains. After that, each transaction of the feed writes
the events of some transactions of the log, together with the log position that these reach, so that the feed can skip
what the slot repeats after a crash.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from nakadi_client.pauses import Pauses
from nakadi_relay.outbox import check_dsn, connect
from nakadi_relay.pgoutput import Snapshot, Transaction, TransactionDecoder, position_from_text, position_text
from nakadi_relay.schema import OutboxNames

log = logging.getLogger("nakadi_relay")

# A read of the slot ends after this number of changes, at the end of the transaction that it has reached then.
MAX_CHANGES = 5_000
POLL_SECONDS = 0.5


class FeedUnusable(ValueError):
    """Raised when a table or the database cannot have a feed; the message names the necessary change."""


class Progress(msgspec.Struct, frozen=True):
    """The progress of a feed: the log position up to which the outbox has the events, and the snapshot in which the
    feed read the rows of the table at the beginning, with the log position at that time.
    """

    position: int
    snapshot: Snapshot
    snapshot_position: int

    def has(self, transaction: Transaction) -> bool:
        """Whether the events of a transaction are in the outbox."""
        if transaction.commit_position <= self.position:
            return True
        # Everything that a snapshot sees was committed before it was taken.
        return transaction.commit_position <= self.snapshot_position and self.snapshot.sees(transaction.xid)


class _Table(msgspec.Struct, frozen=True):
    """The columns of a table's primary key, and its generated columns, which events do not have."""

    key: tuple[str, ...]
    computed: tuple[str, ...]


Database = psycopg.Connection[tuple[Any, ...]]


class Feed:
    """Writes the rows of a table and their changes into an outbox, as events of an event type.

    dsn         How to reach the database. The role needs the attribute REPLICATION.
    relation    The table: `customer`, or `shop.customer`. It has a primary key and `REPLICA IDENTITY FULL`.
    event_type  An event type of the category `data`.
    table       The outbox. Default: nakadi_outbox.
    """

    def __init__(self, dsn: str, relation: str, event_type: str, *, table: str = "nakadi_outbox") -> None:
        check_dsn(dsn)
        self._dsn = dsn
        self._names = OutboxNames(table)
        self._relation = OutboxNames(relation if "." in relation else f"public.{relation}")
        self._event_type = event_type
        self._stopping = threading.Event()
        # Each feed has its own name, always the same: the names of slots are unique in the whole cluster.
        identity = f"{conninfo_to_dict(dsn).get('dbname')} {table} {self._relation.table} {event_type}"
        self._name = f"nakadi_{uuid5(NAMESPACE_URL, identity).hex}"

    def stop(self) -> None:
        """Let `run` end soon. Any thread and a signal handler may call this."""
        self._stopping.set()

    def run(self) -> None:
        """Follow the table until `stop` is called, and wait out faults of the database.

        Raises `FeedUnusable` for a table that cannot be followed.
        """
        pauses, failures = Pauses(), 0
        while not self._stopping.is_set():
            try:
                with connect(self._dsn) as connection:
                    for _ in self._follow(connection):
                        failures = 0
            except psycopg.Error as error:
                failures += 1
                log.warning("The feed of %s failed, trying again: %s", self._relation.table, error)
                self._stopping.wait(pauses.after(failures, random.random))

    def drop(self) -> None:
        """End a feed permanently. Until then, PostgreSQL keeps all log that the feed has not read, even while the feed
        does not run.
        """
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                [self._name],
            )
            connection.execute(f"DROP PUBLICATION IF EXISTS {self._name}")
            connection.execute(f"DELETE FROM {self._names.feeds} WHERE name = %s", [self._name])

    def _follow(self, connection: Database) -> Iterator[None]:
        """Write events until `stop` is called; yields after each successful read of the log."""
        table = self._examine_table(connection)
        # One process at a time reads a slot. Others wait here until the connection of that process ends.
        while not self._try_lock(connection):
            if self._stopping.wait(POLL_SECONDS):
                return
        progress = self._progress(connection) or self._begin(connection, table)
        while not self._stopping.is_set():
            reached = self._write_next(connection, table, progress)
            yield
            if reached is None:
                self._stopping.wait(POLL_SECONDS)
            else:
                progress = reached

    def _examine_table(self, connection: Database) -> _Table:
        if connection.execute("SHOW wal_level").fetchone() != ("logical",):
            raise FeedUnusable("The database needs `wal_level = logical` in postgresql.conf, and a restart.")
        found = connection.execute(
            "SELECT relreplident FROM pg_class WHERE oid = to_regclass(%s)", [self._relation.quoted]
        ).fetchone()
        if found is None:
            raise FeedUnusable(f"There is no table {self._relation.table}.")
        columns = connection.execute(
            """SELECT attname, attgenerated <> '', coalesce(attnum = ANY(indkey), false) FROM pg_attribute
            LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
            WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum""",
            [self._relation.quoted],
        ).fetchall()
        key = tuple(name for name, _, in_key in columns if in_key)
        if not key:
            raise FeedUnusable(f"{self._relation.table} has no primary key.")
        if found[0] not in ("f", b"f"):
            raise FeedUnusable(
                "Deleted rows and large values are whole in PostgreSQL's log only if the table asks for it:"
                f" ALTER TABLE {self._relation.table} REPLICA IDENTITY FULL"
            )
        return _Table(key, tuple(name for name, computed, _ in columns if computed))

    def _try_lock(self, connection: Database) -> bool:
        row = connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [self._name]).fetchone()
        return bool(row and row[0])

    def _progress(self, connection: Database) -> Progress | None:
        query = f"SELECT position::text, snapshot, snapshot_position::text FROM {self._names.feeds} WHERE name = %s"
        row = connection.execute(query, [self._name]).fetchone()
        if row is None:
            return None
        position, snapshot, snapshot_position = row
        return Progress(
            position_from_text(position), Snapshot.from_text(snapshot), position_from_text(snapshot_position)
        )

    def _begin(self, connection: Database, table: _Table) -> Progress:
        """Create the publication and the slot, and write an event for each row of the table into the outbox."""
        if not self._exists(connection, "pg_publication", "pubname"):
            connection.execute(
                f"CREATE PUBLICATION {self._name} FOR TABLE {self._relation.quoted}"
                " WITH (publish = 'insert, update, delete')"
            )
        # A slot that an earlier attempt has left holds more of the log, which does no harm.
        if not self._exists(connection, "pg_replication_slots", "slot_name"):
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self._name])
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            # The first statement takes the snapshot, and then reads the place in the log.
            connection.execute(
                f"""INSERT INTO {self._names.feeds} (name, relation, event_type, snapshot, snapshot_position, position)
                VALUES (%s, %s, %s, pg_current_snapshot()::text, pg_current_wal_insert_lsn(), '0/0')""",
                [self._name, self._relation.table, self._event_type],
            )
            connection.execute(
                f"""INSERT INTO {self._names.quoted} (event_type, key, event)
                SELECT %(event_type)s, {_key_of(table)}, {_event_of("'S'", "transaction_timestamp()")}
                FROM {self._relation.quoted} AS r""",
                self._values(table),
            )
        progress = self._progress(connection)
        assert progress is not None
        return progress

    def _exists(self, connection: Database, catalog: str, column: str) -> bool:
        query = f"SELECT 1 FROM {catalog} WHERE {column} = %s"
        return connection.execute(query, [self._name]).fetchone() is not None

    def _write_next(self, connection: Database, table: _Table, progress: Progress) -> Progress | None:
        """Write the events of the next transactions. Returns the progress after them, or None if there are none."""
        # PostgreSQL reads the log only as far as it is flushed. A commit may be written and not flushed: if the slot
        # advanced to the end of what is written, and the commit was flushed meanwhile, the feed would never see it.
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        transactions = self._peek(connection, row[0])
        if not transactions:
            # The slot need not hold transactions without changes to the table.
            self._advance(connection, row[0])
            return None
        new = [each for each in transactions if not progress.has(each)]
        reached = Progress(transactions[-1].commit_position, progress.snapshot, progress.snapshot_position)
        with connection.transaction():
            self._write(connection, table, new)
            connection.execute(
                f"UPDATE {self._names.feeds} SET position = %s::pg_lsn WHERE name = %s",
                [position_text(reached.position), self._name],
            )
        # If this process dies right here, the slot delivers the same transactions again, and the feed skips them.
        self._advance(connection, position_text(transactions[-1].end_position))
        return reached

    def _peek(self, connection: Database, until: str) -> list[Transaction]:
        # PostgreSQL describes the tables anew in each call, so each call gets a new decoder.
        decoder = TransactionDecoder()
        messages = connection.execute(
            """SELECT data FROM pg_logical_slot_peek_binary_changes(
                %s, %s::pg_lsn, %s, 'proto_version', '1', 'publication_names', %s)""",
            [self._name, until, MAX_CHANGES, self._name],
        )
        decoded = (decoder.decode(bytes(message)) for (message,) in messages)
        return [each for each in decoded if each is not None]

    def _advance(self, connection: Database, position: str) -> None:
        connection.execute(
            """SELECT pg_replication_slot_advance(slot_name, %s::pg_lsn) FROM pg_replication_slots
            WHERE slot_name = %s AND confirmed_flush_lsn < %s::pg_lsn""",
            [position, self._name, position],
        )

    def _write(self, connection: Database, table: _Table, transactions: Sequence[Transaction]) -> None:
        changes = [(change, each.committed_at) for each in transactions for change in each.changes]
        connection.execute(
            f"""INSERT INTO {self._names.quoted} (event_type, key, event)
            SELECT %(event_type)s, {_key_of(table)}, {_event_of("c.operation", "c.committed_at")}
            FROM unnest(%(operations)s::text[], %(rows)s::text[], %(moments)s::timestamptz[])
                WITH ORDINALITY AS c (operation, changed, committed_at, number),
                LATERAL jsonb_populate_record(NULL::{self._relation.quoted}, c.changed::jsonb) AS r
            ORDER BY c.number""",
            self._values(table)
            | {
                "operations": [change.operation.value for change, _ in changes],
                "rows": [change.row.decode() for change, _ in changes],
                "moments": [moment for _, moment in changes],
            },
        )

    def _values(self, table: _Table) -> dict[str, Any]:
        return {
            "event_type": self._event_type,
            "data_type": self._relation.table,
            "computed": list(table.computed),
        }


def _key_of(table: _Table) -> str:
    """The SQL expression for the key of a row `r`: all columns of its primary key."""
    columns = ", ".join(f"r.{_identifier(name)}" for name in table.key)
    return f"jsonb_build_array({columns})::text"


def _event_of(operation: str, moment: str) -> str:
    """The SQL expression for the event of a row `r`. PostgreSQL itself formats the values, so a row has the same form
    whether the feed read it from the table or from the log.
    """
    occurred_at = f"""to_char({moment} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
    return f"""jsonb_build_object(
        'data_type', %(data_type)s::text, 'data_op', {operation}, 'data', to_jsonb(r) - %(computed)s::text[],
        'metadata', jsonb_build_object('occurred_at', {occurred_at}))"""


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
