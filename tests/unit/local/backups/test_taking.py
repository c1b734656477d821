"""The contents of a backup, all as of one moment."""

import os
import threading

import pytest

from nakadi.engines.sqlite.file import BadDataFile
from nakadi.local.backups import taking
from nakadi.local.backups.restoring import restore_backup
from nakadi.local.backups.store import PIECE_BYTES, BackupFailed, BackupStore, open_store
from nakadi.local.backups.taking import DataFolder, take_backup
from tests.support.backups import TOPIC, BusyFolder, count_in


@pytest.fixture
def busy(tmp_path):
    folder = BusyFolder(tmp_path / "data")
    yield folder
    folder.close()


@pytest.fixture
def backups(tmp_path):
    return tmp_path / "backups"


def restore(backups, data, *, accept_loss=False):
    with open_store(backups, writes=False) as store:
        restore_backup(store, store.read_manifest(store.ids()[-1]), data, accept_loss=accept_loss)


def paths(manifest):
    return {file.path for file in manifest.files}


def test_a_backup_during_publishing_has_all_earlier_acknowledged_events(busy, backups, tmp_path):
    """A backup has the events that were acknowledged before it began, and perhaps some later ones, without a gap.
    (B1)"""
    done = threading.Event()
    published = []

    def publish():
        while not done.is_set():
            busy.publish(1)
            published.append(1)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for number in range(3):
            while len(published) < 20 * (number + 1):
                done.wait(0.001)
            before = len(published)
            busy.back_up(backups)
            after = len(published) + 1
            restore(backups, tmp_path / f"restored-{number}")
            assert before <= count_in(tmp_path / f"restored-{number}") <= after
    finally:
        done.set()
        publisher.join()


def test_a_backup_has_the_archive_objects_of_its_data_file(busy, backups, tmp_path):
    """The archive objects in a backup are exactly those to which its data file refers. (B2)"""
    busy.publish(5)
    busy.archive()
    busy.publish(3)
    (busy.path / "archive" / "log" / "left-over.json.gz").write_bytes(b"no one refers to it")

    manifest = busy.back_up(backups)

    assert {path for path in paths(manifest) if path.startswith("archive/")} == {
        f"archive/{key}" for key in busy.log._index.referenced_archive_keys()
    }
    restore(backups, tmp_path / "restored")
    assert count_in(tmp_path / "restored") == 8


def test_a_backup_has_the_key_and_the_tables_but_no_files_of_sqlite(busy, backups, tmp_path):
    """A backup has the key and whatever else is in the folder; only the owner may read the backup and the key. (B10)"""
    manifest = busy.back_up(backups)

    assert paths(manifest) == {
        "nakadi.db",
        "nakadi.db.mark",
        "nakadi.db.key",
        "tables/nakadi/orders/metadata/v1.metadata.json",
    }
    restore(backups, tmp_path / "restored")
    key = tmp_path / "restored" / "nakadi.db.key"
    assert key.read_bytes() == (busy.path / "nakadi.db.key").read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    assert backups.stat().st_mode & 0o777 == 0o700


def test_a_second_backup_stores_what_is_new(busy, backups):
    """Data that the previous backup has are not stored again, and files that have not changed are not read again.
    (B3)"""
    busy.publish(40, size=100_000)
    busy.archive()
    busy.publish(40, size=100_000)
    first = busy.back_up(backups)
    assert first.size > 7_000_000
    busy.publish(1)
    [archived] = (busy.path / "archive").rglob("*.gz")
    found = archived.stat()
    archived.write_bytes(bytes(found.st_size))
    os.utime(archived, ns=(found.st_atime_ns, found.st_mtime_ns))

    with open_store(backups, writes=True) as store:
        busy.clock.move(1)
        second = take_backup(store, DataFolder(busy.path), busy.clock.now, "1.2.3")

    assert store.new_bytes <= 3 * PIECE_BYTES
    assert [each for each in second.files if each.path.startswith("archive/")] == [
        each for each in first.files if each.path.startswith("archive/")
    ]


def test_an_interrupted_backup_is_none(busy, backups, tmp_path, monkeypatch):
    """An attempt without its last step is not a backup, and the previous backup stays. (B4)"""
    busy.publish(3)
    busy.back_up(backups)
    busy.publish(4)
    add, steps = BackupStore._add_piece, []

    def interrupt(store, content):
        steps.append(1)
        if len(steps) == allowed:
            raise KeyboardInterrupt
        return add(store, content)

    allowed = 0
    monkeypatch.setattr(BackupStore, "_add_piece", interrupt)
    for allowed in (1, 2, 3):
        steps.clear()
        busy.commit_to_table(10 + allowed)
        with pytest.raises(KeyboardInterrupt):
            busy.back_up(backups)
    monkeypatch.undo()

    restore(backups, tmp_path / "restored")
    assert count_in(tmp_path / "restored") == 3
    (backups / "data.unfinished").write_bytes(b"left by a kill")
    busy.back_up(backups)
    assert sorted(each.name for each in backups.iterdir()) == ["backups", "lock", "pieces"]
    restore(backups, tmp_path / "again")
    assert count_in(tmp_path / "again") == 7


