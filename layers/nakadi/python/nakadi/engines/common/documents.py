"""The documents of registries as text, and the permitted changes of a `write`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import orjson

from nakadi.ports.registry import (
    ABSENCE_CACHED_KINDS,
    ABSENT_REVISION,
    CACHED_KINDS,
    ChangedMeanwhile,
    CheckRevision,
    Document,
    DocumentChange,
    PutDocument,
    change_bucket,
)

MAX_CHANGES_PER_WRITE = 99
"""DynamoDB makes a hundred changes in one transaction, and one of these updates the change counters."""

CHANGE_COUNTS_KIND = "changes"
"""The kind under which change counters are stored; no document has it."""


def document_json(document: Document) -> bytes:
    return orjson.dumps([document.key, document.revision, document.body])


def document_from_json(entry: bytes | str) -> Document:
    return documents_from_json(b"[" + (entry.encode() if isinstance(entry, str) else entry) + b"]")[0]


def documents_from_json(array: bytes | str) -> Sequence[Document]:
    """The documents of entries that are written as one JSON array."""
    return [Document(key, body, revision) for key, revision, body in orjson.loads(array)]


def check_changes_of_one_write(changes: Sequence[DocumentChange]) -> None:
    if len(changes) > MAX_CHANGES_PER_WRITE:
        raise ValueError(f"{len(changes)} changes in one write, {MAX_CHANGES_PER_WRITE} are the most")
    if len({(change.kind, change.key) for change in changes}) < len(changes):
        raise ValueError("two changes of one document in one write")


def document_after_change(change: DocumentChange, revision: int) -> Document | None:
    """The document after a `PutDocument` of one that is stored at this revision; None for other changes.

    Raises `ChangedMeanwhile`.
    """
    if change.expected_revision not in (None, revision):
        raise ChangedMeanwhile(change)
    return Document(change.key, change.body, revision + 1) if isinstance(change, PutDocument) else None


def changed_buckets(changes: Sequence[DocumentChange]) -> Collection[int]:
    """The buckets of the change counters that these changes increase; sorted, so that all writers use the same
    order.
    """
    return sorted({change_bucket(change.kind, change.key) for change in changes if _is_counted(change)})


def _is_counted(change: DocumentChange) -> bool:
    if isinstance(change, CheckRevision) or change.kind not in CACHED_KINDS:
        return False
    return change.expected_revision != ABSENT_REVISION or change.kind in ABSENCE_CACHED_KINDS
