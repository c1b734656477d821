"""Whether an archive is the one that a log index describes.

A wrong address, or a folder whose file system is not mounted, looks like an archive that has lost all its objects.
Without a check, jobs would skip all events, and the archiver would write to another disk.
"""

from __future__ import annotations

from nakadi.engines.archive.object_keys import namespace_of_key
from nakadi.engines.archive.stores import FolderStore
from nakadi.engines.archive.sweeping import list_objects_of_index
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.log_index import LogIndex


def is_archive_of(index: LogIndex, store: ArchiveStore) -> bool:
    """Whether the archive has the objects to which this index refers, or the index refers to none."""
    namespaces = {namespace_of_key(key) for key in index.referenced_archive_keys()}
    return not namespaces or any(True for _ in list_objects_of_index(index, store, namespaces))


def check_mounted(index: LogIndex, store: ArchiveStore) -> None:
    """Raise `Unavailable` if the folder of an archive is not the one that has its objects.

    A marker in the folder identifies the right one. An archive gets its marker when it is first used, or has objects.
    """
    if not isinstance(store, FolderStore) or store.is_marked():
        return
    if not is_archive_of(index, store):
        raise _not_there(store)
    store.put(store.marker.name, f"The folder of an archive of Nakadi: {index.identity()}\n".encode())


def check_mounted_after_failed_read(store: ArchiveStore) -> None:
    """Raise `Unavailable` if an object is missing because the folder is not the archive: it has neither the marker nor
    any object.
    """
    if isinstance(store, FolderStore) and not store.is_marked() and not any(True for _ in store.list_objects("")):
        raise _not_there(store)


def _not_there(store: FolderStore) -> Unavailable:
    """The failure for a folder that is not the archive. The folder's path goes only to the log, for operators."""
    return Unavailable(
        f"The archive {store.marker.parent} is not there: is its file system mounted?",
        public="The archive is not there: is its file system mounted?",
    )
