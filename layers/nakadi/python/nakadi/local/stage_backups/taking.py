"""Takes a backup of a stage while it runs.

The order makes the copy consistent:

1. The cursors of subscriptions: they must not be ahead of the log.
2. The documents, which name the topics, and what jobs have reported about Iceberg tables.
3. The descriptions of Iceberg tables: they must not be ahead of the log.
4. The index of these topics, once it includes everything that was published before. By then, the archive also has these
   events, so nothing has to be read from the stream.
5. The archive objects to which the copied index refers, and the files that the descriptions of tables name. They never
   change, and stay for a day after the last reference, unless an erasure removes them.

If the parts do not fit each other, because something changed meanwhile, everything but the objects is copied again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime

import msgspec
from msgspec import Struct

from nakadi.engines.dynamodb.log_index_keys import segments_key, topic_key
from nakadi.engines.dynamodb.tables import COORDINATION_TABLE, DOCUMENTS_TABLE, LOG_INDEX_TABLE
from nakadi.local.backups.store import BackupFailed, backup_id
from nakadi.local.stage_backups.contents import Contents, is_lasting
from nakadi.local.stage_backups.iceberg import CannotMove, key_in, read_table
from nakadi.local.stage_backups.place import (
    BackupPlace,
    CopiedObject,
    CopiedTable,
    Item,
    ObjectFolder,
    StageManifest,
    read_whole_object,
)
from nakadi.local.stage_backups.stage import Stage
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore

MAX_COPIES = 5
COPYING_THREADS = 16

TABLE_COPYING_THREADS = 2
"""There are few threads, because files of tables may have half a gigabyte each."""


def take_stage_backup(
    place: BackupPlace, stage: Stage, now: Callable[[], datetime], version: str
) -> tuple[StageManifest, Sequence[str]]:
    """Take a backup of everything that was acknowledged before the call. Return the backup's manifest, and sentences
    about what the backup leaves out.

    Raises `BackupFailed`.
    """
    return _BackupRun(place, stage, now, version).take()


class _Copier(Struct, frozen=True):
    """Copies the objects of a bucket that are not `known` from earlier backups, or from an earlier attempt."""

    source: ArchiveStore
    target: ObjectFolder
    known: dict[str, CopiedObject]
    threads: int

    def copy(self, keys: Sequence[str]) -> tuple[Sequence[CopiedObject], Sequence[str]]:
        """Copy objects, and return them with the keys of those that are missing."""
        with ThreadPoolExecutor(self.threads) as threads:
            found = list(threads.map(self._copy_object, keys))
        return (
            [copied for copied in found if copied is not None],
            [key for key, copied in zip(keys, found, strict=True) if copied is None],
        )

    def _copy_object(self, key: str) -> CopiedObject | None:
        if key in self.known:
            return self.known[key]
        try:
            content = read_whole_object(self.source, key)
        except ArchiveObjectGone:
            return None
        copied = self.known[key] = self.target.add(key, content)
        return copied


def _known_objects(
    place: BackupPlace, folder: ObjectFolder, pieces: Callable[[StageManifest], Sequence[str]]
) -> dict[str, CopiedObject]:
    """The objects of the latest readable backup, by key, as far as they still exist."""
    sizes = folder.sizes()
    for each in reversed(place.ids()):
        with suppress(BackupFailed):
            objects = place.read_objects(pieces(place.read_manifest(each)))
            return {copied.key: copied for copied in objects if sizes.get(copied.key) == copied.size}
    return {}


class _Copy(Struct, frozen=True, kw_only=True):
    """The pieces of the three tables of DynamoDB, and their contents; the objects of the archive, and the keys of those
    that are missing; the Iceberg tables with their files, and why the backup leaves out others.
    """

    contents: Contents
    coordination: Sequence[str]
    documents: Sequence[str]
    log_index: Sequence[str]
    objects: Sequence[CopiedObject]
    missing: Sequence[str]
    tables: Sequence[CopiedTable]
    table_files: Sequence[CopiedObject]
    left_out: Sequence[str]


class _ChangedMeanwhile(Exception):
    """Raised with a sentence about what changed during the copy, so that its parts do not fit each other."""


class _BackupRun(Struct, frozen=True):
    """A backup that is being taken."""

    place: BackupPlace
    stage: Stage
    now: Callable[[], datetime]
    version: str

    def take(self) -> tuple[StageManifest, Sequence[str]]:
        began_at = self.now()
        self.stage.require_stream()
        copy = self._copy_until_consistent()
        manifest = StageManifest(
            id=backup_id(began_at),
            stage=self.stage.address.name,
            region=self.stage.address.region,
            began_at=began_at,
            ended_at=self.now(),
            version=self.version,
            documents=copy.documents,
            coordination=copy.coordination,
            log_index=copy.log_index,
            objects=self.place.add_rows(copy.objects),
            event_types=len(copy.contents.event_types),
            archived_bytes=sum(each.size for each in copy.objects),
            missing=copy.missing,
            tables=self.place.add_rows(copy.tables),
            table_files=self.place.add_rows(copy.table_files),
            table_bytes=sum(each.size for each in copy.table_files),
        )
        self.place.add_manifest(manifest)
        elsewhere = (
            f"It has none of the events in the storage {storage}, which is in Kafka."
            for storage in sorted(copy.contents.storages_elsewhere)
        )
        return manifest, [*elsewhere, *copy.left_out]

    def _copy_until_consistent(self) -> _Copy:
        place, stage, problem = self.place, self.stage, ""
        objects = _known_objects(place, place.archive, lambda manifest: manifest.objects)
        archive = _Copier(stage.archive, place.archive, objects, COPYING_THREADS)
        files = _known_objects(place, place.tables, lambda manifest: manifest.table_files)
        tables = _Copier(stage.table_files, place.tables, files, TABLE_COPYING_THREADS)
        for attempt in range(1, MAX_COPIES + 1):
            try:
                return self._copy(archive, tables, may_miss_objects=attempt == MAX_COPIES)
            except _ChangedMeanwhile as change:
                problem = str(change)
        raise BackupFailed(f"{problem} It was so in {MAX_COPIES} copies.")

    def _copy(self, archive: _Copier, table_files: _Copier, *, may_miss_objects: bool) -> _Copy:
        """Copy everything in the order of this module's description. Raises `_ChangedMeanwhile`."""
        contents = Contents()
        coordination = self.place.add_rows(self._coordination_items(contents))
        documents = self.place.add_rows(self._documents(contents))
        tables, keys, left_out = self._find_iceberg_tables()
        self.stage.wait_until_indexed(self.now(), self.now)
        log_index = self.place.add_rows(self._index_items(contents))
        if contents.problem:
            raise _ChangedMeanwhile(contents.problem)
        objects, missing = archive.copy(sorted(contents.archive_keys))
        files, gone = table_files.copy(keys)
        if gone:
            raise _ChangedMeanwhile(_removal_message(gone[0]))
        if missing and not may_miss_objects:
            raise _ChangedMeanwhile(f"The archive object {missing[0]} was removed meanwhile.")
        return _Copy(
            contents=contents,
            coordination=coordination,
            documents=documents,
            log_index=log_index,
            objects=objects,
            missing=missing,
            tables=tables,
            table_files=files,
            left_out=left_out,
        )

    def _find_iceberg_tables(self) -> tuple[Sequence[CopiedTable], Sequence[str], Sequence[str]]:
        """The Iceberg tables, the keys of their files, and why others are left out."""
        tables, keys, left_out = [], dict[str, None](), []
        bucket = self.stage.tables_url
        for each in self.stage.catalog_tables():
            try:
                metadata = msgspec.json.decode(self._read_table_file(key_in(each.location, bucket)))
                files = read_table(metadata, bucket, self._read_table_file)
            except CannotMove as reason:
                left_out.append(f"It does not have the table {each.name}: {reason}.")
                continue
            tables.append(CopiedTable(each.name, each.entry, bucket, each.location, metadata))
            keys |= dict.fromkeys(files.keys)
        return tables, list(keys), left_out

    def _read_table_file(self, key: str) -> bytes:
        try:
            return read_whole_object(self.stage.table_files, key)
        except ArchiveObjectGone as error:
            raise _ChangedMeanwhile(_removal_message(key)) from error

    def _coordination_items(self, contents: Contents) -> Iterator[Item]:
        for item in filter(is_lasting, self.stage.scan(COORDINATION_TABLE)):
            contents.add_coordination_item(item)
            yield item

    def _documents(self, contents: Contents) -> Iterator[Item]:
        for item in self.stage.scan(DOCUMENTS_TABLE):
            contents.add_document(item)
            yield item

    def _index_items(self, contents: Contents) -> Iterator[Item]:
        waiting, seen = list(contents.topics()), set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            items = list(self.stage.query(LOG_INDEX_TABLE, topic_key(name)))
            topic = contents.add_topic(name, items)
            if topic is None:
                continue
            yield from items
            if topic.continues is not None:
                # That topic is also copied, because records that name it belong to this topic.
                waiting.append(topic.continues)
            for partition in range(topic.partitions):
                for item in self.stage.query(LOG_INDEX_TABLE, segments_key(name, partition)):
                    if contents.add_segment((name, partition), item):
                        yield item


