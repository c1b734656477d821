"""The folder with backups: what is damaged, removed, or in use."""

from datetime import UTC, datetime

import msgspec
import pytest

from nakadi.local.backups.store import PIECE_BYTES, BackupFailed, Manifest, StoredFile, open_store

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "backups"


@pytest.fixture
def source(tmp_path):
    return tmp_path / "source"


def add_backup(store, backup_id, *files):
    store.add_manifest(
        Manifest(id=backup_id, began_at=NOON, ended_at=NOON, data="/data", version="1", files=list(files))
    )


def pieces(folder):
    return {path.name for path in (folder / "pieces").glob("*/*")}


def test_a_file_is_read_as_it_was_stored(folder, source):
    """A file of several pieces is read back byte for byte, and equal pieces are stored once. (B3)"""
    content = b"a" * PIECE_BYTES * 2 + b"b"
    source.write_bytes(content)
    with open_store(folder, writes=True, creates=True) as store:
        file = store.add_file(source, "some/file")

        assert b"".join(store.read_file(file)) == content
        assert len(pieces(folder)) == 2
        assert store.new_bytes == PIECE_BYTES + 1


def test_damage_is_found_and_mended_by_the_next_backup(folder, source):
    """Verifying reads everything, names the damage, and causes the next backup to store the damaged pieces again.
    (B5)"""
    source.write_bytes(b"content")
    with open_store(folder, writes=True, creates=True) as store:
        file = store.add_file(source, "some/file")
        add_backup(store, "1", file)
        assert store.verify(store.ids()) == []
        (folder / "pieces" / file.pieces[0][:2] / file.pieces[0]).write_bytes(b"c0ntent")

        assert store.verify(store.ids()) == ["Backup 1: some/file is damaged."]
        add_backup(store, "2", store.add_file(source, "some/file", file))
        assert store.verify(store.ids()) == []


def test_a_damaged_list_of_files_is_found(folder):
    """A backup whose list of files has changed is reported as damaged. (B5)"""
    with open_store(folder, writes=True, creates=True) as store:
        add_backup(store, "1")
        path = folder / "backups" / "1.json"
        path.write_bytes(path.read_bytes().replace(b"/data", b"/atad"))

        assert store.verify(store.ids()) == ["The list of files of the backup 1 is damaged."]
        with pytest.raises(BackupFailed, match="damaged"):
            store.read_manifest("1")


def test_removed_backups_leave_what_others_need(folder, source):
    """Removing a backup removes the pieces that only this backup needs. (B13)"""
    with open_store(folder, writes=True, creates=True) as store:
        files = []
        for content in (b"first", b"both", b"second"):
            source.write_bytes(content)
            files.append(store.add_file(source, content.decode()))
        add_backup(store, "1", *files[:2])
        add_backup(store, "2", *files[1:])

        store.remove_backups(["1"])

        assert store.ids() == ["2"]
        assert pieces(folder) == {files[1].pieces[0], files[2].pieces[0]}


def test_nothing_is_removed_beside_a_damaged_backup(folder, source):
    """As long as nobody knows which pieces a damaged backup needs, no pieces are removed. (B13)"""
    source.write_bytes(b"content")
    with open_store(folder, writes=True, creates=True) as store:
        file = store.add_file(source, "file")
        add_backup(store, "1", file)
        add_backup(store, "2", file)
        (folder / "backups" / "2.json").write_bytes(b"")

        with pytest.raises(BackupFailed):
            store.remove_backups(["1"])

        assert store.ids() == ["1", "2"]
        assert pieces(folder) == set(file.pieces)


def test_one_at_a_time(folder):
    """During a backup, no other process may back up or restore; several may restore at the same time. (B14)"""
    with open_store(folder, writes=True, creates=True):
        for writes in (True, False):
            with pytest.raises(BackupFailed, match="in use"), open_store(folder, writes=writes):
                pass
    with open_store(folder, writes=False), open_store(folder, writes=False):
        pass


def test_other_folders_are_left_alone(folder):
    """A folder with other files does not become a backup folder, and reading creates no folder. (B14)"""
    with pytest.raises(BackupFailed, match="has no backups"), open_store(folder, writes=False):
        pass
    assert not folder.exists()
    folder.mkdir()
    (folder / "letters").touch()
    with pytest.raises(BackupFailed, match="is not empty"), open_store(folder, writes=True, creates=True):
        pass
    assert [each.name for each in folder.iterdir()] == ["letters"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "archive/../../outside", ""])
def test_a_backup_writes_nowhere_else(folder, path):
    """A list of files that leads out of the data folder is refused. (B6)"""
    with open_store(folder, writes=True, creates=True) as store:
        add_backup(store, "1", StoredFile(path=path, size=0, mode=0o600, modified_ns=0, pieces=[]))

        with pytest.raises(BackupFailed, match="outside the data folder"):
            store.read_manifest("1")


def test_a_newer_backup_is_refused(folder):
    """A backup in a newer format is refused, rather than restored in part. (B12)"""
    with open_store(folder, writes=True, creates=True) as store:
        newer = Manifest(id="1", began_at=NOON, ended_at=NOON, data="", version="9", files=[], format=2)
        store.add_manifest(msgspec.structs.replace(newer))

        with pytest.raises(BackupFailed, match="newer version"):
            store.read_manifest("1")


def test_a_file_whose_name_cannot_be_written_down_is_an_error(folder, tmp_path):
    """A file whose name is not UTF-8 makes the backup fail, rather than being left out silently. (B14)"""
    name = b"b\xe4d"
    (tmp_path / name.decode(errors="surrogateescape")).touch()
    with (
        open_store(folder, writes=True, creates=True) as store,
        pytest.raises(BackupFailed, match="not UTF-8"),
    ):
        store.add_file(tmp_path / name.decode(errors="surrogateescape"), name.decode(errors="surrogateescape"))
