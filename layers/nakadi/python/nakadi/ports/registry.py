"""The registry: documents that are changed by compare-and-set, and numbers by which processes notice changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from zlib import crc32

from msgspec import Struct, field

CHANGE_BUCKETS = 128
"""The number of parts into which keys are divided. After a change, processes reread their cached documents in the same
part. The numbers of all parts fit into the 4 KB that DynamoDB reads for one unit."""


class ChangeCounters(Struct, frozen=True):
    """The number of changes in each bucket of keys; missing buckets have 0."""

    count_by_bucket: Mapping[int, int] = field(default_factory=dict)

    def count_of_bucket(self, bucket: int) -> int:
        return self.count_by_bucket.get(bucket, 0)


def change_bucket(kind: str, key: str) -> int:
    return crc32(f"{kind}/{key}".encode()) % CHANGE_BUCKETS


class Document(Struct, frozen=True):
    """A JSON object under a key. `revision` is 1 when it is created and grows by one with every write."""

    key: str
    body: Mapping[str, Any]
    revision: int


ABSENT_REVISION = 0
"""The revision of a document that does not exist."""


class PutDocument(Struct, frozen=True):
    """Write a document if its revision is `expected_revision`; None writes unconditionally."""

    kind: str
    key: str
    body: Mapping[str, Any]
    expected_revision: int | None = None


class RemoveDocument(Struct, frozen=True):
    """Remove a document if its revision is `expected_revision`; None removes any revision, or nothing."""

    kind: str
    key: str
    expected_revision: int | None = None


class CheckRevision(Struct, frozen=True):
    """Write nothing, but let the other changes be made only if the revision is `expected_revision`."""

    kind: str
    key: str
    expected_revision: int


DocumentChange = PutDocument | RemoveDocument | CheckRevision


CACHED_KINDS = frozenset({"event-types", "settings", "sinks", "subscriptions"})
"""Kinds of documents that processes cache for as long as `Registry.change_counters` shows no change. Kinds whose
documents change often do not belong here, because all changes are counted in one place."""


ABSENCE_CACHED_KINDS = frozenset({"settings", "sinks"})
"""For these kinds, processes also cache that a document does not exist."""


class ChangedMeanwhile(Exception):
    """Raised by `Registry.write` when a condition does not hold; `change` is the first such change."""

    def __init__(self, change: DocumentChange) -> None:
        super().__init__(f"{change.kind} {change.key!r} is not at revision {change.expected_revision}")
        self.change = change


class Registry(Protocol):
    """Documents of several kinds, ordered by key within their kind.

    * `write` is all or nothing, and durable when it returns. It accepts at most 99 changes, no two of the same
      document; otherwise, it raises `ValueError`.
    * A read sees every write, by any process, that returned before it began.
    * Conditions and changes of one `write` are one atomic step: of several writers that expect the same revision,
      exactly one succeeds; the others raise `ChangedMeanwhile` and change nothing.
    """

    def get(self, kind: str, key: str) -> Document | None:
        """The document, or None."""

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        """Documents whose keys begin with `prefix` and are greater than `after`, by key (as code points).

        Each document is as it was at some moment since the list began: writes made meanwhile may appear in part.
        """

    def write(self, *changes: DocumentChange) -> None:
        """Make all changes, or none and raise `ChangedMeanwhile`."""

    def change_counters(self) -> ChangeCounters:
        """Numbers that grow in the same atomic step in which a document of a kind in `CACHED_KINDS` changes.

        If a document is read after the numbers were read, and later the number for it is still the same, then the
        document was unchanged when the later numbers were requested. New documents of kinds in `ABSENCE_CACHED_KINDS`
        are counted, and those of other kinds may be. A number may also grow because another document changed.
        """

    def close(self) -> None:
        """Release all resources. Further calls raise `Unavailable`."""
