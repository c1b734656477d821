"""Writes plain lines from members of the archive into data files of tables, without a Spark job.

Other lines are gathered as text, which Spark reads exactly. If most lines are of that kind, all remaining ones are
gathered without a check.
"""

from __future__ import annotations

import gzip
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date, timedelta
from functools import partial
from itertools import chain, groupby, islice, pairwise
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import parquet
from pyspark.sql import SparkSession

from nakadi.engines.archive import gzip_format
from nakadi.engines.archive.stores import UNFINISHED_SUFFIX, open_archive
from nakadi.model.log_index import ArchiveLocation
from nakadi.ports.archive_store import ArchiveStore
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.attempts import wait_for_killed_attempts
from nakadi_jobs.data_files import parquet_footer
from nakadi_jobs.gathering import READING_THREADS, group_into_spans
from nakadi_jobs.plain_lines import Form, Reader
from nakadi_jobs.session import has_tasks_in_driver
from nakadi_jobs.transform import join_ranges

CHUNK_BYTES = 4 << 20
"""The bytes of text that are read at once."""

FILE_BYTES = 512 << 20
"""When all waiting rows have this many bytes in memory, those of the largest day are written to a file. Parquet reduces
them to a tenth."""

GROUP_BYTES = 128 << 20
"""The bytes of rows, in memory, for one row group of a file."""

MIN_TASK_BYTES = 16 << 20
"""Spark's tasks write the files if they run outside the driver, and have at least this many bytes of the archive to
read."""

SHARE_BYTES = 8 << 20
"""The least number of archived bytes in a share, except in the last one."""

MAX_SHARE_BYTES = 64 << 20
"""The most bytes of the archive for a task: 450 MB of text, and a file of 45 MB, which nobody has to merge."""

MAX_DOUBTFUL_SHARE = 0.2
"""If Spark has to read more than this share of the lines, it also gets all following lines."""

GATHERED_TEXT_BYTES = 128 << 20
"""Gathered lines are written to an object when they have this many bytes of text."""

COMPRESSION, COMPRESSION_LEVEL = "zstd", 3
"""The compression that Iceberg uses."""

EPOCH = date(1970, 1, 1)
MICROSECONDS_PER_DAY = 24 * 60 * 60 * 1_000_000


class Target(Struct, frozen=True):
    """The target of files: the form of lines, the folder of data files below the folder of all tables, the name of the
    table's partitions, the key prefix of gathered lines, and the name with which the batch's files begin.
    """

    form: Form
    folder: str
    partition: str
    gathered: str
    batch: str

    def day_folder(self, day: str) -> str:
        return f"{self.folder}/{self.partition}={day}/"


class StoreUrls(Struct, frozen=True):
    """The URLs of the archive and of the tables."""

    archive: str
    tables: str


class DayFile(NamedTuple):
    """A file with the rows of one day, below the folder of all tables."""

    key: str
    day: str
    size: int
    footer: bytes


class CreatedFiles(NamedTuple):
    """Files with rows, and objects with the remaining lines."""

    files: Sequence[DayFile]
    gathered: Sequence[str]


def make_files(
    spark: SparkSession,
    archive: ArchiveStore,
    tables: ArchiveStore,
    places: StoreUrls,
    target: Target,
    parts: Sequence[ArchiveRange],
) -> CreatedFiles:
    """Write files for these parts: in this process, or in Spark's tasks if there is much work and the tasks run on
    other machines. Raises the errors of stores and of damaged members; it then leaves no files.
    """
    context = spark.sparkContext
    kept: set[str] = set()
    is_driver_alone = runs_in_driver(str(context.master), parts)
    try:
        if is_driver_alone:
            shares = list(split_into_shares(parts, os.cpu_count() or 1))
            with ThreadPoolExecutor(len(shares)) as pool:
                made = list(pool.map(partial(_make_share, archive, tables, target), shares))
        else:
            shares = list(split_into_shares(parts, context.defaultParallelism, MAX_SHARE_BYTES))
            tasks = context.parallelize(shares, len(shares))
            made = tasks.map(partial(make_in_task, places, target)).collect()
        kept.update(file.key for each in made for file in each.files)
    finally:
        if not is_driver_alone:
            wait_for_killed_attempts(spark)
        if not (kept and is_driver_alone):
            remove_files(tables, target, parts, kept)
    return CreatedFiles([file for each in made for file in each.files], [key for each in made for key in each.gathered])


def remove_files(
    tables: ArchiveStore, target: Target, parts: Sequence[ArchiveRange], kept: Collection[str] = ()
) -> None:
    """Remove the files of a batch, except those to keep. Attempts at tasks may leave further files: an executor may die
    with the list of its files, and of two attempts at the same task, only one counts.
    """
    for day in sorted({day for part in parts for day in _days_of_part(part)}):
        listed = [each.key for each in tables.list_objects(target.day_folder(day))]
        tables.remove([key for key in listed if key not in kept and _is_of_batch(key, target)])


