"""AWS's rate limits: calls of an API, bytes and records of a shard. Callers pass the time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WRITE_BYTES_PER_SECOND = 1024 * 1024
WRITE_RECORDS_PER_SECOND = 1000
READ_BYTES_PER_SECOND = 2 * 1024 * 1024
READ_CALLS_PER_SECOND = 5
ITERATORS_PER_SECOND = 5


class TokenBucket:
    """A token bucket: `rate` tokens arrive per second, up to `capacity`, by default one second's tokens."""

    def __init__(self, rate: float, capacity: float | None = None) -> None:
        self._rate = rate
        self._capacity = rate if capacity is None else capacity
        self._level = self._capacity
        self._at = 0.0

    def has(self, amount: float, now: float) -> bool:
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate) if self._at else self._capacity
        self._at = now
        return self._level >= amount

    def take(self, amount: float) -> None:
        """Take tokens. The level may become negative, so later requests wait."""
        self._level -= amount


class Shard:
    """The limits of a shard for all its writers and readers together."""

    def __init__(self) -> None:
        self._bytes = TokenBucket(WRITE_BYTES_PER_SECOND)
        self._records = TokenBucket(WRITE_RECORDS_PER_SECOND)
        self._read = TokenBucket(READ_BYTES_PER_SECOND)
        self._calls = TokenBucket(READ_CALLS_PER_SECOND)
        self._iterators = TokenBucket(ITERATORS_PER_SECOND)

    def accept(self, size: int, now: float) -> bool:
        """Whether the shard accepts a record of this size; if so, count it."""
        # The shard accepts a record beyond a second's bytes only if its bucket is full.
        if not (self._bytes.has(min(size, WRITE_BYTES_PER_SECOND), now) and self._records.has(1, now)):
            return False
        self._bytes.take(size)
        self._records.take(1)
        return True

    def allow_read(self, now: float) -> bool:
        # The size of the answer is unknown yet. If it exceeds the limit, later reads wait longer.
        if not (self._read.has(1, now) and self._calls.has(1, now)):
            return False
        self._calls.take(1)
        return True

    def record_read(self, size: int) -> None:
        self._read.take(size)

    def allow_iterator(self, now: float) -> bool:
        if not self._iterators.has(1, now):
            return False
        self._iterators.take(1)
        return True


@dataclass(frozen=True, slots=True)
class HashKeyRanges:
    """The open shards of a stream by their ranges of key hashes."""

    shards: Sequence[tuple[int, int, str]]

    @classmethod
    def of(cls, listed: Iterable[Mapping[str, Any]]) -> HashKeyRanges:
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

    def find_shard(self, record: Mapping[str, Any]) -> str:
        explicit = record.get("ExplicitHashKey")
        key = record["PartitionKey"].encode()
        place = int(explicit) if explicit else int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest(), "big")
        return next((shard for first, last, shard in self.shards if first <= place <= last), "")


def record_size(record: Mapping[str, Any]) -> int:
    """The size that Kinesis counts: the decoded data and the key, in bytes."""
    data: str = record["Data"]
    return len(data) * 3 // 4 - data.count("=", -2) + len(record["PartitionKey"].encode())
