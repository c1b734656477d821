"""Restores a backup into an empty stage of the same name, in another account or region.

The data stack is deployed first, and the other stacks after the restoration, so nothing else reads or writes the tables
meanwhile. A mark in the table of documents says that a restoration is not complete. It is written first and removed
last, so the same command finishes an interrupted restoration.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from nakadi.engines.dynamodb.log_index_keys import topic_key
from nakadi.engines.dynamodb.tables import COORDINATION_TABLE, DOCUMENTS_TABLE, LOG_INDEX_TABLE
from nakadi.local.backups.store import BackupFailed
from nakadi.local.stage_backups.contents import is_restored, topic_in_new_stream
from nakadi.local.stage_backups.place import BackupPlace, CopiedObject, StageManifest
from nakadi.local.stage_backups.stage import Stage
from nakadi.local.stage_backups.taking import COPYING_THREADS, read_contents

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
    for partition_key, items in place.read_groups(manifest.log_index):
        is_topic = partition_key.startswith(topic_key(""))
        stage.put(LOG_INDEX_TABLE, topic_in_new_stream(items) if is_topic else items)
    stage.put(COORDINATION_TABLE, place.read_items(manifest.coordination))
    stage.put(DOCUMENTS_TABLE, filter(is_restored, place.read_items(manifest.documents)))
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
            stage.archive.put(copied.key, place.read_object(copied))
        except BackupFailed as damage:
            if not accept_loss:
                raise
            return str(damage)
        return None

    with ThreadPoolExecutor(COPYING_THREADS) as threads:
        return [loss for loss in threads.map(restore, place.read_objects(manifest.objects)) if loss]