def _removal_message(key: str) -> str:
    return f"A job has removed {key} of a table meanwhile."


def find_damage(place: BackupPlace, backup_ids: Sequence[str]) -> Sequence[str]:
    """Read everything, and describe in sentences what is damaged or inconsistent.

    A damaged object is removed, so that the next backup stores it again.
    """
    damage, states = [], dict[tuple[str, CopiedObject], bool]()
    for each in backup_ids:
        try:
            manifest = place.read_manifest(each)
            contents = read_contents(place, manifest)
            objects = list(place.read_objects(manifest.objects))
            tables, table_files = list(place.read_tables(manifest)), list(place.read_objects(manifest.table_files))
        except BackupFailed as failure:
            damage.append(f"Backup {each}: {failure}")
            continue
        if contents.problem:
            damage.append(f"Backup {each}: {contents.problem}")
        lost = contents.archive_keys - {copied.key for copied in objects} - set(manifest.missing)
        damage += [f"Backup {each}: the archive object {key} is not in it." for key in sorted(lost)]
        for folder, copied in (
            *((place.archive, copied) for copied in objects),
            *((place.tables, copied) for copied in table_files),
        ):
            known = (folder.prefix, copied)
            if known not in states:
                states[known] = _is_whole(folder, copied)
            if not states[known]:
                damage.append(f"Backup {each}: the {folder.noun} {copied.key} is damaged or missing.")
        damage += [f"Backup {each}: {problem}" for problem in _problems_of_tables(place, tables, table_files)]
    return damage