def test_tables_are_not_newer_than_the_log(busy, backups, monkeypatch):
    """If a job commits to a table while the backup is taken, the tables are copied again, before the log. (B11)"""
    open_snapshot, commits = taking.open_snapshot, iter([2, 3])

    def open_after_commit(path):
        if (version := next(commits, None)) is not None:
            busy.commit_to_table(version)
        return open_snapshot(path)

    monkeypatch.setattr(taking, "open_snapshot", open_after_commit)

    tables = {path.rpartition("/")[2] for path in paths(busy.back_up(backups)) if path.startswith("tables/")}
    assert tables == {"v1.metadata.json", "v2.metadata.json", "v3.metadata.json"}


def test_tables_that_change_all_the_time_are_an_error(busy, backups, monkeypatch):
    """If tables change all the time, the backup fails instead of trying for ever, and the error says what to stop.
    (B11)
    """
    open_snapshot, versions = taking.open_snapshot, iter(range(2, 100))

    def open_after_commit(path):
        busy.commit_to_table(next(versions))
        return open_snapshot(path)

    monkeypatch.setattr(taking, "open_snapshot", open_after_commit)

    with pytest.raises(BackupFailed, match="stop them for the backup"):
        busy.back_up(backups)


def test_an_object_that_goes_meanwhile_is_looked_for_in_a_newer_snapshot(busy, backups, monkeypatch):
    """If an object is replaced while the backup is taken, the backup is still complete. (B2)"""
    busy.publish(5)
    busy.archive()
    copy_data_file = taking._BackupRun._copy_data_file_mark_and_key
    turns = []

    def copy_then_forget(backup, snapshot):
        copied = copy_data_file(backup, snapshot)
        if not turns:
            turns.append(1)
            busy.log.delete_topic(TOPIC)
            busy.clock.move(1e9)
            for path in (busy.path / "archive").rglob("*.gz"):
                path.unlink()
        return copied

    monkeypatch.setattr(taking._BackupRun, "_copy_data_file_mark_and_key", copy_then_forget)

    assert busy.back_up(backups).missing == []


def test_a_missing_object_is_reported_and_has_to_be_accepted(busy, backups, tmp_path):
    """A backup that lacks an archive object names it, and can only be restored if the loss is accepted. (B12)"""
    busy.publish(5)
    busy.archive()
    [archived] = (busy.path / "archive").rglob("*.gz")
    archived.unlink()

    manifest = busy.back_up(backups)

    assert manifest.missing == [archived.relative_to(busy.path / "archive").as_posix()]
    with pytest.raises(BackupFailed, match="was missing when the backup was made"):
        restore(backups, tmp_path / "restored")
    restore(backups, tmp_path / "restored", accept_loss=True)
    assert (tmp_path / "restored" / "nakadi.db").exists()


def test_a_data_file_with_a_loss_is_not_backed_up(busy, backups):
    """A data file that does not reach its mark does not replace a good backup. (B8)"""
    busy.publish(3)
    busy.marker.write_mark_if_changed()
    busy.close()
    (busy.path / "nakadi.db").unlink()
    (busy.path / "nakadi.db").touch()

    with pytest.raises(BadDataFile, match="is empty, and it was marked"):
        busy.back_up(backups)


def test_a_folder_without_a_data_file_is_refused(tmp_path, backups):
    """A folder without a data file is refused rather than making an empty backup. (B14)"""
    (tmp_path / "data").mkdir()
    with open_store(backups, writes=True, creates=True) as store, pytest.raises(BadDataFile, match="no data file"):
        take_backup(store, DataFolder(tmp_path / "data"), lambda: None, "1.2.3")


@pytest.mark.parametrize("inside", ["data/backups", "data", "."])
def test_backups_are_not_in_what_they_are_of(busy, tmp_path, inside):
    """The folder for backups must not be inside the data folder, nor the other way round. (B14)"""
    if inside == "data/backups":
        with pytest.raises(BackupFailed, match="a folder of its own"):
            busy.back_up(tmp_path / inside)
    else:
        with pytest.raises(BackupFailed, match="is not empty"):
            busy.back_up(tmp_path / inside)
