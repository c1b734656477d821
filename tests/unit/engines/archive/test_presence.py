"""The marker in an archive's folder, and archives that are missing."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nakadi.common.metrics import Metrics
from nakadi.common.waiting import run_blocking
from nakadi.engines.archive.presence import check_mounted
from nakadi.engines.archive.segment_cache import SegmentCache, UnreadableSegment, read_segment
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


@pytest.mark.parametrize("has_mount_point", [True, False])
def test_a_folder_that_is_not_mounted_is_not_damaged(
    log: TieredLog, parts: TieredLogParts, tmp_path: Path, *, has_mount_point: bool
):
    """If the file system of an archive is not mounted, readers learn that, and no part counts as damaged. They continue
    once the file system is mounted. (L80a)"""
    archive, elsewhere = tmp_path / "archive", tmp_path / "unmounted"
    archive_an_event(log)
    archive.rename(elsewhere)
    if has_mount_point:
        archive.mkdir()
    metrics = Metrics()
    segment = parts.index.segment_at_or_before("t", 0, 0)
    assert segment is not None

    with closing(SegmentCache(FolderStore(archive), metrics=metrics)) as segment_cache:
        with pytest.raises(Unavailable, match=f"The archive {archive} is not there: is its file system mounted") as no:
            segment_cache.read_segment("t", 0, segment)
        assert no.value.public == (
            "The archive is not there: is its file system mounted? See NakadiArchiveCannotBeRead in docs/operations.md."
        )
        assert metrics.archive_damaged_offsets.rows() == {}

        shutil.rmtree(archive, ignore_errors=True)
        elsewhere.rename(archive)
        assert [event.offset for event in segment_cache.read_segment("t", 0, segment)] == [0]


def test_an_object_that_is_missing_in_the_archive_is_damage(log: TieredLog, parts: TieredLogParts, tmp_path: Path):
    """An archive that has its marker is there, even without any object: then the missing object is damage. (L80a)"""
    archive_an_event(log)
    for each in (tmp_path / "archive").rglob("*.gz"):
        each.unlink()
    segment = parts.index.segment_at_or_before("t", 0, 0)
    assert segment is not None

    with pytest.raises(UnreadableSegment, match="is not there"):
        read_segment(FolderStore(tmp_path / "archive"), "t", 0, segment)


def test_an_archive_without_a_marker_gets_one(log: TieredLog, tmp_path: Path):
    """An archive with objects but without a marker, as from an older version or a backup, gets a marker. (L80)"""
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