def _problems_of_tables(
    place: BackupPlace, tables: Sequence[CopiedTable], copied_files: Sequence[CopiedObject]
) -> Iterator[str]:
    read = table_file_reader(place, copied_files)
    there = {copied.key for copied in copied_files}
    for table in tables:
        try:
            files = read_table(table.metadata, table.bucket, read)
        except (BackupFailed, CannotMove) as reason:
            yield f"the table {table.name} cannot be read: {reason}"
            continue
        for key in sorted({*files.keys} - there):
            yield f"the file {key} of the table {table.name} is not in it."


def table_file_reader(place: BackupPlace, copied_files: Iterable[CopiedObject]) -> Callable[[str], bytes]:
    """A function that reads the copied file with a key. It raises `BackupFailed` for damaged and missing files."""
    by_key = {copied.key: copied for copied in copied_files}

    def read(key: str) -> bytes:
        if key not in by_key:
            raise BackupFailed(f"The table file {key} is not in the backup.")
        return place.tables.read(by_key[key])

    return read


def read_contents(place: BackupPlace, manifest: StageManifest) -> Contents:
    """The contents of a backup, for checking. Raises `BackupFailed` if a piece of its tables is damaged."""
    contents = Contents()
    for item in place.read_items(manifest.coordination):
        contents.add_coordination_item(item)
    for item in place.read_items(manifest.documents):
        contents.add_document(item)
    for partition_key, items in place.read_groups(manifest.log_index):
        contents.add_index_items(partition_key, items)
    return contents


def _is_whole(folder: ObjectFolder, copied: CopiedObject) -> bool:
    try:
        folder.read(copied)
    except BackupFailed:
        folder.put_aside(copied)
        return False
    return True
