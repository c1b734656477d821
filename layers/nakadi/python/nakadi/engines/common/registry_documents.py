"""What engines have in common: how a document is written down, and what a `write` may ask for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import orjson

from nakadi.model.changes import bucket_of
from nakadi.ports.registry import ABSENCE_REMEMBERED, ABSENT, REMEMBERED, Change, ChangedMeanwhile, Check, Document, Put

MOST_CHANGES = 99
"""DynamoDB makes a hundred changes in one step, and one of them counts the others."""

NUMBERS = "changes"
"""The kind of what tells which documents changed; it has no documents."""


def entry_of(document: Document) -> bytes:
    return orjson.dumps([document.key, document.revision, document.body])


def document_in(entry: bytes | str) -> Document:
    return documents_in(b"[" + (entry.encode() if isinstance(entry, str) else entry) + b"]")[0]


def documents_in(array: bytes | str) -> Sequence[Document]:
    """The documents of entries that are written as one JSON array."""
    return [Document(key, body, revision) for key, revision, body in orjson.loads(array)]


def check_changes_of_one_write(changes: Sequence[Change]) -> None:
    if len(changes) > MOST_CHANGES:
        raise ValueError(f"{len(changes)} changes in one write, {MOST_CHANGES} are the most")
    if len({(change.kind, change.key) for change in changes}) < len(changes):
        raise ValueError("two changes of one document in one write")


def outcome_of(change: Change, revision: int) -> Document | None:
    """The document that a `Put` makes of one at this revision, None for other changes; raises `ChangedMeanwhile`."""
    if change.expected not in (None, revision):
        raise ChangedMeanwhile(change)
    return Document(change.key, change.body, revision + 1) if isinstance(change, Put) else None


def counted_buckets(changes: Sequence[Change]) -> Collection[int]:
    """Where changes are counted of what processes remember; in order, so that writers meet in one order."""
    return sorted({bucket_of(change.kind, change.key) for change in changes if _is_counted(change)})


def _is_counted(change: Change) -> bool:
    if isinstance(change, Check) or change.kind not in REMEMBERED:
        return False
    return change.expected != ABSENT or change.kind in ABSENCE_REMEMBERED
