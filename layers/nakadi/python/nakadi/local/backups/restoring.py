"""Writes a backup into an empty data folder.

The mark is written first and the data file last: if the folder is not complete, the broker finds a mark without its
data file, and does not start.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nakadi.engines.sqlite.mark import check_against_mark
from nakadi.local.backups.store import UNFINISHED_SUFFIX, BackupFailed, BackupStore, Manifest, StoredFile, make_durable
from nakadi.local.backups.taking import DATA_FILE, MARK


def restore_backup(store: BackupStore, manifest: Manifest, data: Path, *, accept_loss: bool) -> Sequence[str]:
    """Restore a backup, and return which files are missing, as sentences. Raises `BackupFailed`.

    Damaged files are left out if the caller accepts that, except for the data file.
    """
    missing = [f"The archive object {key} was missing when the backup was made." for key in manifest.missing]
    if missing and not accept_loss:
        raise BackupFailed(f"{missing[0]} Add --accept-loss to restore the rest.")
    _require_empty(data)
    data.mkdir(parents=True, exist_ok=True)
    for file in sorted(manifest.files, key=_position):
        try:
            _write_file(store, file, data)
        except BackupFailed as damage:
            if not accept_loss or file.path in (DATA_FILE, MARK):
                raise BackupFailed(f"{damage} What was restored so far is in {data}, and is not complete.") from damage
            missing.append(str(damage))
    check_against_mark(data / DATA_FILE, accept_loss=False)
    return missing


def _require_empty(data: Path) -> None:
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise BackupFailed(f"{data} is not empty: restore into a new folder, or move this one away first.")


def _position(file: StoredFile) -> tuple[int, str]:
    return {MARK: 0, DATA_FILE: 2}.get(file.path, 1), file.path


def _write_file(store: BackupStore, file: StoredFile, data: Path) -> None:
    """Write a file under another name first, so that a file with its own name is always complete."""
    path = data / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED_SUFFIX)
    with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as target:
        try:
            for piece in store.read_file(file):
                target.write(piece)
        except BackupFailed:
            unfinished.unlink()
            raise
        os.fchmod(target.fileno(), file.mode)
        target.flush()
        os.fsync(target.fileno())
    # The file gets its original time, by which the next backup recognizes it as unchanged.
    os.utime(unfinished, ns=(file.modified_ns, file.modified_ns))
    unfinished.replace(path)
    make_durable(path.parent)
