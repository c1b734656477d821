"""What AWS lets through in a second: calls of an API, and bytes and records of a shard. The time is handed in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WRITTEN_BYTES = 1024 * 1024
WRITTEN_RECORDS = 1000
READ_BYTES = 2 * 1024 * 1024
READ_OPERATIONS = 5
ITERATORS = 5


class Bucket:
    """So much a second flows in, and out of it is taken; what was saved up for a second, or more, is all there is."""

    def __init__(self, a_second: float, holds: float | None = None) -> None:
        self._a_second = a_second
        self._holds = a_second if holds is None else holds
        self._level = self._holds
        self._at = 0.0

    def has(self, amount: float, now: float) -> bool:
        self._level = min(self._holds, self._level + (now - self._at) * self._a_second) if self._at else self._holds
        self._at = now
        return self._level >= amount

    def take(self, amount: float) -> None:
        """May become negative: later requests wait for it."""
        self._level -= amount


class Shard:
    """What all who write to a shard, or read from it, may do together."""

    def __init__(self) -> None:
        self._bytes = Bucket(WRITTEN_BYTES)
        self._records = Bucket(WRITTEN_RECORDS)
        self._read = Bucket(READ_BYTES)
        self._calls = Bucket(READ_OPERATIONS)
        self._iterators = Bucket(ITERATORS)

    def takes(self, size: int, now: float) -> bool:
        """Whether a record of this many bytes is taken."""
        # One that is larger than what flows in a second is taken when nothing else was.
        if not (self._bytes.has(min(size, WRITTEN_BYTES), now) and self._records.has(1, now)):
            return False
        self._bytes.take(size)
        self._records.take(1)
        return True

    def may_be_read(self, now: float) -> bool:
        # An answer is not known beforehand, so it may be more than is left over: then the next ones wait longer.
        if not (self._read.has(1, now) and self._calls.has(1, now)):
            return False
        self._calls.take(1)
        return True

    def was_read(self, size: int) -> None:
        self._read.take(size)

    def gives_an_iterator(self, now: float) -> bool:
        if not self._iterators.has(1, now):
            return False
        self._iterators.take(1)
        return True


@dataclass(frozen=True, slots=True)
class Ranges:
    """The open shards of a stream, by the hashes of the keys that they take."""

    shards: Sequence[tuple[int, int, str]]

    @classmethod
    def of(cls, listed: Iterable[Mapping[str, Any]]) -> Ranges:
        return cls(
            [
                (
                    int(each["HashKeyRange"]["StartingHashKey"]),
                    int(each["HashKeyRange"]["EndingHashKey"]),
                    each["ShardId"],
                )
                for each in listed
                if "EndingSequenceNumber" not in each["SequenceNumberRange"]
            ]
        )

    def shard_of(self, record: Mapping[str, Any]) -> str:
        explicit = record.get("ExplicitHashKey")
        key = record["PartitionKey"].encode()
        place = int(explicit) if explicit else int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest(), "big")
        return next((shard for first, last, shard in self.shards if first <= place <= last), "")


def size_of(record: Mapping[str, Any]) -> int:
    """In bytes, as Kinesis counts them: what is in base64, and the key."""
    data: str = record["Data"]
    return len(data) * 3 // 4 - data.count("=", -2) + len(record["PartitionKey"].encode())
