"""What changed, as numbers that processes compare instead of reading again all that they remember."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from msgspec import Struct, field

BUCKETS = 128
"""One change makes what is remembered of this part of all keys be read again. The numbers of all buckets fit the 4 KB
that DynamoDB reads for one unit."""


class Changes(Struct, frozen=True):
    """For each bucket of keys how often something in it changed; buckets that are not mentioned stand at 0."""

    numbers: Mapping[int, int] = field(default_factory=dict)

    def number(self, bucket: int) -> int:
        return self.numbers.get(bucket, 0)


def bucket_of(kind: str, key: str) -> int:
    return crc32(f"{kind}/{key}".encode()) % BUCKETS
