"""Removes archive objects to which the log index no longer refers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct

from nakadi.common.chores import run_and_log_failure
from nakadi.engines.archive import object_keys
from nakadi.ports.archive_store import ArchiveStore, StoredObject
from nakadi.ports.log_index import LogIndex

log = logging.getLogger(__name__)


KEYS_PER_REMOVAL = 500


class SweepResult(Struct, frozen=True):
    """How many objects from before the given time a sweep found, and how many of them it removed."""

    old_object_count: int = 0
    removed_count: int = 0
    bytes_freed: int = 0


class ArchiveSweep(Struct, frozen=True):
    """Sweeps an archive that one log index describes.

    Each object has a name of its own, and gets its reference moments after it is written, so an old object without a
    reference will never get one. `namespaces` are the namespaces whose objects all belong to the index; by default,
    those to which the index refers.

    `is_settled` says whether no process is about to refer to an object without references. By default, this is assumed
    of all objects that `run` considers.
    """

    index: LogIndex
    store: ArchiveStore
    namespaces: Collection[str] | None = None
    is_settled: Callable[[StoredObject], bool] | None = None

    def run(self, older_than: datetime) -> SweepResult:
        """Remove every object that was written before this time, and has no reference."""
        listed = list_objects_of_index(self.index, self.store, self.namespaces)
        found = [each for each in listed if each.written_at < older_than]
        # References are read after the objects, so that references that were added in between are seen.
        unused = self._without_references(found)
        if self.is_settled is not None:
            # While `is_settled` was asked, an archiver may have stored the missing reference to an object, so
            # references are read again.
            unused = self._without_references([each for each in unused if self.is_settled(each)])
        gone: list[StoredObject] = []
        for start in range(0, len(unused), KEYS_PER_REMOVAL):
            some = unused[start : start + KEYS_PER_REMOVAL]
            keys_of_some = [each.key for each in some]
            if run_and_log_failure(
                "removal of archive objects", f"{some[0].key} and on", partial(self.store.remove, keys_of_some)
            ):
                gone += some
        if gone:
            log.info("Removed %s unneeded archive objects", len(gone))
        return SweepResult(len(found), len(gone), sum(each.size for each in gone))

    def _without_references(self, found: Sequence[StoredObject]) -> Sequence[StoredObject]:
        referenced_archive_keys = self.index.referenced_archive_keys() if found else ()
        return [each for each in found if each.key not in referenced_archive_keys]


def list_objects_of_index(
    index: LogIndex, store: ArchiveStore, namespaces: Collection[str] | None
) -> Iterator[StoredObject]:
    """The objects of these namespaces, by default of those to which the index refers."""
    if namespaces is None:
        namespaces = {object_keys.namespace_of_key(key) for key in index.referenced_archive_keys()}
    for namespace in sorted(namespaces):
        for folder in (object_keys.LOG_FOLDER, object_keys.REWRITTEN_FOLDER):
            yield from store.list_objects(f"{folder}{namespace}/")
