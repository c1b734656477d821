"""The archive store: objects that are written once, in a folder or a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from nakadi.model.log_index import ArchiveLocation


class StoredObject(NamedTuple):
    key: str
    size: int
    written_at: datetime


class ArchiveStore(Protocol):
    """Objects under keys. After `put` returns, the object is durable and never changes; before that, it is complete or
    absent.
    """

    def put(self, key: str, content: bytes) -> None:
        """Store an object. Storing it again changes nothing."""

    def read_range(self, location: ArchiveLocation) -> bytes:
        """A range of an object. Raises `ArchiveObjectGone` when there is no such object."""

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects. Missing ones are not an error."""

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        """The objects with keys that begin with this prefix, in no particular order, including what remains of an
        unfinished object.

        `prefix` ends with a slash. Objects that are put meanwhile may be missing.
        """

    def close(self) -> None:
        """Release all resources. Further calls raise `Unavailable`."""


class ArchiveObjectGone(Exception):
    """Raised when an archive object does not exist, or no longer exists."""
