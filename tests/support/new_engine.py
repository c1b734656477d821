"""A small engine, written as docs/architecture.md describes: a registry that keeps all documents in a JSON file.

`tests/contracts/test_new_engine.py` copies this module into a folder of the package's engines.
"""

import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nakadi.engines.common.documents import changed_buckets, check_changes_of_one_write, document_after_change
from nakadi.model.outcomes import Unavailable
from nakadi.ports.registry import ABSENT_REVISION, ChangeCounters, Document, DocumentChange, RemoveDocument


class JsonFileRegistry:
    """Each write replaces the whole file, so the file always has the content of one write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._closed = False

    def get(self, kind: str, key: str) -> Document | None:
        found = self._read()["documents"].get(kind, {}).get(key)
        return Document(**found) if found else None

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        documents = self._read()["documents"].get(kind, {})
        keys = sorted(key for key in documents if key.startswith(prefix) and key > after)
        return [Document(**documents[key]) for key in keys[:limit]]

    def write(self, *changes: DocumentChange) -> None:
        check_changes_of_one_write(changes)
        with self._lock:
            content = self._read()
            documents, counts = content["documents"], Counter(content["counts"])
            revisions = [documents.get(each.kind, {}).get(each.key, {}).get("revision") for each in changes]
            changed = [
                document_after_change(change, revision or ABSENT_REVISION)
                for change, revision in zip(changes, revisions, strict=True)
            ]
            for change, document in zip(changes, changed, strict=True):
                of_kind = documents.setdefault(change.kind, {})
                if document is not None:
                    of_kind[change.key] = {"key": document.key, "body": document.body, "revision": document.revision}
                elif isinstance(change, RemoveDocument):
                    of_kind.pop(change.key, None)
            counts.update(str(bucket) for bucket in changed_buckets(changes))
            self._replace_file({"documents": documents, "counts": counts})

    def change_counters(self) -> ChangeCounters:
        return ChangeCounters({int(bucket): count for bucket, count in self._read()["counts"].items()})

    def close(self) -> None:
        self._closed = True

    def _read(self) -> dict[str, Any]:
        if self._closed:
            raise Unavailable("The registry is closed.")
        return json.loads(self._path.read_text()) if self._path.exists() else {"documents": {}, "counts": {}}

    def _replace_file(self, content: dict[str, Any]) -> None:
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(content))
        written.replace(self._path)


class ForgetfulRegistry(JsonFileRegistry):
    """A faulty registry that ignores removals, and so keeps the documents."""

    def write(self, *changes: DocumentChange) -> None:
        super().write(*[each for each in changes if not isinstance(each, RemoveDocument)])
