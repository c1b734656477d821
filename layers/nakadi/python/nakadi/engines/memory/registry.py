"""The registry in memory: dictionaries under a lock."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile

from msgspec import Struct, field

from nakadi.engines.common.registry_documents import (
    check_changes_of_one_write,
    counted_buckets,
    document_in,
    entry_of,
    outcome_of,
)
from nakadi.model.changes import Changes
from nakadi.model.outcomes import Unavailable
from nakadi.ports.registry import ABSENT, Change, Document, Remove


class _Kind(Struct):
    """Revision and text of documents: a caller may change the document it got without changing the stored one."""

    entries: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    def revision(self, key: str) -> int:
        return self.entries[key][0] if key in self.entries else ABSENT

    def put(self, key: str, revision: int, entry: bytes) -> None:
        if key not in self.entries:
            insort(self.keys, key)
        self.entries[key] = (revision, entry)

    def remove(self, key: str) -> None:
        if self.entries.pop(key, None):
            del self.keys[bisect_left(self.keys, key)]

    def keys_from(self, prefix: str, after: str) -> Iterator[str]:
        start = max(bisect_left(self.keys, prefix), bisect_right(self.keys, after))
        return takewhile(lambda key: key.startswith(prefix), islice(self.keys, start, None))


class MemoryRegistry:
    """Nothing of it survives the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self._numbers: Counter[int] = Counter()
        self._closed = False

    def get(self, kind: str, key: str) -> Document | None:
        with self._while_open() as kinds:
            found = kinds[kind].entries.get(key)
        return document_in(found[1]) if found else None

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        with self._while_open() as kinds:
            kept = kinds[kind]
            found = [kept.entries[key][1] for key in islice(kept.keys_from(prefix, after), limit)]
        return [document_in(entry) for entry in found]

    def write(self, *changes: Change) -> None:
        check_changes_of_one_write(changes)
        with self._while_open() as kinds:
            outcomes = [outcome_of(change, kinds[change.kind].revision(change.key)) for change in changes]
            entries = [entry_of(document) if document else b"" for document in outcomes]
            for change, document, entry in zip(changes, outcomes, entries, strict=True):
                if document is not None:
                    kinds[change.kind].put(change.key, document.revision, entry)
                elif isinstance(change, Remove):
                    kinds[change.kind].remove(change.key)
            self._numbers.update(counted_buckets(changes))

    def changes(self) -> Changes:
        with self._while_open():
            return Changes(dict(self._numbers))

    def close(self) -> None:
        with self._lock:
            self._closed = True

    @contextmanager
    def _while_open(self) -> Iterator[dict[str, _Kind]]:
        with self._lock:
            if self._closed:
                raise Unavailable("The registry is closed.")
            yield self._kinds
