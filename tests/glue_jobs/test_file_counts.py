"""Statistics count tables file by file, without a Spark job, and each file only once; the figures match a count of
all rows.
"""

import gzip
import json
from datetime import timedelta

import pytest

from nakadi.model.event_type import CleanupPolicy
from nakadi_jobs import file_counts, statistics
from nakadi_jobs.leftovers import Unreadable
from tests.glue_jobs.test_statistics import BUSINESS, an_event_by, windows_of
from tests.support.jobs import STORED_AT

UNTIL = STORED_AT + timedelta(hours=2)
PERIOD = ("--until", UNTIL.isoformat(), "--hours", "2")
ERASE = ("--do", "erase", "--event-type", "order.placed", "--path", "note", "--value", "xx")


@pytest.fixture
def orders(data, jobs):
    """Orders in a table: two hours of them in two partitions, of several sizes and publishers, with tombstones."""
    made = data.event_type("order.placed", partitions=2, cleanup_policy=CleanupPolicy.COMPACT, **BUSINESS)
    events = [an_event_by(f"shop{number % 3}", note="x" * (number % 40)) for number in range(100)]
    data.archive_events(made, [*events, None, None], apart=timedelta(seconds=61))
    data.archive_events(made, events[:20], partition=1, at=STORED_AT + timedelta(minutes=70))
    jobs.compact()
    return made


@pytest.fixture
def count_files_read(jobs, tmp_path):
    """A function that measures, and returns how many files of the table it has read."""
    reports = tmp_path / "reports"

    def run(*period):
        told = jobs.measured(*(period or PERIOD), "--report", str(reports))
        assert told.code == 0, told.told
        [report] = reports.glob("*.json")
        found = json.loads(report.read_text()).get("files_read", {})
        report.unlink()
        return found.get("order.placed")

    return run


@pytest.fixture
def counts_folder(jobs, tables):
    """The folder of cached counts of files."""
    return tables / "_counted" / jobs.database


def files_of(jobs):
    return {row["file_path"] for row in jobs.table("order_placed.files").collect()}


def figures_from_nothing(jobs, counts_folder, count_files_read):
    """The figures of all files, without any cached counts."""
    for each in counts_folder.rglob("*.gz"):
        each.unlink()
    assert count_files_read() == len(files_of(jobs))
    return windows_of(jobs)


def raise_unreadable(*_):
    raise Unreadable


def raise_bad_disk(*_):
    raise OSError("bad disk")


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (file_counts, "MIN_TASK_BYTES", 1),
        pytest.param(statistics, "relative_folder", raise_unreadable, marks=pytest.mark.long),
        pytest.param(file_counts, "_count_file", raise_bad_disk, marks=pytest.mark.long),
    ],
)
def test_all_ways_count_alike(jobs, count_files_read, counts_folder, monkeypatch, module, name, value):
    """The counts are the same in this process, in Spark's tasks, and over Spark's rows, which are used if files cannot
    be read or a catalog keeps them elsewhere.
    """
    assert count_files_read() == len(files_of(jobs))
    figures = windows_of(jobs)
    assert [row[:2] for row in figures] == [(60, 3), (62, 3)]

    for each in counts_folder.rglob("*.gz"):
        each.unlink()
    monkeypatch.setattr(module, name, value)
    assert count_files_read() == (len(files_of(jobs)) if name == "MIN_TASK_BYTES" else None)
    assert windows_of(jobs) == figures


