"""Restoring: only into an empty folder, completely or not at all, with a mark that protects the restored data."""

import json
import shutil

import pytest

from nakadi.engines.sqlite.file import BadDataFile
from nakadi.engines.sqlite.mark import Marker, check_against_mark
from nakadi.local.backups import restoring
from nakadi.local.backups.restoring import restore_backup
from nakadi.local.backups.store import BackupFailed, open_store
from tests.support.backups import BusyFolder, count_in


@pytest.fixture
def folder(tmp_path):
    """A data folder that was backed up, with archived events and events in the data file."""
    busy = BusyFolder(tmp_path / "data")
    busy.publish(5)
    busy.archive()
    busy.publish(3)
    busy.marker.write_mark_if_changed()
    busy.back_up(tmp_path / "backups")
    yield busy
    busy.close()


@pytest.fixture
def backups(folder):
    return folder.path.parent / "backups"


def restore(backups, data, *, accept_loss=False):
    with open_store(backups, writes=False) as store:
        return restore_backup(store, store.read_manifest(store.ids()[-1]), data, accept_loss=accept_loss)


def mark_in(data):
    return {**json.loads((data / "nakadi.db.mark").read_bytes().partition(b"\n")[2]), "at": ""}


def damage(backups, path):
    """Change a byte of a file in the newest backup."""
    with open_store(backups, writes=False) as store:
        [file] = [each for each in store.read_manifest(store.ids()[-1]).files if each.path.startswith(path)][:1]
    piece = backups / "pieces" / file.pieces[-1][:2] / file.pieces[-1]
    content = bytearray(piece.read_bytes())
    content[-1] ^= 1
    piece.write_bytes(content)


def test_what_is_there_is_not_touched(folder, backups, tmp_path):
    """A folder that contains anything is refused as the target of a restoration, and stays unchanged; an empty folder
    counts as missing. (B6)
    """
    with pytest.raises(BackupFailed, match="is not empty"):
        restore(backups, folder.path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "something").touch()
    with pytest.raises(BackupFailed, match="is not empty"):
        restore(backups, tmp_path / "other")
    assert [each.name for each in (tmp_path / "other").iterdir()] == ["something"]

    (tmp_path / "empty").mkdir()
    restore(backups, tmp_path / "empty")
    assert count_in(tmp_path / "empty") == 8


def test_an_interrupted_restoration_does_not_start(backups, tmp_path, monkeypatch):
    """If a restoration was interrupted at any file, the broker does not accept the folder as a data folder. (B7)"""
    write, allowed = restoring._write_file, 0

    def interrupt(store, file, data):
        written.append(file)
        if len(written) > allowed:
            raise KeyboardInterrupt
        write(store, file, data)

    monkeypatch.setattr(restoring, "_write_file", interrupt)
    for allowed in range(1, 5):
        written, data = [], tmp_path / f"restored-{allowed}"
        with pytest.raises(KeyboardInterrupt):
            restore(backups, data)
        with pytest.raises(BadDataFile, match="is not there, and it was marked"):
            check_against_mark(data / "nakadi.db", accept_loss=False)


def test_a_restored_file_is_protected_from_its_first_new_mark_on(folder, backups, tmp_path):
    """A restored folder starts as it is; from then on, its mark protects it, even against the backup. (B8)"""
    data = tmp_path / "restored"
    restore(backups, data)
    shutil.copy(data / "nakadi.db", tmp_path / "older.db")
    assert check_against_mark(data / "nakadi.db", accept_loss=False) == 0
    assert mark_in(data) == mark_in(folder.path)
    marker = Marker(data / "nakadi.db", folder.clock.now)
    marker.write_mark_if_changed()
    marker.close()

    assert check_against_mark(data / "nakadi.db", accept_loss=False) == 0
    shutil.copy(tmp_path / "older.db", data / "nakadi.db")
    with pytest.raises(BadDataFile, match="has less than it had"):
        check_against_mark(data / "nakadi.db", accept_loss=False)


def test_a_backup_is_not_put_beside_a_newer_mark(folder, backups, tmp_path):
    """A data file from a backup is not accepted in place of the one that was in use until now. (B8)"""
    restore(backups, tmp_path / "restored")
    folder.publish(1)
    folder.close()
    shutil.copy(tmp_path / "restored" / "nakadi.db", folder.path / "nakadi.db")

    with pytest.raises(BadDataFile, match="has less than it had"):
        check_against_mark(folder.path / "nakadi.db", accept_loss=False)


def test_damage_is_noticed(backups, tmp_path):
    """Files that have changed in a backup are not restored; if the operator accepts the loss, all others are. (B12)"""
    damage(backups, "archive/")
    with pytest.raises(BackupFailed, match=r"archive/.* is damaged in the backup"):
        restore(backups, tmp_path / "first")
    with pytest.raises(BadDataFile):
        check_against_mark(tmp_path / "first" / "nakadi.db", accept_loss=False)

    [loss] = restore(backups, tmp_path / "second", accept_loss=True)

    assert "is damaged in the backup" in loss
    assert (tmp_path / "second" / "nakadi.db").exists()


def test_a_damaged_data_file_cannot_be_accepted(backups, tmp_path):
    """A backup whose data file or mark is damaged is not restored, even if the operator accepts the loss. (B12)"""
    damage(backups, "nakadi.db.mark")

    with pytest.raises(BackupFailed, match=r"nakadi\.db\.mark is damaged"):
        restore(backups, tmp_path / "restored", accept_loss=True)


def test_the_next_backup_knows_restored_files(folder, backups, tmp_path):
    """A restored file has its old modification time, so the next backup does not read it again. (B3)"""
    restore(backups, tmp_path / "restored")

    [old] = (folder.path / "archive").rglob("*.gz")
    [new] = (tmp_path / "restored" / "archive").rglob("*.gz")
    assert new.stat().st_mtime_ns == old.stat().st_mtime_ns
