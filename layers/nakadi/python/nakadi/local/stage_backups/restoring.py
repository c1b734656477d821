"""Restores a backup into an empty stage of the same name, in another account or region.

The data stack is deployed first, and the other stacks after the restoration, so nothing else reads or writes the tables
meanwhile. A mark in the table of documents says that a restoration is not complete. It is written first and removed
last, so the same command finishes an interrupted restoration.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from nakadi.engines.dynamodb.log_index_keys import topic_key
from nakadi.engines.dynamodb.tables import COORDINATION_TABLE, DOCUMENTS_TABLE, LOG_INDEX_TABLE
from nakadi.local.backups.store import BackupFailed
from nakadi.local.stage_backups.contents import is_restored, topic_in_new_stream
from nakadi.local.stage_backups.iceberg import (
    CannotMove,
    ReadFile,
    metadata_bytes,
    moved_files,
    moved_metadata,
    read_table,
)
from nakadi.local.stage_backups.place import BackupPlace, CopiedObject, CopiedTable, StageManifest
from nakadi.local.stage_backups.stage import CatalogTable, Stage
from nakadi.local.stage_backups.taking import (
    COPYING_THREADS,
    TABLE_COPYING_THREADS,
    read_contents,
    table_file_reader,
)

MARK_KIND = "restorations"


def restore_stage(place: BackupPlace, manifest: StageManifest, stage: Stage, *, accept_loss: bool) -> Sequence[str]:
    """Restore a backup, and describe in sentences what is missing. Raises `BackupFailed`."""
    missing = [f"The archive object {key} was missing when the backup was made." for key in manifest.missing]
    if missing and not accept_loss:
        raise BackupFailed(f"{missing[0]} Add --accept-loss to restore the rest.")
    if problem := read_contents(place, manifest).problem:
        raise BackupFailed(f"The backup {manifest.id} is not consistent: {problem}")
    mark = {"kind": {"S": MARK_KIND}, "key": {"S": manifest.id}}
    _require_empty(stage, mark)
    stage.put(DOCUMENTS_TABLE, [mark])
    missing += _restore_objects(place, manifest, stage, accept_loss=accept_loss)
    tables, lost_tables = _restore_iceberg_tables(place, manifest, stage, accept_loss=accept_loss)
    missing += lost_tables
    for partition_key, items in place.read_groups(manifest.log_index):
        is_topic = partition_key.startswith(topic_key(""))
        stage.put(LOG_INDEX_TABLE, topic_in_new_stream(items) if is_topic else items)
    stage.put(COORDINATION_TABLE, place.read_items(manifest.coordination))
    documents = place.read_items(manifest.documents)
    stage.put(DOCUMENTS_TABLE, (document for document in documents if is_restored(document, tables)))
    stage.remove(DOCUMENTS_TABLE, mark)
    return missing


def _require_empty(stage: Stage, mark: dict[str, dict[str, str]]) -> None:
    if stage.find(DOCUMENTS_TABLE, mark) is not None:
        return
    if table := stage.first_table_with_items():
        raise BackupFailed(
            f"The table {table} is not empty: restore into a stage of which only the data stack was deployed."
        )


def _restore_objects(place: BackupPlace, manifest: StageManifest, stage: Stage, *, accept_loss: bool) -> Sequence[str]:
    def restore(copied: CopiedObject) -> str | None:
        try:
            stage.archive.put(copied.key, place.archive.read(copied))
        except BackupFailed as damage:
            if not accept_loss:
                raise
            return str(damage)
        return None

    with ThreadPoolExecutor(COPYING_THREADS) as threads:
        return [loss for loss in threads.map(restore, place.read_objects(manifest.objects)) if loss]


def _restore_iceberg_tables(
    place: BackupPlace, manifest: StageManifest, stage: Stage, *, accept_loss: bool
) -> tuple[Collection[str], Sequence[str]]:
    """Restore the Iceberg tables, and return the names of the restored ones, with sentences about the others.

    A table appears in the catalog when all of its files are there.
    """
    read = table_file_reader(place, place.read_objects(manifest.table_files))
    restored, losses = set(), []
    for table in place.read_tables(manifest):
        try:
            _restore_iceberg_table(table, stage, read)
        except (BackupFailed, CannotMove) as reason:
            if not accept_loss:
                raise BackupFailed(f"The table {table.name} cannot be restored: {reason}") from reason
            losses.append(f"The table {table.name} is not restored: {reason}")
        else:
            restored.add(table.name)
    return restored, losses


def _restore_iceberg_table(table: CopiedTable, stage: Stage, read: ReadFile) -> None:
    old, new = table.bucket, stage.tables_url
    files = read_table(table.metadata, old, read)

    def copy(key: str) -> None:
        stage.table_files.put(key, read(key))

    with ThreadPoolExecutor(TABLE_COPYING_THREADS) as threads:
        list(threads.map(copy, files.data_files))
    for key, content in moved_files(files, read, old, new):
        stage.table_files.put(key, content)
    metadata, key = moved_metadata(table.metadata, old, new), table.location.removeprefix(old)
    stage.table_files.put(key, metadata_bytes(metadata))
    storage = {**table.entry.get("StorageDescriptor", {}), "Location": metadata["location"]}
    stage.add_catalog_table(CatalogTable(table.name, new + key, {**table.entry, "StorageDescriptor": storage}))