@pytest.mark.long
def test_a_file_is_read_once(jobs, data, orders, count_files_read, counts_folder):
    """A run reads new files, without a job of Spark; merged, erased or rewritten files are new."""
    assert jobs.spark_jobs(count_files_read) == 0
    first, files = windows_of(jobs), files_of(jobs)
    assert jobs.spark_jobs(lambda: count_files_read(*PERIOD, "--plots", str(counts_folder.parent / "plots"))) == 0
    assert count_files_read() == 0
    assert windows_of(jobs) == first

    data.archive_events(orders, [an_event_by("late", note="xx")] * 3, at=STORED_AT + timedelta(minutes=110))
    jobs.compact()
    assert count_files_read() == len(files_of(jobs) - files) > 0
    second = windows_of(jobs)
    assert second[1][:2] == (first[1][0] + 3, 4)
    assert second == figures_from_nothing(jobs, counts_folder, count_files_read)

    files = files_of(jobs)
    merge = f"rewrite_data_files(table => 'nakadi.{jobs.database}.order_placed', options => map('rewrite-all', 'true'))"
    jobs.spark().sql(f"CALL nakadi.system.{merge}")
    assert count_files_read() == len(files_of(jobs) - files) > 0
    assert windows_of(jobs) == second

    files = files_of(jobs)
    told = jobs.drop_before(*ERASE)
    assert told.code == 0, told.told
    assert count_files_read() == len(files_of(jobs) - files) > 0
    figures = windows_of(jobs)
    assert sum(row[0] for row in figures) == sum(row[0] for row in second) - 3 - 3 - 1
    assert figures == figures_from_nothing(jobs, counts_folder, count_files_read)

    jobs.spark().sql(f"DROP TABLE nakadi.{jobs.database}.order_placed PURGE")
    jobs.compact()
    assert count_files_read() == len(files_of(jobs))
    assert windows_of(jobs) == figures


@pytest.mark.long
@pytest.mark.usefixtures("orders")
def test_periods_that_end_within_a_file(jobs, count_files_read):
    """If a file continues after the period, the rest is neither counted nor cached."""
    minutes = 75
    early = ("--until", (STORED_AT + timedelta(minutes=minutes)).isoformat(), "--hours", "1")
    assert count_files_read(*early) > 0
    stored = [number * 61 for number in range(102)] + [70 * 60 + number for number in range(20)]
    timely = [seconds for seconds in stored if seconds < minutes * 60]
    counts = [row[0] for row in windows_of(jobs)]
    assert counts == [sum(seconds < 3600 for seconds in timely), sum(seconds >= 3600 for seconds in timely)]

    assert count_files_read() == 0
    assert sum(row[0] for row in windows_of(jobs)) == len(stored)
    assert count_files_read(*early) > 0
    assert sum(row[0] for row in windows_of(jobs)) == len(timely)

    # The cache does not have the counts of more hours, or of other windows.
    assert count_files_read("--until", UNTIL.isoformat(), "--hours", "24") > 0
    assert count_files_read("--until", UNTIL.isoformat(), "--hours", "24", "--window-minutes", "120") > 0
    rows = jobs.table("nakadi__statistics").where("window_minutes = 120").collect()
    assert [row["events"] for row in rows] == [len(stored)]


@pytest.mark.long
@pytest.mark.usefixtures("orders")
def test_rows_that_are_only_marked_as_deleted(jobs, count_files_read):
    """Rows that another engine has marked as deleted are not counted, in the table of events and in the table of
    measurements.
    """
    count_files_read()
    for table in ("order_placed", "nakadi__statistics"):
        path = f"nakadi.{jobs.database}.{table}"
        jobs.spark().sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    jobs.spark().sql(
        f"DELETE FROM nakadi.{jobs.database}.order_placed WHERE nakadi_partition = 0 AND nakadi_offset < 50"
    )
    jobs.spark().sql(f"DELETE FROM nakadi.{jobs.database}.nakadi__statistics WHERE events = 60")
    assert count_files_read() is None
    assert [row[0] for row in windows_of(jobs)] == [10, 62]


@pytest.mark.long
@pytest.mark.usefixtures("orders")
def test_what_is_known_is_damaged(jobs, count_files_read, counts_folder, monkeypatch):
    """If cached counts are damaged, the file is counted again, even if not all rows are read at once; names of
    publishers are not cached.
    """
    count_files_read()
    figures = windows_of(jobs)
    monkeypatch.setattr(file_counts, "ROWS_PER_READ", 7)
    [file] = counts_folder.rglob("*.gz")
    assert "shop" not in gzip.decompress(file.read_bytes()).decode()
    for content in (b"", b"nonsense", gzip.compress(b"{}")[:-3], gzip.compress(b'{"a": 1}')):
        file.write_bytes(content)
        assert count_files_read() > 0
        assert windows_of(jobs) == figures
        [file] = counts_folder.rglob("*.gz")


@pytest.mark.long
@pytest.mark.usefixtures("orders")
def test_what_is_known_of_deleted_event_types_goes(data, count_files_read, counts_folder):
    """The job removes all counts of deleted event types."""
    count_files_read()
    assert list(counts_folder.rglob("*.gz"))
    data.delete("order.placed")
    count_files_read()
    assert not list(counts_folder.rglob("*.gz"))
