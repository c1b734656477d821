"""Counts late events and duplicates among the rows that a run added, in the files of the table and without a Spark job.

Only four columns and the ids of events are read. If the files are large, Spark's tasks read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import compute, parquet

from nakadi.engines.archive.stores import open_archive
from nakadi.ports.archive_store import ArchiveStore
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.data_files import TimeRange
from nakadi_jobs.file_counts import READING_THREADS, ROWS_PER_READ, File, ObjectReader, TableFiles
from nakadi_jobs.transform import join_ranges

MAX_ROWS = 20_000_000
"""With more rows, a run does not count: the driver would need eight bytes of memory for each."""

MIN_TASK_BYTES = 64 << 20
"""Files with at least this many bytes are read in Spark's tasks."""

DUPLICATES_WITHIN = timedelta(hours=1)
"""New events are compared with events that were stored up to this long before the oldest of them."""

EID, OCCURRED_AT = "metadata.eid", "metadata.occurred_at"
COLUMNS = ("nakadi_timeline", "nakadi_partition", "nakadi_offset", "nakadi_time", EID, OCCURRED_AT)

HASH_BYTES = 8

TIME = pa.timestamp("us", tz="UTC")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class RowCounts(NamedTuple):
    late: int
    duplicates: int


class _Request(Struct, frozen=True):
    """The offsets of new rows (timeline, partition, first offset, end), the period in which these rows and the rows
    compared with them were stored, and the delay from which an event is late; times are in microseconds.
    """

    ranges: Sequence[tuple[int, int, int, int]]
    since: int
    until: int
    late_after: int


class _FileRows(NamedTuple):
    """The counts of a file: how many new rows are late, and the hashes of the ids of its new and of its other rows."""

    late: int
    new: bytes
    others: bytes


def compared_times(parts: Sequence[ArchiveRange]) -> TimeRange:
    """The period in which the new events, and those that they are compared with, were stored."""
    since, until = (EPOCH + timedelta(microseconds=each) for each in _compared_microseconds(parts))
    return TimeRange("nakadi_time", since, until)


def _compared_microseconds(parts: Sequence[ArchiveRange]) -> tuple[int, int]:
    since, until = min(part.since for part in parts), max(part.until for part in parts)
    return since - DUPLICATES_WITHIN // MICROSECOND, until + 1


def count_rows(
    place: TableFiles, files: Sequence[File], parts: Sequence[ArchiveRange], late_after: timedelta
) -> RowCounts:
    """Count among the rows of these parts. `files` have the rows of `compared_times`."""
    ranges = list(join_ranges((part.timeline, part.partition, part.first, part.end) for part in parts))
    request = _Request(ranges, *_compared_microseconds(parts), late_after // MICROSECOND)
    found = list(_read_files(place, files, request))
    new, others = (
        np.frombuffer(b"".join(hashes), np.uint64)
        for hashes in ([each.new for each in found], [each.others for each in found])
    )
    firsts = np.setdiff1d(new, others)
    return RowCounts(sum(each.late for each in found), len(new) - len(firsts))


def _read_files(place: TableFiles, files: Sequence[File], request: _Request) -> Iterable[_FileRows]:
    size = sum(file.size for file in files)
    if size < MIN_TASK_BYTES:
        return list(_read_each(place.store, files, request))
    context = place.spark.sparkContext
    tasks = min(len(files), max(context.defaultParallelism, size // MIN_TASK_BYTES))
    rows: list[_FileRows] = (
        context.parallelize(files, tasks).mapPartitions(partial(_read_in_task, place.url, request)).collect()
    )
    return rows


def _read_in_task(url: str, request: _Request, files: Iterable[File]) -> Iterator[_FileRows]:
    with closing(open_archive(url)) as store:
        yield from _read_each(store, files, request)


def _read_each(store: ArchiveStore, files: Iterable[File], request: _Request) -> Iterator[_FileRows]:
    with ThreadPoolExecutor(READING_THREADS) as pool:
        yield from pool.map(partial(_read_file, store, request), files)


def _read_file(store: ArchiveStore, request: _Request, file: File) -> _FileRows:
    late, new, others = 0, list[bytes](), list[bytes]()
    with parquet.ParquetFile(ObjectReader(store, file), pre_buffer=True) as opened:
        there = {opened.schema.column(number).path for number in range(len(opened.schema))}
        for batch in opened.iter_batches(ROWS_PER_READ, columns=[name for name in COLUMNS if name in there]):
            rows = pa.Table.from_batches([batch]).flatten()
            is_new = _new_rows(rows, request.ranges)
            late += _count_late(rows.filter(pa.array(is_new)), request.late_after)
            if EID in rows.column_names:
                new.append(_hash_ids(rows[EID].filter(pa.array(is_new))))
                others.append(_hash_ids(rows[EID].filter(pa.array(_compared_rows(rows, request) & ~is_new))))
    return _FileRows(late, b"".join(new), b"".join(others))


def _new_rows(rows: pa.Table, ranges: Sequence[tuple[int, int, int, int]]) -> Any:
    timeline, partition, offset = (rows[name].to_numpy() for name in COLUMNS[:3])
    is_new = np.zeros(len(rows), np.bool_)
    for order, number, first, end in ranges:
        is_new |= (timeline == order) & (partition == number) & (offset >= first) & (offset < end)
    return is_new


def _compared_rows(rows: pa.Table, request: _Request) -> Any:
    stored = compute.cast(rows["nakadi_time"], pa.int64()).to_numpy()
    return (stored >= request.since) & (stored < request.until)


def _count_late(rows: pa.Table, late_after: int) -> int:
    if OCCURRED_AT not in rows.column_names:
        return 0
    stored, occurred = rows["nakadi_time"], _moments(rows[OCCURRED_AT])
    waited = compute.subtract(compute.cast(stored, pa.int64()), compute.cast(occurred, pa.int64()))
    return compute.sum(compute.greater(waited, late_after)).as_py() or 0


def _moments(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """The moments in these texts; null for a text that is not a moment."""
    try:
        return compute.cast(texts, TIME)
    except pa.ArrowInvalid:
        # Arrow does not understand some valid moments, such as those with more digits.
        return pa.chunked_array([pa.array([_moment(text) for text in texts.to_pylist()], TIME)])


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _hash_ids(ids: pa.ChunkedArray) -> bytes:
    """Hashes that are the same in every process. Python's own hashes are not."""
    known = (each for each in ids.to_pylist() if each is not None)
    return b"".join(hashlib.blake2b(each.encode(), digest_size=HASH_BYTES).digest() for each in known)
