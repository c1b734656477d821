"""Takes a backup of a data folder while its broker and its jobs continue.

The parts of a data folder refer to each other, which determines the order:

1. Tables, and all other files that are not the broker's own. Tables record up to which offset they have the events, so
   they must not be newer than the log. If a job commits to a table meanwhile, they are copied again.
2. The data file, in a snapshot, with a mark that fits the copy.
3. The key to the secrets, which is created before the first secret and never changes.
4. The archive objects to which the copied data file refers. They never change, and stay for a grace time after the
   last reference. If an object is missing nevertheless, everything is copied again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from nakadi.engines.sqlite.file import BadDataFile
from nakadi.engines.sqlite.mark import mark_content
from nakadi.engines.sqlite.snapshot import Snapshot, open_snapshot
from nakadi.local.backups.store import BackupFailed, BackupStore, Manifest, StoredFile, backup_id

DATA_FILE = "nakadi.db"
ARCHIVE = "archive"
MARK, KEY = f"{DATA_FILE}.mark", f"{DATA_FILE}.key"

# These files show whether an Iceberg table has changed.
TABLE_VERSIONS = ("version-hint.text", ".metadata.json")

MAX_TABLE_COPIES = 5
MAX_ARCHIVE_COPIES = 2


class DataFolder(Struct, frozen=True):
    """A data folder of a broker on this machine. Without `archives_here`, the archive is elsewhere."""

    path: Path
    archives_here: bool = True

    @property
    def data_file(self) -> Path:
        return self.path / DATA_FILE

    def other_files(self) -> Iterator[Path]:
        """Everything besides data file, mark, key and archive, such as tables."""
        seen = {os.path.realpath(self.path)}
        for path in sorted(self.path.iterdir()):
            if not path.name.startswith(DATA_FILE) and path.name != ARCHIVE:
                yield from _files_at(path, seen)

    def table_versions(self) -> Mapping[Path, int]:
        """The versions of the tables, which differ whenever a job has committed to a table."""
        versions = {}
        for path in self.other_files():
            if path.name.endswith(TABLE_VERSIONS):
                with suppress(FileNotFoundError):
                    versions[path] = path.stat().st_mtime_ns
        return versions


def _files_at(path: Path, seen: set[str]) -> Iterator[Path]:
    """The files at a path and below it; links are followed, but no folder is visited twice."""
    if path.is_file():
        yield path
    elif path.is_dir() and (real := os.path.realpath(path)) not in seen:
        seen.add(real)
        with suppress(FileNotFoundError):  # jobs may remove folders meanwhile
            for entry in sorted(path.iterdir()):
                yield from _files_at(entry, seen)


def take_backup(store: BackupStore, folder: DataFolder, now: Callable[[], datetime], version: str) -> Manifest:
    """Take a backup of everything that was acknowledged before the call. Raises `BackupFailed` and `BadDataFile`."""
    _require_separate(store.folder, folder.path)
    if not folder.data_file.exists():
        raise BadDataFile(f"There is no data file {folder.data_file}.")
    store.remove_unfinished()
    began_at = now()
    backup = _BackupRun(store, folder, _latest_files(store), now)
    files, missing = backup.copy()
    for _ in range(1, MAX_ARCHIVE_COPIES):
        if missing:
            files, missing = backup.copy()
    manifest = Manifest(
        id=backup_id(began_at),
        began_at=began_at,
        ended_at=now(),
        data=str(folder.path.absolute()),
        version=version,
        files=files,
        missing=sorted(missing),
    )
    store.add_manifest(manifest)
    return manifest


def _require_separate(backups: Path, data: Path) -> None:
    first, second = backups.resolve(), data.resolve()
    if first == second or first in second.parents or second in first.parents:
        raise BackupFailed(f"A backup needs a folder of its own: {backups} and {data} are one in the other.")


def _latest_files(store: BackupStore) -> Mapping[str, StoredFile]:
    """The files of the latest readable backup, by path."""
    for each in reversed(store.ids()):
        with suppress(BackupFailed):
            return {file.path: file for file in store.read_manifest(each).files}
    return {}


class _BackupRun(Struct, frozen=True):
    """A backup that is being taken."""

    store: BackupStore
    folder: DataFolder
    known: Mapping[str, StoredFile]
    now: Callable[[], datetime]

    def copy(self) -> tuple[Sequence[StoredFile], Sequence[str]]:
        """Copy all parts of the folder, and return the copied files and the keys of missing archive objects."""
        for _ in range(MAX_TABLE_COPIES):
            versions = self.folder.table_versions()
            others = self._copy_other_files()
            with open_snapshot(self.folder.data_file) as snapshot:
                if self.folder.table_versions() != versions:
                    continue
                keys = snapshot.archive_keys() if self.folder.archives_here else ()
                copied = self._copy_data_file_mark_and_key(snapshot)
            archived, missing = self._copy_archive(sorted(keys))
            return [*others, *copied, *archived], missing
        raise BackupFailed(f"Jobs change the tables in {self.folder.path} all the time: stop them for the backup.")

    def _copy_other_files(self) -> Sequence[StoredFile]:
        found = (self._copy_if_there(path) for path in self.folder.other_files())
        return [file for file in found if file is not None]

    def _copy_data_file_mark_and_key(self, snapshot: Snapshot) -> Sequence[StoredFile]:
        copy = self.store.unfinished_path()
        copy.unlink(missing_ok=True)
        try:
            snapshot.copy_to(copy)
            data = self.store.add_file(copy, DATA_FILE)
        finally:
            copy.unlink(missing_ok=True)
        mark = self.store.add_content(mark_content(snapshot.mark(self.now())), MARK, self.now())
        key = self._copy_if_there(self.folder.path / KEY)
        return [data, mark, *([] if key is None else [key])]

    def _copy_archive(self, keys: Sequence[str]) -> tuple[Sequence[StoredFile], Sequence[str]]:
        files, missing = [], []
        for key in keys:
            file = self._copy_if_there(self.folder.path / ARCHIVE / key)
            if file is None:
                missing.append(key)
            else:
                files.append(file)
        return files, missing

    def _copy_if_there(self, path: Path) -> StoredFile | None:
        name = path.relative_to(self.folder.path).as_posix()
        try:
            return self.store.add_file(path, name, self.known.get(name))
        except FileNotFoundError:
            return None
