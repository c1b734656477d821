"""Late events and duplicates among new rows, in the files of a table."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyarrow import parquet

from nakadi.engines.archive.stores import open_archive
from nakadi.model.log_index import ArchiveLocation
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.file_counts import File, TableFiles
from nakadi_jobs.row_counts import RowCounts, compared_times, count_rows

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def a_part(partition, first, end, since=NOON, until=NOON):
    moments = {"since": round(since.timestamp() * 1e6), "until": round(until.timestamp() * 1e6)}
    location = ArchiveLocation("key", 0, 1)
    return ArchiveRange(
        topic="t", timeline=1, partition=partition, first=first, end=end, location=location, events=None, **moments
    )


def a_file(tmp_path, name, rows):
    """Write a file with these rows: partition, offset, eid, time of storing, and the minutes from occurrence to
    storing.
    """
    times = pa.timestamp("us", tz="UTC")
    metadata = pa.struct([("eid", pa.string()), ("occurred_at", pa.string())])
    table = pa.table(
        {
            "nakadi_timeline": pa.array([1 for _ in rows], pa.int32()),
            "nakadi_partition": pa.array([row[0] for row in rows], pa.int32()),
            "nakadi_offset": pa.array([row[1] for row in rows], pa.int64()),
            "nakadi_time": pa.array([row[3] for row in rows], times),
            "metadata": pa.array(
                [row[2] and {"eid": row[2], "occurred_at": (row[3] - row[4] * MINUTE).isoformat()} for row in rows],
                metadata,
            ),
            "other": pa.array(["x" for _ in rows]),
        }
    )
    parquet.write_table(table, tmp_path / name)
    return File(name, (tmp_path / name).stat().st_size)


@pytest.fixture
def place(tmp_path):
    return TableFiles(None, open_archive(f"file://{tmp_path}"), f"file://{tmp_path}")


def test_new_rows_are_compared_with_each_other_and_with_the_hour_before(tmp_path, place):
    """A new event is a duplicate if an earlier one has its id, in the run or in the hour before it. An event without an
    id is none. (T7)
    """
    files = [
        a_file(
            tmp_path,
            "old",
            [
                (0, 0, "too-old", NOON - 61 * MINUTE, 600),
                (0, 1, "just-in-time", NOON - 60 * MINUTE, 600),
                (0, 2, "a", NOON - MINUTE, 600),
            ],
        ),
        a_file(
            tmp_path,
            "new",
            [
                (0, 3, "a", NOON, 0),
                (0, 4, "b", NOON, 60),
                (0, 5, "b", NOON, 61),
                (0, 6, "b", NOON, 0),
                (0, 7, None, NOON, 0),
                (0, 8, None, NOON, 0),
                (1, 0, "too-old", NOON, 0),
                (1, 1, "just-in-time", NOON, 0),
                (1, 2, "of another run", NOON, 600),
            ],
        ),
    ]
    parts = [a_part(0, 3, 6), a_part(0, 6, 9), a_part(1, 0, 2)]
    assert count_rows(place, files, parts, timedelta(hours=1)) == RowCounts(late=1, duplicates=4)
    assert count_rows(place, [], parts, timedelta(hours=1)) == RowCounts(0, 0)


def test_the_time_that_is_read():
    """The job compares rows of a period that begins an hour before the first new event, and ends with the last one.
    (T7)
    """
    times = compared_times([a_part(0, 3, 6, NOON, NOON + MINUTE), a_part(0, 0, 1, NOON + MINUTE, NOON + 2 * MINUTE)])
    assert (times.since, times.until) == (NOON - 60 * MINUTE, NOON + 2 * MINUTE + timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("occurred_at", "late"),
    [
        (["2026-11-20T11:58:59.999999Z", "2026-11-20T12:59:00+01:00"], 1),
        (["2026-11-20T10:58:59.123456789Z", "2026-11-20T11:58:00"], 1),
        (["long ago", None], 0),
    ],
)
def test_times_are_texts(tmp_path, place, occurred_at, late):
    """Times are read with their offset from UTC, however long they are; an event with an invalid time is never late.
    (T7)
    """
    metadata = pa.array([{"eid": "a", "occurred_at": each} for each in occurred_at])
    file = a_plain_file(tmp_path, "texts", metadata=metadata)
    assert count_rows(place, [file], [a_part(0, 0, 2)], MINUTE) == RowCounts(late, 1)


def test_rows_without_metadata(tmp_path, place):
    """Rows are read from files of earlier versions, which may lack the columns of metadata. (T7)"""
    assert count_rows(place, [a_plain_file(tmp_path, "none")], [a_part(0, 0, 2)], MINUTE) == RowCounts(0, 0)


def a_plain_file(tmp_path, name, **columns):
    places = {
        "nakadi_timeline": pa.array([1, 1], pa.int32()),
        "nakadi_partition": pa.array([0, 0], pa.int32()),
        "nakadi_offset": pa.array([0, 1], pa.int64()),
        "nakadi_time": pa.array([NOON, NOON], pa.timestamp("us", tz="UTC")),
    }
    parquet.write_table(pa.table({**places, **columns}), tmp_path / name)
    return File(name, (tmp_path / name).stat().st_size)
