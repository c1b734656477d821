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
    """Objects under keys. What `put` returned from is durable, whole or not there, and never changes."""

    def put(self, key: str, content: bytes) -> None:
        """Keep an object. Keeping it again changes nothing."""

    def read_range(self, location: ArchiveLocation) -> bytes:
        """A range of an object. Raises `ArchiveObjectGone` when there is no such object."""

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects. Missing ones are no error."""

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        """The objects whose keys begin so, in no order, also what is left of one that was never finished.

        `prefix` ends with a slash. Of what is put meanwhile, some may be there.
        """

    def close(self) -> None:
        """Give everything back. Further calls raise `Unavailable`."""


class ArchiveObjectGone(Exception):
    """Raised when an archive object does not exist, or no longer exists."""
