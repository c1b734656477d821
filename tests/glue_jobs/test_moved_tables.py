"""Tables that are moved to another place, as the restoration of a stage does."""

import json
import shutil
from datetime import timedelta

import pytest

from nakadi.local.stage_backups import iceberg
from nakadi.local.stage_backups.iceberg import CannotMove, metadata_bytes, moved_files, moved_metadata, read_table
from tests.glue_jobs.test_compaction_current_state import COMPACTED, LATEST_SUFFIX, events_with_names
from tests.support.jobs import STORED_AT
from tests.support.table_readers import assert_read_alike


def newest_metadata(folder):
    number = int((folder / "metadata" / "version-hint.text").read_text())
    return json.loads((folder / "metadata" / f"v{number}.metadata.json").read_text())


def move_table(folder, target):
    """Move a table of a folder into another folder, with the files of its current state."""
    metadata = newest_metadata(folder)
    old, new = f"file:{folder.parent}/", f"file:{target}/"

    def read(key):
        return (folder.parent / key).read_bytes()

    files = read_table(metadata, old, read)
    contents = {key: read(key) for key in files.data_files} | dict(moved_files(files, read, old, new))
    assert contents.keys() == set(files.keys)
    contents[f"{folder.name}/metadata/v1.metadata.json"] = metadata_bytes(moved_metadata(metadata, old, new))
    contents[f"{folder.name}/metadata/version-hint.text"] = b"1"
    for key, content in contents.items():
        path = target / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return target / folder.name


@pytest.fixture
def _one_spelling(monkeypatch):
    """Hadoop writes URLs of files with one slash or with three. URLs of buckets have one spelling."""
    find_key = iceberg.key_in
    monkeypatch.setattr(iceberg, "key_in", lambda url, bucket: find_key(url.replace("file:///", "file:/"), bucket))


@pytest.mark.usefixtures("_one_spelling")
def test_a_moved_table_has_the_same_rows_and_goes_on(jobs, data, tables):
    """Every reader finds the rows of a moved table, those with replaced rows included, when nothing is left of the
    original; the next run adds only new events. (B22)
    """
    customers = data.event_type("customer.changed", **COMPACTED)
    data.archive_events(customers, events_with_names("A", "B", "C"), keys=["a", "b", "c"])
    jobs.compact()
    data.archive_events(customers, events_with_names("A 2", None), keys=["a", "b"], at=STORED_AT + timedelta(hours=1))
    jobs.compact()
    deletes = jobs.spark().table(f"nakadi.{jobs.database}.{LATEST_SUFFIX}.delete_files")
    assert not deletes.isEmpty(), "rows are marked as replaced"
    names = ("customer_changed", LATEST_SUFFIX)
    before = {name: assert_read_alike(jobs.table(name), tables / jobs.database / name) for name in names}
    database = f"{jobs.database}moved"
    for name in names:
        move_table(tables / jobs.database / name, tables / database)
    shutil.rmtree(tables / jobs.database)
    jobs.places[5] = database

    for name in names:
        assert assert_read_alike(jobs.table(name), tables / database / name) == before[name]

    data.archive_events(customers, events_with_names("C 2"), keys=["c"], at=STORED_AT + timedelta(hours=2))
    assert jobs.compact().code == 0
    assert jobs.rows("customer_changed", "name") == [("A",), ("B",), ("C",), ("A 2",), (None,), ("C 2",)]
    assert sorted(jobs.rows(LATEST_SUFFIX, "name")) == [("A 2",), ("C 2",)]


def test_a_table_elsewhere_does_not_move():
    """A table whose files are in another bucket, or that has a newer format, is not moved. (B22)"""
    snapshot = {"snapshot-id": 7, "manifest-list": "s3://other/list.avro", "timestamp-ms": 1}
    metadata = {"format-version": 2, "current-snapshot-id": 7, "snapshots": [snapshot]}

    with pytest.raises(CannotMove, match=r"s3://other/list.avro is not in s3://tables/"):
        read_table(metadata, "s3://tables/", lambda _: b"")
    with pytest.raises(CannotMove, match="version 3"):
        read_table({**metadata, "format-version": 3}, "s3://tables/", lambda _: b"")
