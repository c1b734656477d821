"""The messages of PostgreSQL's output plugin `pgoutput`.

This module reads only what a feed requests: messages of protocol version 1, with values as text.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder().encode


class Operation(StrEnum):
    """The operation on a row, in the words of the category `data`."""

    CREATE = "C"
    UPDATE = "U"
    DELETE = "D"


class Change(msgspec.Struct, frozen=True):
    """One changed row, as a JSON object of its columns; for a deletion, the old row.

    Values are texts as PostgreSQL writes them, except for columns that hold JSON.
    """

    relation: str
    operation: Operation
    row: bytes


class Transaction(msgspec.Struct, frozen=True):
    """A committed transaction and its changes, in their order. `end_position` is the place in the log after it."""

    xid: int
    commit_position: int
    end_position: int
    committed_at: datetime
    changes: tuple[Change, ...]


# The object identifiers of the types `json` and `jsonb`.
_JSON_TYPES = frozenset({114, 3802})


class _Column(msgspec.Struct, frozen=True):
    name: str
    holds_json: bool


class _Relation(msgspec.Struct, frozen=True):
    name: str
    columns: tuple[_Column, ...]


class _Reader:
    """Reads the parts of a message in order."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0

    def byte(self) -> str:
        return chr(self._take("!B"))

    def int16(self) -> int:
        return self._take("!H")

    def int32(self) -> int:
        return self._take("!I")

    def int64(self) -> int:
        return self._take("!Q")

    def bytes(self, length: int) -> bytes:
        self._at += length
        return self._message[self._at - length : self._at]

    def string(self) -> str:
        end = self._message.index(b"\0", self._at)
        text = self._message[self._at : end].decode()
        self._at = end + 1
        return text

    def _take(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._message, self._at)
        self._at += struct.calcsize(form)
        assert isinstance(value, int)
        return value


class TransactionDecoder:
    """Assembles transactions from messages in their order. The first message must begin a transaction."""

    def __init__(self) -> None:
        self._relations: dict[int, _Relation] = {}
        self._xid = 0
        self._changes: list[Change] = []

    def decode(self, message: bytes) -> Transaction | None:
        """Read the next message. Returns the transaction that the message ends, or None if it ends none."""
        reader = _Reader(message)
        match reader.byte():
            case "B":
                reader.int64(), reader.int64()  # the position and the time of the commit
                self._xid, self._changes = reader.int32(), []
            case "R":
                self._read_relation(reader)
            case "I":
                self._add(Operation.CREATE, reader)
            case "U":
                self._add(Operation.UPDATE, reader)
            case "D":
                self._add(Operation.DELETE, reader)
            case "C":
                reader.byte()  # flags, which are not used yet
                commit, end, moment = reader.int64(), reader.int64(), reader.int64()
                committed_at = _EPOCH + timedelta(microseconds=moment)
                return Transaction(self._xid, commit, end, committed_at, tuple(self._changes))
            case _:
                pass  # messages about types and origins
        return None

    def _read_relation(self, reader: _Reader) -> None:
        number, namespace, name = reader.int32(), reader.string(), reader.string()
        reader.byte()  # the replica identity
        columns = []
        for _ in range(reader.int16()):
            reader.byte()  # whether the column is a part of the identity
            columns.append(_Column(reader.string(), reader.int32() in _JSON_TYPES))
            reader.int32()  # the modifier of the type
        self._relations[number] = _Relation(f"{namespace}.{name}", tuple(columns))

    def _add(self, operation: Operation, reader: _Reader) -> None:
        relation = self._relations[reader.int32()]
        values: dict[str, object] = {}
        # An update has the old row before the new one: large values that did not change are only in the old one.
        tuples = 2 if operation is Operation.UPDATE else 1
        for _ in range(tuples):
            kind = reader.byte()
            values |= _read_row(reader, relation.columns)
            if kind == "N":
                break
        self._changes.append(Change(relation.name, operation, _encode(values)))


def _read_row(reader: _Reader, columns: tuple[_Column, ...]) -> dict[str, object]:
    """The values of a row, without those that PostgreSQL omitted because they are large and did not change."""
    values: dict[str, object] = {}
    for column in columns[: reader.int16()]:
        match reader.byte():
            case "n":
                values[column.name] = None
            case "t":
                text = reader.bytes(reader.int32())
                values[column.name] = msgspec.Raw(text) if column.holds_json else text.decode()
            case _:
                pass
    return values


def position_from_text(text: str) -> int:
    """Parse a position in the log as PostgreSQL writes it: `16/B374D848`."""
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def position_text(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


class Snapshot(msgspec.Struct, frozen=True):
    """The transactions that a snapshot of the database sees, in the form of `pg_current_snapshot()`: `10:20:11,14`."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def from_text(cls, text: str) -> Snapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(each) for each in running.split(",") if each))

    def sees(self, xid: int) -> bool:
        """Whether the snapshot contains the changes of a committed transaction. `xid` has only 32 bits, so the two must
        be less than 2³¹ transactions apart.
        """
        half = 1 << 31
        whole = self.xmax - ((self.xmax - xid + half) % (1 << 32) - half)
        return whole < self.xmin or (whole < self.xmax and whole not in self.running)
