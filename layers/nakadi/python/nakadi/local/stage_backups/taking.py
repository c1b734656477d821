"""Takes a backup of a stage while it runs.

The order makes the copy consistent:

1. The cursors of subscriptions: they must not be ahead of the log.
2. The documents, which name the topics.
3. The index of these topics, once it includes everything that was published before. By then, the archive also has these
   events, and nothing of the stream is needed.
4. The archive objects to which the copied index refers. They never change, and stay for a day after the last reference.

If the parts do not fit each other, because something changed meanwhile, everything but the objects is copied again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime

from msgspec import Struct

from nakadi.engines.dynamodb.log_index_keys import segments_key, topic_key
from nakadi.engines.dynamodb.tables import COORDINATION_TABLE, DOCUMENTS_TABLE, LOG_INDEX_TABLE
from nakadi.local.backups.store import BackupFailed, backup_id
from nakadi.local.stage_backups.contents import Contents, is_lasting
from nakadi.local.stage_backups.place import BackupPlace, CopiedObject, Item, StageManifest, read_whole_object
from nakadi.local.stage_backups.stage import Stage
from nakadi.ports.archive_store import ArchiveObjectGone

MAX_COPIES = 5
COPYING_THREADS = 16


def take_stage_backup(
    place: BackupPlace, stage: Stage, now: Callable[[], datetime], version: str
) -> tuple[StageManifest, Collection[str]]:
    """Take a backup of everything that was acknowledged before the call. Returns it with the storages that it leaves
    out.

    Raises `BackupFailed`.
    """
    return _BackupRun(place, stage, now, version, _latest_objects(place)).take()


def _latest_objects(place: BackupPlace) -> Mapping[str, CopiedObject]:
    """The objects of the latest readable backup, by key, as far as they still exist."""
    sizes = place.sizes_of_objects()
    for each in reversed(place.ids()):
        with suppress(BackupFailed):
            objects = place.read_objects(place.read_manifest(each).objects)
            return {copied.key: copied for copied in objects if sizes.get(copied.key) == copied.size}
    return {}


class _Tables(Struct, frozen=True):
    """The pieces of the three tables."""

    coordination: Sequence[str]
    documents: Sequence[str]
    log_index: Sequence[str]


class _BackupRun(Struct, frozen=True):
    """A backup that is being taken."""

    place: BackupPlace
    stage: Stage
    now: Callable[[], datetime]
    version: str
    known: Mapping[str, CopiedObject]

    def take(self) -> tuple[StageManifest, Collection[str]]:
        began_at = self.now()
        for attempt in range(1, MAX_COPIES + 1):
            contents = Contents()
            tables = self._copy_tables(contents)
            if contents.problem:
                continue
            objects, missing = self._copy_objects(sorted(contents.archive_keys))
            if not missing or attempt == MAX_COPIES:
                break
        else:
            raise BackupFailed(f"{contents.problem} It was so in {MAX_COPIES} copies.")
        manifest = StageManifest(
            id=backup_id(began_at),
            stage=self.stage.address.name,
            region=self.stage.address.region,
            began_at=began_at,
            ended_at=self.now(),
            version=self.version,
            documents=tables.documents,
            coordination=tables.coordination,
            log_index=tables.log_index,
            objects=self.place.add_rows(objects),
            event_types=len(contents.event_types),
            archived_bytes=sum(each.size for each in objects),
            missing=missing,
        )
        self.place.add_manifest(manifest)
        return manifest, contents.storages_elsewhere

    def _copy_tables(self, contents: Contents) -> _Tables:
        coordination = self.place.add_rows(self._coordination_items(contents))
        documents = self.place.add_rows(self._documents(contents))
        self.stage.wait_until_indexed(self.now(), self.now)
        return _Tables(coordination, documents, self.place.add_rows(self._index_items(contents)))

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
                # Records that name that topic belong to this one.
                waiting.append(topic.continues)
            for partition in range(topic.partitions):
                for item in self.stage.query(LOG_INDEX_TABLE, segments_key(name, partition)):
                    if contents.add_segment((name, partition), item):
                        yield item

    def _copy_objects(self, keys: Sequence[str]) -> tuple[Sequence[CopiedObject], Sequence[str]]:
        """Copy the archive objects that no earlier backup has, and return which are missing."""
        with ThreadPoolExecutor(COPYING_THREADS) as threads:
            found = list(threads.map(self._copy_object, keys))
        return (
            [copied for copied in found if copied is not None],
            [key for key, copied in zip(keys, found, strict=True) if copied is None],
        )

    def _copy_object(self, key: str) -> CopiedObject | None:
        if key in self.known:
            return self.known[key]
        try:
            content = read_whole_object(self.stage.archive, key)
        except ArchiveObjectGone:
            return None
        return self.place.add_object(key, content)


def find_damage(place: BackupPlace, backup_ids: Sequence[str]) -> Sequence[str]:
    """Read everything, and describe in sentences what is damaged or inconsistent.

    A damaged object is removed, so that the next backup stores it again.
    """
    damage, states = [], dict[CopiedObject, bool]()
    for each in backup_ids:
        try:
            manifest = place.read_manifest(each)
            contents = read_contents(place, manifest)
            objects = list(place.read_objects(manifest.objects))
        except BackupFailed as failure:
            damage.append(f"Backup {each}: {failure}")
            continue
        if contents.problem:
            damage.append(f"Backup {each}: {contents.problem}")
        lost = contents.archive_keys - {copied.key for copied in objects} - set(manifest.missing)
        damage += [f"Backup {each}: the archive object {key} is not in it." for key in sorted(lost)]
        for copied in objects:
            if copied not in states:
                states[copied] = _is_whole(place, copied)
            if not states[copied]:
                damage.append(f"Backup {each}: the archive object {copied.key} is damaged or missing.")
    return damage


def read_contents(place: BackupPlace, manifest: StageManifest) -> Contents:
    """The facts about a backup. Raises `BackupFailed` if a part of its tables is damaged."""
    contents = Contents()
    for item in place.read_items(manifest.coordination):
        contents.add_coordination_item(item)
    for item in place.read_items(manifest.documents):
        contents.add_document(item)
    for partition_key, items in place.read_groups(manifest.log_index):
        contents.add_index_items(partition_key, items)
    return contents


def _is_whole(place: BackupPlace, copied: CopiedObject) -> bool:
    try:
        place.read_object(copied)
    except BackupFailed:
        place.put_aside(copied)
        return False
    return True
