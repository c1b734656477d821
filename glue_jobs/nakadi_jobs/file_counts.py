"""Counts the rows of tables file by file without a Spark job, and keeps earlier counts.

A data file never changes, so its count stays valid as long as the table has the file. Merges, erasures and rewrites
create new files, which are counted like all others: this module never consults the history of a table.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import compute, parquet
from pyspark.sql import SparkSession

from nakadi.engines.archive.stores import open_archive
from nakadi.model.log_index import ArchiveLocation
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore
from nakadi_jobs.measuring import (
    BY_MINUTE,
    BY_PARTITION,
    BY_PUBLISHER,
    BY_STEP,
    STEPS,
    Count,
    publisher_digest,
    window_start,
)

COUNTS_FOLDER = "_counted"
"""The folder beside the tables with the counts of their files."""

MIN_TASK_BYTES = 1 << 30
"""Files with at least this many bytes are counted in Spark's tasks, where starting Python takes a second."""

READING_THREADS = 8
ROWS_PER_READ = 1 << 20

COLUMNS = ("nakadi_time", "nakadi_partition", "nakadi_publisher", "nakadi_size")

MINUTE = timedelta(minutes=1)


class File(Struct, frozen=True):
    """A data file in the store of the tables."""

    key: str
    size: int


class CountRequest(Struct, frozen=True):
    """The events to count: those stored since a moment, and optionally before another, in windows of this length.

    `stamped`: whether the broker writes the publisher into events.
    """

    since: datetime
    until: datetime | None
    length: timedelta
    stamped: bool


class FileCounts(Struct, frozen=True):
    """The counts of the rows of a file since the beginning of a window, by windows of `minutes`."""

    since: datetime
    minutes: int
    counts: Sequence[Count]

    def answers(self, request: CountRequest) -> bool:
        return self.since <= request.since and self.minutes * MINUTE == request.length


KnownCounts = Mapping[str, FileCounts]
"""Counts by file key."""


class TableFiles(Struct, frozen=True):
    """Where the files of tables are: a store, and the URL with which Spark's tasks open it."""

    spark: SparkSession
    store: ArchiveStore
    url: str


class Counts(Struct, frozen=True):
    """The counts of an event type's files, and how many files were read for them."""

    counts: Sequence[Count]
    known: KnownCounts
    read: int


def count_files(
    place: TableFiles, files: Sequence[File], known: KnownCounts, request: CountRequest, until: datetime
) -> Counts:
    """Count the events in files, some of whose counts may be known. New files are counted completely, so that the next
    run knows their counts, though the sum leaves out events after the requested time.
    """
    new = [file for file in files if file.key not in known or not known[file.key].answers(request)]
    found = _count_new_files(place, new, request)
    all_known = {file.key: found.get(file.key) or known[file.key] for file in files}
    cut = [file for file in files if _ends_mid_window(all_known[file.key].counts, until, request.length)]
    parts = _count_new_files(place, cut, replace(request, until=until))
    counts = [
        count
        for key, each in {**all_known, **parts}.items()
        for count in each.counts
        if request.since <= count.window < until
    ]
    return Counts(counts, all_known, len(new) + len(cut))


def _ends_mid_window(counts: Iterable[Count], until: datetime, length: timedelta) -> bool:
    """Whether these counts include events of the window of `until` that were stored at `until` or later."""
    last, minute = window_start(until, length), int(until.timestamp()) // 60
    return any(each.by == BY_MINUTE and each.window == last and int(each.what or 0) >= minute for each in counts)


