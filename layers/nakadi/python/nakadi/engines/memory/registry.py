"""The registry in memory: dictionaries under a lock."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile

from msgspec import Struct, field

from nakadi.engines.common.documents import (
    changed_buckets,
    check_changes_of_one_write,
    document_after_change,
    document_from_json,
    document_json,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.registry import (
    ABSENT_REVISION,
    ChangeCounters,
    Document,
    DocumentChange,
    RemoveDocument,
)


class _DocumentsOfKind(Struct):
    """The documents of a kind, by key: their revisions and texts. Stored as text, a document does not change if a
    caller changes the one that it got.
    """

    revision_and_json_by_key: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    sorted_keys: list[str] = field(default_factory=list)

    def revision(self, key: str) -> int:
        return self.revision_and_json_by_key[key][0] if key in self.revision_and_json_by_key else ABSENT_REVISION

    def put(self, key: str, revision: int, entry: bytes) -> None:
        if key not in self.revision_and_json_by_key:
            insort(self.sorted_keys, key)
        self.revision_and_json_by_key[key] = (revision, entry)

    def remove(self, key: str) -> None:
        if self.revision_and_json_by_key.pop(key, None):
            del self.sorted_keys[bisect_left(self.sorted_keys, key)]

    def keys_from(self, prefix: str, after: str) -> Iterator[str]:
        start = max(bisect_left(self.sorted_keys, prefix), bisect_right(self.sorted_keys, after))
        return takewhile(lambda key: key.startswith(prefix), islice(self.sorted_keys, start, None))


class MemoryRegistry:
    """A registry in memory, which ends with the process.

    Each call holds the lock from its first read to its last change, like a transaction of a database. Entries are
    bytes, which never change, so they are parsed without the lock, and no caller delays another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: defaultdict[str, _DocumentsOfKind] = defaultdict(_DocumentsOfKind)
        self._numbers: Counter[int] = Counter()
        self._closed = False

    def get(self, kind: str, key: str) -> Document | None:
        with self._lock_while_open() as kinds:
            found = kinds[kind].revision_and_json_by_key.get(key)
        return document_from_json(found[1]) if found else None

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        with self._lock_while_open() as kinds:
            kept = kinds[kind]
            found = [kept.revision_and_json_by_key[key][1] for key in islice(kept.keys_from(prefix, after), limit)]
        return [document_from_json(entry) for entry in found]

    def write(self, *changes: DocumentChange) -> None:
        check_changes_of_one_write(changes)
        with self._lock_while_open() as kinds:
            # All changes are checked before the first is made: if two writers expect the same revision, the second one
            # finds a newer revision, and changes nothing.
            outcomes = [document_after_change(change, kinds[change.kind].revision(change.key)) for change in changes]
            entries = [document_json(document) if document else b"" for document in outcomes]
            for change, document, entry in zip(changes, outcomes, entries, strict=True):
                if document is not None:
                    kinds[change.kind].put(change.key, document.revision, entry)
                elif isinstance(change, RemoveDocument):
                    kinds[change.kind].remove(change.key)
            self._numbers.update(changed_buckets(changes))

    def change_counters(self) -> ChangeCounters:
        with self._lock_while_open():
            return ChangeCounters(dict(self._numbers))

    def close(self) -> None:
        with self._lock:
            self._closed = True

    @contextmanager
    def _lock_while_open(self) -> Iterator[dict[str, _DocumentsOfKind]]:
        with self._lock:
            if self._closed:
                raise Unavailable("The registry is closed.")
            yield self._kinds
