"""What engines have in common: how a document is written down, and what a `write` may ask for."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from nakadi.ports import Change, ChangedMeanwhile, Document, Put

MOST_CHANGES = 100


def entry_of(document: Document) -> bytes:
    return orjson.dumps([document.key, document.revision, document.body])


def document_in(entry: bytes | str) -> Document:
    return documents_in(b"[" + (entry.encode() if isinstance(entry, str) else entry) + b"]")[0]


def documents_in(array: bytes | str) -> Sequence[Document]:
    """The documents of entries that are written as one JSON array."""
    return [Document(key, body, revision) for key, revision, body in orjson.loads(array)]


def see_that_it_may_be_asked(changes: Sequence[Change]) -> None:
    if len(changes) > MOST_CHANGES:
        raise ValueError(f"{len(changes)} changes in one write, {MOST_CHANGES} are the most")
    if len({(change.kind, change.key) for change in changes}) < len(changes):
        raise ValueError("two changes of one document in one write")


def outcome_of(change: Change, revision: int) -> Document | None:
    """The document that a `Put` makes of one at this revision, None for other changes; raises `ChangedMeanwhile`."""
    if change.expected not in (None, revision):
        raise ChangedMeanwhile(change)
    return Document(change.key, change.body, revision + 1) if isinstance(change, Put) else None
