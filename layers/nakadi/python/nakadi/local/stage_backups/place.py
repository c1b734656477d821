"""The place of backups of a stage, which is a folder or a bucket.

    <stage>/backups/<id>.json             one backup: the names of its pieces; written last
    <stage>/pieces/<SHA-256>.json.gz      items of a table, or a list of archive objects
    <stage>/archive/<key>                 an object of the archive, which never changes
    <stage>/tables/<key>                  a file of an Iceberg table, which never changes either

Without a file in `backups`, there is no backup. Later backups store only new objects.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import asdict

from nakadi.common.converting import Converter
from nakadi.engines.archive.stores import folder_of_archive, open_archive
from nakadi.local.backups.store import MANIFEST_SUFFIX, BackupFailed
from nakadi.model.log_index import ArchiveLocation
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore

FORMAT = 2
"""No released version wrote format 1, which had no Iceberg tables."""

PIECE_BYTES = 4 << 20
BYTES_PER_READ = 16 << 20

Item = Mapping[str, Mapping[str, Any]]
"""An item as DynamoDB has it: `{"name": {"S": "text"}}`."""


class CopiedObject(Struct, frozen=True):
    """An object of a bucket in a backup."""

    key: str
    size: int
    checksum: str


class CopiedTable(Struct, frozen=True):
    """An Iceberg table in a backup: its entry in Glue's catalog, and its description, which was at `location` in a
    bucket with the URL `bucket`.
    """

    name: str
    entry: Mapping[str, Any]
    bucket: str
    location: str
    metadata: Mapping[str, Any]


class StageManifest(Struct, frozen=True, kw_only=True):
    """The contents of a backup. It includes everything that was acknowledged before `began_at`.

    The tables of DynamoDB and the lists of `objects`, of Iceberg `tables` and of their `table_files` are in pieces.
    `missing` are the keys of archive objects that the stage did not have.
    """

    id: str
    stage: str
    region: str
    began_at: datetime
    ended_at: datetime
    version: str
    documents: Sequence[str]
    coordination: Sequence[str]
    log_index: Sequence[str]
    objects: Sequence[str]
    event_types: int
    archived_bytes: int
    missing: Sequence[str] = ()
    tables: Sequence[str] = ()
    table_files: Sequence[str] = ()
    table_bytes: int = 0
    format: int = FORMAT


_manifests = Converter(StageManifest)


class ObjectFolder(Struct, frozen=True):
    """The copies of a bucket's objects, below `prefix`. `noun` is what messages call an object."""

    store: ArchiveStore
    prefix: str
    noun: str

    def sizes(self) -> Mapping[str, int]:
        """The objects that are already stored, with their sizes."""
        return {each.key.removeprefix(self.prefix): each.size for each in self.store.list_objects(self.prefix)}

    def add(self, key: str, content: bytes) -> CopiedObject:
        self.store.put(self.prefix + key, content)
        return CopiedObject(key, len(content), _checksum(content))

    def read(self, copied: CopiedObject) -> bytes:
        """Raises `BackupFailed` if the object is damaged or missing."""
        try:
            content = read_whole_object(self.store, self.prefix + copied.key)
        except ArchiveObjectGone:
            content = b""
        if _checksum(content) != copied.checksum:
            raise BackupFailed(f"The {self.noun} {copied.key} is damaged in the backup, or missing.")
        return content

    def put_aside(self, copied: CopiedObject) -> None:
        """Remove a damaged object, so that the next backup stores it again."""
        self.store.remove([self.prefix + copied.key])

    def keep_only(self, keys: Collection[str]) -> None:
        self.store.remove([self.prefix + key for key in self.sizes() if key not in keys])


