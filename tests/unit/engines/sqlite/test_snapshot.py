"""A snapshot of a data file that other processes keep using."""

import sqlite3
from contextlib import closing

import pytest

from nakadi.engines.sqlite import snapshot
from nakadi.engines.sqlite.file import BadDataFile
from nakadi.engines.sqlite.snapshot import open_snapshot
from tests.support.backups import BusyFolder


@pytest.fixture
def busy_folder(tmp_path):
    folder = BusyFolder(tmp_path / "data")
    yield folder
    folder.close()


def count_of(path, table):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_a_snapshot_shows_no_later_commits(busy_folder, tmp_path, monkeypatch):
    """The copy, the mark and the keys are from one moment, whatever is committed meanwhile, even between two pages.
    (B1, B2)"""
    monkeypatch.setattr(snapshot, "PAGES_PER_STEP", 5)
    busy_folder.publish(5)
    busy_folder.archive()
    busy_folder.publish(2)
    before = busy_folder.log._index.referenced_archive_keys()
    ends = {}

    with open_snapshot(busy_folder.path / "nakadi.db") as opened:
        ends.update(opened.mark(busy_folder.clock.now()).ends)
        busy_folder.publish(3)
        busy_folder.archive()
        busy_folder.marker.write_mark_if_changed()
        opened.copy_to(tmp_path / "copy.db")

        assert opened.archive_keys() == before
        assert opened.mark(busy_folder.clock.now()).ends == ends
    assert count_of(tmp_path / "copy.db", "log_index_segments") == len(before) == 1
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_not_copied(busy_folder, tmp_path):
    """A copy whose structure is damaged is not returned. (B8)"""
    busy_folder.publish(100, size=1000)
    busy_folder.close()
    content = bytearray((busy_folder.path / "nakadi.db").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 8192] = bytes(8192)
    (busy_folder.path / "nakadi.db").write_bytes(content)

    with pytest.raises(BadDataFile, match="damaged"), open_snapshot(busy_folder.path / "nakadi.db") as opened:
        opened.copy_to(tmp_path / "copy.db")


@pytest.mark.parametrize(("version", "message"), [(1, "start its broker once"), (99, "newer version")])
def test_a_file_of_another_format_is_not_read_by_halves(busy_folder, version, message):
    """A data file of an older or a newer format is refused, with a message that names the remedy or the reason.
    (B12)
    """
    busy_folder.close()
    with closing(sqlite3.connect(busy_folder.path / "nakadi.db")) as connection:
        connection.execute(f"PRAGMA user_version = {version}")

    with pytest.raises(BadDataFile, match=message), open_snapshot(busy_folder.path / "nakadi.db"):
        pass


def test_another_file_is_none(tmp_path):
    """A file that is not a data file is refused with a message. (B14)"""
    (tmp_path / "nakadi.db").write_text("a letter\n" * 100)

    with pytest.raises(BadDataFile, match="cannot be copied"), open_snapshot(tmp_path / "nakadi.db"):
        pass
