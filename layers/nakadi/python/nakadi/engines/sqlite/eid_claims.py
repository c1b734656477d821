"""Claims on ids of events in a data file, for event logs that are elsewhere."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from nakadi.engines.sqlite.file import WRITE_TIMEOUT_SECONDS, SqliteFile
from nakadi.model.events import microseconds_since_epoch
from nakadi.ports.eid_claims import EidClaim

MAX_CLAIMS_PRUNED_AT_ONCE = 200
"""How many expired claims are removed with each batch. Most batches have fewer ids, so the number of expired claims
falls.
"""

PRUNE_CLAIMS = """
    DELETE FROM eid_claims WHERE key IN (SELECT key FROM eid_claims WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)
"""

_DECODER = msgspec.msgpack.Decoder(EidClaim)


class SqliteEidClaims:
    def __init__(self, path: Path, *, patience: float = WRITE_TIMEOUT_SECONDS) -> None:
        self._file = SqliteFile(path, patience=patience)

    def claim(self, wanted: Sequence[EidClaim]) -> Mapping[bytes, EidClaim]:
        standing: dict[bytes, EidClaim] = {}
        with self._file.write_transaction() as connection:
            if wanted:
                now = microseconds_since_epoch(wanted[0].since)
                connection.execute(PRUNE_CLAIMS, (now, MAX_CLAIMS_PRUNED_AT_ONCE))
            for claim in wanted:
                found = _find(connection, claim.key)
                if found is None:
                    _put(connection, claim)
                elif found.token != claim.token:
                    standing[claim.key] = found
        return standing

    def replace(self, changes: Sequence[tuple[EidClaim, EidClaim]]) -> Collection[bytes]:
        replaced: list[bytes] = []
        with self._file.write_transaction() as connection:
            for old, new in changes:
                found = _find(connection, old.key)
                if found in (old, new):
                    _put(connection, new)
                    replaced.append(new.key)
        return replaced

    def remove(self, claims: Sequence[EidClaim]) -> None:
        with self._file.write_transaction() as connection:
            for claim in claims:
                found = _find(connection, claim.key)
                if found is not None and found.token == claim.token:
                    connection.execute("DELETE FROM eid_claims WHERE key = ?", (claim.key,))

    def close(self) -> None:
        self._file.close()


def _find(connection: sqlite3.Connection, key: bytes) -> EidClaim | None:
    row = connection.execute("SELECT body FROM eid_claims WHERE key = ?", (key,)).fetchone()
    return None if row is None else _DECODER.decode(row[0])


def _put(connection: sqlite3.Connection, claim: EidClaim) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO eid_claims (key, expires_at, body) VALUES (?, ?, ?)",
        (claim.key, microseconds_since_epoch(claim.expires_at), msgspec.msgpack.encode(claim)),
    )