class BackupPlace:
    """The backups of one stage; `open_place` opens them."""

    def __init__(self, store: ArchiveStore, where: str, stage: str) -> None:
        self.archive = ObjectFolder(store, f"{stage}/archive/", "archive object")
        self.tables = ObjectFolder(store, f"{stage}/tables/", "table file")
        self._store = store
        self._where = where
        self._stage = stage

    def ids(self) -> Sequence[str]:
        """The complete backups, the oldest first."""
        folder = f"{self._stage}/backups/"
        keys = [each.key for each in self._store.list_objects(folder) if each.key.endswith(MANIFEST_SUFFIX)]
        return sorted(key.removeprefix(folder).removesuffix(MANIFEST_SUFFIX) for key in keys)

    def newest(self) -> str:
        ids = self.ids()
        if not ids:
            raise BackupFailed(f"{self._where} has no complete backup of {self._stage}.")
        return ids[-1]

    def read_manifest(self, backup_id: str) -> StageManifest:
        content = self._read(self._manifest_key(backup_id))
        if content is None:
            raise BackupFailed(f"{self._where} has no complete backup {backup_id} of {self._stage}.")
        checksum, _, text = content.partition(b"\n")
        if checksum.decode(errors="replace") != _checksum(text):
            raise BackupFailed(f"The list of the backup {backup_id} is damaged.")
        found = msgspec.json.decode(text)
        if (its_format := found.get("format")) != FORMAT:
            raise BackupFailed(f"The backup {backup_id} has format {its_format}, but this version reads {FORMAT}.")
        return _manifests.from_builtins(found)

    def add_manifest(self, manifest: StageManifest) -> None:
        """Complete the backup by storing its manifest."""
        text = msgspec.json.encode(manifest)
        self._store.put(self._manifest_key(manifest.id), _checksum(text).encode() + b"\n" + text)

    def add_rows(self, rows: Iterable[object]) -> Sequence[str]:
        """Store rows in pieces, and return the names of the pieces."""
        names, waiting, size = [], list[bytes](), 0
        for row in rows:
            waiting.append(orjson.dumps(row, default=_binary_as_text))
            size += len(waiting[-1])
            if size >= PIECE_BYTES:
                names.append(self._add_piece(waiting))
                waiting, size = [], 0
        return [*names, self._add_piece(waiting)] if waiting else names

    def read_items(self, pieces: Sequence[str]) -> Iterator[Item]:
        """The items of a table. Raises `BackupFailed` at a damaged piece."""
        for row in self._read_rows(pieces):
            yield {name: {"B": base64.b64decode(value["B"])} if "B" in value else value for name, value in row.items()}

    def read_groups(self, pieces: Sequence[str]) -> Iterator[tuple[str, Sequence[Item]]]:
        """The items of the log index, by their partition keys."""
        for partition_key, items in groupby(self.read_items(pieces), lambda item: str(item["place"]["S"])):
            yield partition_key, list(items)

    def read_objects(self, pieces: Sequence[str]) -> Iterator[CopiedObject]:
        yield from (CopiedObject(**row) for row in self._read_rows(pieces))

    def read_tables(self, manifest: StageManifest) -> Iterator[CopiedTable]:
        yield from (CopiedTable(**row) for row in self._read_rows(manifest.tables))

    def remove_backups(self, backup_ids: Collection[str]) -> None:
        """Remove backups, and the pieces and objects that no other backup needs. Raises `BackupFailed` if one of these
        is damaged. The manifest of a backup is removed before its pieces, so an interruption leaves too many pieces,
        never too few.
        """
        kept = [self.read_manifest(each) for each in self.ids() if each not in backup_ids]
        archived = {each.key for manifest in kept for each in self.read_objects(manifest.objects)}
        table_files = {each.key for manifest in kept for each in self.read_objects(manifest.table_files)}
        pieces = {self._piece_key(name) for manifest in kept for name in _pieces_of(manifest)}
        self._store.remove([self._manifest_key(each) for each in backup_ids])
        there = [each.key for each in self._store.list_objects(f"{self._stage}/pieces/")]
        self._store.remove([key for key in there if key not in pieces])
        self.archive.keep_only(archived)
        self.tables.keep_only(table_files)

    def close(self) -> None:
        self._store.close()

    def _add_piece(self, rows: Sequence[bytes]) -> str:
        content = b"\n".join(rows)
        name = _checksum(content)
        self._store.put(self._piece_key(name), gzip.compress(content, 6, mtime=0))
        return name

    def _read_rows(self, pieces: Sequence[str]) -> Iterator[dict[str, Any]]:
        for name in pieces:
            packed = self._read(self._piece_key(name))
            try:
                content = gzip.decompress(packed or b"")
            except (OSError, EOFError, zlib.error):
                content = b""
            if _checksum(content) != name:
                raise BackupFailed(f"A piece of the backup is damaged, or missing: {name}.")
            yield from map(orjson.loads, content.splitlines())

    def _read(self, key: str) -> bytes | None:
        try:
            return read_whole_object(self._store, key)
        except ArchiveObjectGone:
            return None

    def _manifest_key(self, backup_id: str) -> str:
        return f"{self._stage}/backups/{backup_id}{MANIFEST_SUFFIX}"

    def _piece_key(self, name: str) -> str:
        return f"{self._stage}/pieces/{name}.json.gz"


def read_whole_object(store: ArchiveStore, key: str) -> bytes:
    """An object whose size is not known. Raises `ArchiveObjectGone`."""
    parts = [store.read_range(ArchiveLocation(key, 0, BYTES_PER_READ))]
    while len(parts[-1]) == BYTES_PER_READ:
        parts.append(store.read_range(ArchiveLocation(key, len(parts) * BYTES_PER_READ, BYTES_PER_READ)))
    return b"".join(parts)


def _pieces_of(manifest: StageManifest) -> Iterator[str]:
    yield from (*manifest.documents, *manifest.coordination, *manifest.log_index)
    yield from (*manifest.objects, *manifest.tables, *manifest.table_files)


@contextmanager
def open_place(where: str, stage: str, *, creates: bool = False) -> Iterator[BackupPlace]:
    """The backups of a stage in a folder or in `s3://bucket/prefix`. Raises `BackupFailed`."""
    folder = folder_of_archive(where)
    if folder is not None:
        if creates:
            # Only the owner may read the folder, because backups have every event.
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        if not folder.is_dir():
            raise BackupFailed(f"There is no folder {folder}.")
    place = BackupPlace(open_archive(where), where, stage)
    try:
        yield place
    finally:
        place.close()


def _binary_as_text(value: object) -> str | Mapping[str, Any]:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, CopiedObject | CopiedTable):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is in no item")


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
