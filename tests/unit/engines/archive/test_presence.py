"""The marker in an archive's folder, and archives that are missing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.archive.presence import check_mounted
from nakadi.engines.archive.stores import MARKER_FILE, FolderStore
from nakadi.engines.archive.tiered_log import TieredLog
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable
from tests.support.clock import HandMovedClock
from tests.support.tiers import ARCHIVE_MANUALLY, TieredLogParts


@pytest.fixture
def parts(tmp_path: Path) -> TieredLogParts:
    return TieredLogParts("sqlite", tmp_path, HandMovedClock())


@pytest.fixture
def log(parts: TieredLogParts) -> Iterator[TieredLog]:
    log = parts.log(ARCHIVE_MANUALLY)
    log.create_topic("t", 1)
    yield log
    log.close()


def archive_an_event(log: TieredLog) -> None:
    run_blocking(log.append("t", {0: [Record(b"{}")]}))
    log.archive()


def test_a_folder_that_is_not_mounted_gets_nothing(log: TieredLog, tmp_path: Path):
    """If the file system of an archive is not mounted, archiving fails and writes nothing. It continues once the file
    system is mounted. (L80)"""
    archive, elsewhere = tmp_path / "archive", tmp_path / "unmounted"
    archive_an_event(log)
    archive.rename(elsewhere)
    archive.mkdir()

    with pytest.raises(Unavailable):
        archive_an_event(log)
    assert [*archive.iterdir()] == []

    archive.rmdir()
    elsewhere.rename(archive)
    log.archive()
    assert [event.offset for event in log.read("t", 0, 0).events] == [0, 1]


def test_an_archive_without_a_marker_gets_one(log: TieredLog, tmp_path: Path):
    """An archive that has objects but no marker comes from an older version or from a backup. (L80)"""
    archive_an_event(log)
    (tmp_path / "archive" / MARKER_FILE).unlink()

    archive_an_event(log)

    assert (tmp_path / "archive" / MARKER_FILE).exists()


def test_the_sentence_names_the_folder(log: TieredLog, parts: TieredLogParts, tmp_path: Path):
    """The operator learns which folder is missing, and what to check."""
    archive_an_event(log)
    other = FolderStore(tmp_path / "other")

    with pytest.raises(Unavailable, match=f"The archive {tmp_path / 'other'} is not there: is its file system mounted"):
        check_mounted(parts.index, other)
    assert not (tmp_path / "other").exists()


def test_the_marker_is_no_object(tmp_path: Path):
    """An empty archive gets a marker when it is first used. No listing contains the marker, and it stays when the last
    object is removed. (L80)"""
    store = FolderStore(tmp_path / "archive")
    check_mounted(MemoryLogIndex(), store)
    store.put("log/a/1", b"content")

    assert [each.key for each in store.list_objects("")] == ["log/a/1"]
    store.remove(["log/a/1"])
    assert [each.name for each in (tmp_path / "archive").iterdir()] == [MARKER_FILE]