def _count_new_files(place: TableFiles, files: Sequence[File], request: CountRequest) -> KnownCounts:
    """Count the rows of files in this process, or in Spark's tasks if the files are large."""
    size = sum(file.size for file in files)
    if size < MIN_TASK_BYTES:
        return dict(_count_each(place.store, files, request))
    context = place.spark.sparkContext
    tasks = min(len(files), max(context.defaultParallelism, size // MIN_TASK_BYTES))
    in_task = partial(_counts_in_task, place.url, request)
    return dict(context.parallelize(files, tasks).mapPartitions(in_task).collect())


def _counts_in_task(url: str, request: CountRequest, files: Iterable[File]) -> Iterator[tuple[str, FileCounts]]:
    with closing(open_archive(url)) as store:
        yield from _count_each(store, files, request)


def _count_each(store: ArchiveStore, files: Iterable[File], request: CountRequest) -> Iterator[tuple[str, FileCounts]]:
    with ThreadPoolExecutor(READING_THREADS) as pool:
        yield from pool.map(lambda file: (file.key, _count_file(store, file, request)), files)


class ObjectReader(io.RawIOBase):
    """An object of a store as a file that reads only requested ranges."""

    def __init__(self, store: ArchiveStore, file: File) -> None:
        super().__init__()
        self._store, self._file, self._at = store, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        wanted = left if size < 0 else min(size, left)
        found = self._store.read_range(ArchiveLocation(self._file.key, self._at, wanted)) if wanted else b""
        self._at += len(found)
        return found


def _count_file(store: ArchiveStore, file: File, request: CountRequest) -> FileCounts:
    found: dict[tuple[datetime, str, str | None], Count] = {}
    with parquet.ParquetFile(ObjectReader(store, file), pre_buffer=True) as opened:
        there = [name for name in COLUMNS if name in opened.schema_arrow.names]
        for batch in opened.iter_batches(ROWS_PER_READ, columns=there):
            for count in _count_rows(pa.Table.from_batches([batch]), request):
                key = count.window, count.by, count.what
                found[key] = count.merge_with(found[key]) if key in found else count
    return FileCounts(request.since, request.length // MINUTE, list(found.values()))


def _count_rows(rows: pa.Table, request: CountRequest) -> Iterator[Count]:
    """Count rows by window, and in each by size, minute, partition and publisher."""
    rows = _rows_in_period(rows, request)
    minute, window = _minute_column(rows), request.length // MINUTE
    size = rows["nakadi_size"] if "nakadi_size" in rows.column_names else pa.nulls(len(rows), pa.int32())
    kinds = {BY_STEP: _step_column(size), BY_MINUTE: minute, BY_PARTITION: rows["nakadi_partition"]}
    if request.stamped:
        kinds[BY_PUBLISHER] = _publisher_column(rows, size)
    for by, what in kinds.items():
        begins = compute.multiply(compute.divide(minute, window), window)
        found = pa.table({"window": begins, "what": what, "size": size}).group_by(["window", "what"])
        for row in found.aggregate([([], "count_all"), ("size", "sum"), ("size", "max")]).to_pylist():
            yield Count(
                window=datetime.fromtimestamp(60 * row["window"], UTC),
                by=by,
                what=publisher_digest(row["what"])
                if by == BY_PUBLISHER
                else None
                if row["what"] is None
                else str(row["what"]),
                events=row["count_all"],
                bytes=row["size_sum"] or 0,
                largest=row["size_max"] or 0,
            )


def _minute_column(rows: pa.Table) -> pa.ChunkedArray:
    return compute.divide(compute.cast(rows["nakadi_time"], pa.int64()), 60_000_000)


def _rows_in_period(rows: pa.Table, request: CountRequest) -> pa.Table:
    minute = _minute_column(rows)
    timely = compute.greater_equal(minute, _minutes_since_epoch(request.since))
    if request.until is not None:
        timely = compute.and_(timely, compute.less(minute, _minutes_since_epoch(request.until)))
    return rows.filter(timely)


def _minutes_since_epoch(moment: datetime) -> int:
    return int(moment.timestamp()) // 60


def _step_column(size: pa.ChunkedArray) -> pa.ChunkedArray:
    """The size step of each row, as `measuring.size_step` computes it; null for events of unknown size."""
    at_least_one = compute.max_element_wise(size, 1, skip_nulls=False)
    steps = compute.multiply(compute.ln(compute.cast(at_least_one, pa.float64())), float(STEPS))
    return compute.cast(compute.floor(steps), pa.int32())


def _publisher_column(rows: pa.Table, size: pa.ChunkedArray) -> pa.ChunkedArray:
    """The publisher; an empty text if there is none, as in files of earlier versions. Tombstones never have one."""
    if "nakadi_publisher" not in rows.column_names:
        return compute.if_else(compute.greater(compute.fill_null(size, 1), 0), "", pa.scalar(None, pa.string()))
    publisher = rows["nakadi_publisher"]
    is_missing = compute.and_(compute.is_null(publisher), compute.fill_null(compute.greater(size, 0), fill_value=False))
    return compute.if_else(is_missing, "", publisher)


def load_counts(store: ArchiveStore, folder: str) -> KnownCounts:
    """Load the counts of an event type's files. If that fails, return none, and everything is counted again."""
    objects = sorted(store.list_objects(f"{COUNTS_FOLDER}/{folder}/"), key=lambda each: each.written_at)
    try:
        content = store.read_range(ArchiveLocation(objects[-1].key, 0, objects[-1].size)) if objects else b""
        return _decoder.decode(gzip.decompress(content)) if content else {}
    except (ArchiveObjectGone, OSError, EOFError, zlib.error, msgspec.DecodeError):
        return {}


def save_counts(store: ArchiveStore, folder: str, known: KnownCounts) -> None:
    """Store the counts. Objects never change, so this writes a new one, and removes earlier ones."""
    before = [each.key for each in store.list_objects(f"{COUNTS_FOLDER}/{folder}/")]
    store.put(f"{COUNTS_FOLDER}/{folder}/{uuid4()}.json.gz", gzip.compress(msgspec.json.encode(known), compresslevel=1))
    store.remove(before)


def remove_counts(store: ArchiveStore, folder: str) -> None:
    store.remove([each.key for each in store.list_objects(f"{COUNTS_FOLDER}/{folder}/")])


_decoder = msgspec.json.Decoder(dict[str, FileCounts])