def _is_of_batch(key: str, target: Target) -> bool:
    # Only folders can have unfinished files. They belong to this batch, because one job at a time writes to the folder
    # of a table, one batch after the other.
    name = key.rpartition("/")[2]
    return name.startswith(target.batch) or name.endswith(UNFINISHED_SUFFIX)


def _days_of_part(part: ArchiveRange) -> Iterator[str]:
    for day in range(part.since // MICROSECONDS_PER_DAY, part.until // MICROSECONDS_PER_DAY + 1):
        yield _day_name(day)


def _day_name(day: int) -> str:
    return (EPOCH + timedelta(days=day)).isoformat()


def runs_in_driver(master: str, parts: Sequence[ArchiveRange]) -> bool:
    """Whether tasks would run in the driver's process, or there is too little work for them."""
    return has_tasks_in_driver(master) or sum(part.location.length for part in parts) < MIN_TASK_BYTES


def make_in_task(places: StoreUrls, target: Target, parts: Sequence[ArchiveRange]) -> CreatedFiles:
    """Write the files for a share. Spark may run this several times for the same share, or kill it at any moment."""
    with closing(open_archive(places.archive)) as archive, closing(open_archive(places.tables)) as tables:
        return _make_share(archive, tables, target, parts)


def split_into_shares(
    parts: Sequence[ArchiveRange], workers: int, most_bytes: int | None = None
) -> Iterator[Sequence[ArchiveRange]]:
    """Split parts into about equal shares for workers, in the order of tables. With `most_bytes`, there are more shares
    if they would otherwise be larger: a cluster that grows with its waiting tasks begins with few workers.

    The parts of one object stay together: it is read once.
    """
    by_object: defaultdict[str, list[ArchiveRange]] = defaultdict(list)
    for part in sorted(parts, key=lambda each: (each.timeline, each.partition, each.first)):
        by_object[part.location.key].append(part)
    size = sum(part.location.length for part in parts)
    count = workers if most_bytes is None else max(workers, -(-size // most_bytes))
    enough = max(SHARE_BYTES, size / count)
    share: list[ArchiveRange] = []
    size = 0
    for found in by_object.values():
        share += found
        size += sum(part.location.length for part in found)
        if size >= enough:
            yield share
            share, size = [], 0
    if share:
        yield share


class Chunk(NamedTuple):
    """Text of members of a topic, and the wanted parts of the text."""

    topic: str
    text: bytes
    parts: Sequence[ArchiveRange]


def _make_share(
    archive: ArchiveStore, tables: ArchiveStore, target: Target, parts: Sequence[ArchiveRange]
) -> CreatedFiles:
    reader, files, left = Reader(target.form), _DayFiles(tables, target), _GatheredLines(tables, target)
    read = doubtful = 0
    for chunk in read_chunks(archive, parts):
        if doubtful > MAX_DOUBTFUL_SHARE * read:
            left.add(chunk.text)
            continue
        found = reader.read(chunk.text, chunk.topic, chunk.parts[0].timeline)
        read += len(found.rows) + len(found.doubtful)
        doubtful += len(found.doubtful)
        left.add(b"".join(found.doubtful))
        for place, rows in _ascending_runs(_select_rows(found.rows, chunk.parts)):
            files.add(place, rows)
    files.finish()
    left.finish()
    return CreatedFiles(files.made, left.made)


def read_chunks(archive: ArchiveStore, parts: Sequence[ArchiveRange]) -> Iterator[Chunk]:
    """The text of members; each member is read once, and may be in several chunks. Raises `ArchiveObjectGone` and
    `BadArchive`.
    """
    for topic, found in groupby(_read_members(archive, parts), key=lambda each: each[0][0].topic):
        texts: list[bytes] = []
        together: list[ArchiveRange] = []
        size = 0
        for here, content in found:
            together += here
            for lines in _decompress_to_line_ends(content):
                texts.append(lines)
                size += len(lines)
                if size >= CHUNK_BYTES:
                    yield Chunk(topic, b"".join(texts), together)
                    texts, together, size = [], [*here], 0
        if texts:
            yield Chunk(topic, b"".join(texts), together)


def _decompress_to_line_ends(content: bytes) -> Iterator[bytes]:
    """The text of members in pieces, each of which ends with a line. Raises `BadArchive`."""
    begun: list[bytes] = []
    for piece in gzip_format.decompress_pieces(content, CHUNK_BYTES):
        end = piece.rfind(b"\n") + 1
        if end:
            yield b"".join([*begun, piece[:end]])
            begun = []
        if end < len(piece):
            begun.append(piece[end:])
    if begun:
        yield b"".join([*begun, b"\n"])


def _read_members(
    archive: ArchiveStore, parts: Sequence[ArchiveRange]
) -> Iterator[tuple[Sequence[ArchiveRange], bytes]]:
    """The bytes of each member, with its parts."""
    by_object: defaultdict[str, defaultdict[ArchiveLocation, list[ArchiveRange]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for part in parts:
        by_object[part.location.key][part.location].append(part)
    spans = chain.from_iterable(group_into_spans(sorted(found.items())) for found in by_object.values())
    with ThreadPoolExecutor(READING_THREADS) as pool:
        while some := list(islice(spans, READING_THREADS)):
            for span, content in zip(some, pool.map(partial(_read_span, archive), some), strict=True):
                first = span[0][0].start
                for location, here in span:
                    yield here, content[location.start - first : location.start - first + location.length]


def _read_span(archive: ArchiveStore, span: Sequence[tuple[ArchiveLocation, Any]]) -> bytes:
    first, last = span[0][0], span[-1][0]
    return archive.read_range(ArchiveLocation(first.key, first.start, last.start + last.length - first.start))


def _select_rows(rows: pa.Table, parts: Sequence[ArchiveRange]) -> pa.Table:
    """The rows with wanted places."""
    partition, offset = _column_numbers(rows, "nakadi_partition"), _column_numbers(rows, "nakadi_offset")
    kept = np.zeros(len(rows), np.bool_)
    for number, first, end in join_ranges((part.partition, part.first, part.end) for part in parts):
        kept |= (partition == number) & (offset >= first) & (offset < end)
    return rows if kept.all() else rows.filter(pa.array(kept))


def _ascending_runs(rows: pa.Table) -> Iterator[tuple[tuple[int, int, int, int], pa.Table]]:
    """Rows of the same day and partition with ascending offsets, and their sort key: the day and the first place."""
    if not len(rows):
        return
    day = _column_numbers(rows, "nakadi_time") // MICROSECONDS_PER_DAY
    timeline, partition = _column_numbers(rows, "nakadi_timeline"), _column_numbers(rows, "nakadi_partition")
    offset = _column_numbers(rows, "nakadi_offset")
    others = (np.diff(day) != 0) | (np.diff(partition) != 0) | (np.diff(offset) <= 0)
    begins = [0, *(np.flatnonzero(others) + 1).tolist()]
    for first, end in pairwise([*begins, len(rows)]):
        yield (int(day[first]), int(timeline[first]), int(partition[first]), int(offset[first])), rows[first:end]


def _column_numbers(rows: pa.Table, name: str) -> Any:
    column = rows[name]
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_numpy()


class _DayFiles:
    """Rows that wait for a file of their day, and finished files."""

    def __init__(self, tables: ArchiveStore, target: Target) -> None:
        self._tables, self._target = tables, target
        self._waiting: defaultdict[int, list[tuple[tuple[int, int, int, int], pa.Table]]] = defaultdict(list)
        self._bytes: defaultdict[int, int] = defaultdict(int)
        self.made: list[DayFile] = []

    def add(self, place: tuple[int, int, int, int], rows: pa.Table) -> None:
        day = place[0]
        self._waiting[day].append((place, rows))
        # The bytes of the text do not count: a row needs memory for each column, even without a value.
        self._bytes[day] += rows.nbytes
        if sum(self._bytes.values()) >= FILE_BYTES:
            self._write(max(self._bytes, key=lambda each: self._bytes[each]))

    def finish(self) -> None:
        for day in sorted(self._waiting):
            self._write(day)

    def _write(self, day: int) -> None:
        size, waiting = self._bytes.pop(day), self._waiting.pop(day)
        waiting.sort(key=lambda each: each[0])
        rows = pa.concat_tables([each for _, each in waiting])
        rows_at_once = max(1, len(rows) * GROUP_BYTES // max(size, GROUP_BYTES))
        out = pa.BufferOutputStream()
        with parquet.ParquetWriter(
            out, rows.schema, compression=COMPRESSION, compression_level=COMPRESSION_LEVEL
        ) as writer:
            writer.write_table(rows, row_group_size=rows_at_once)
        name = _day_name(day)
        # The file name is unique, so two attempts at a task never write the same file.
        key = f"{self._target.day_folder(name)}{self._target.batch}-{uuid4()}.parquet"
        content = out.getvalue().to_pybytes()
        self._tables.put(key, content)
        self.made.append(DayFile(key, name, len(content), parquet_footer(content)))


class _GatheredLines:
    """Lines that wait for an object, and finished objects."""

    def __init__(self, tables: ArchiveStore, target: Target) -> None:
        self._tables, self._target = tables, target
        self._waiting: list[bytes] = []
        self.made: list[str] = []

    def add(self, text: bytes) -> None:
        if text:
            self._waiting.append(text)
        if sum(map(len, self._waiting)) >= GATHERED_TEXT_BYTES:
            self.finish()

    def finish(self) -> None:
        if not self._waiting:
            return
        key = f"{self._target.gathered}-{uuid4().hex}.json.gz"
        self._tables.put(key, gzip.compress(b"".join(self._waiting), compresslevel=1))
        self._waiting = []
        self.made.append(key)
