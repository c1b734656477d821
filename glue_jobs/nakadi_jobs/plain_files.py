"""Writes plain lines from members of the archive into data files of tables, without a Spark job.

Other lines are gathered as text, which Spark reads exactly. If most lines are of that kind, all remaining ones are
gathered without a check.
"""

from __future__ import annotations

import gzip
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from nakadi.engines.archive.stores import open_archive
from nakadi.model.log_index import ArchiveLocation
from nakadi.ports.archive_store import ArchiveStore
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.plain_lines import Form, Reader
from nakadi_jobs.reading import READING_THREADS, group_into_spans
from nakadi_jobs.transform import join_ranges

CHUNK_BYTES = 4 << 20
"""The bytes of text that are read at once."""

FILE_BYTES = 512 << 20
"""The bytes of rows in a file. Parquet reduces them to a tenth."""

GROUP_BYTES = 128 << 20
"""The bytes of rows in a row group."""

MIN_TASK_BYTES = 16 << 20
"""Spark's tasks read at least this many bytes of the archive, if they run on other machines."""

SHARE_BYTES = 8 << 20
"""The least bytes of the archive that get files of their own."""

MAX_DOUBTFUL_SHARE = 0.2
"""If more than this share of the lines is left to Spark, Spark also gets all following lines."""

GATHERED_TEXT_BYTES = 128 << 20
"""The bytes of text in a gathered object."""

COMPRESSION, COMPRESSION_LEVEL = "zstd", 3
"""The compression that Iceberg uses."""

EPOCH = date(1970, 1, 1)
MICROSECONDS_PER_DAY = 24 * 60 * 60 * 1_000_000


class Target(Struct, frozen=True):
    """What files are written for: the form of lines, the folder of data files below that of all tables, the name of the
    table's partitions, and the key prefix of gathered lines.
    """

    form: Form
    folder: str
    partition: str
    gathered: str


class StoreUrls(Struct, frozen=True):
    """The URLs of the archive and of the tables."""

    archive: str
    tables: str


class DayFile(NamedTuple):
    """A file with the rows of one day, below the folder of all tables."""

    key: str
    day: str
    rows: int


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
    """Write files for these parts: here, or in Spark's tasks if there is much to do and they run on other machines.

    Raises the errors of stores and of damaged members. None of the files count then.
    """
    context = spark.sparkContext
    if runs_in_driver(str(context.master), parts):
        shares = list(_split_into_shares(parts, os.cpu_count() or 1))
        with ThreadPoolExecutor(len(shares)) as pool:
            made = list(pool.map(partial(_make_share, archive, tables, target), shares))
    else:
        shares = list(_split_into_shares(parts, context.defaultParallelism))
        tasks = context.parallelize(shares, len(shares))
        made = tasks.map(partial(_make_in_task, places, target)).collect()
    return CreatedFiles([file for each in made for file in each.files], [key for each in made for key in each.gathered])


def runs_in_driver(master: str, parts: Sequence[ArchiveRange]) -> bool:
    """Whether tasks would run on this machine, or there is too little work for them."""
    return master.startswith("local") or sum(part.location.length for part in parts) < MIN_TASK_BYTES


def _make_in_task(places: StoreUrls, target: Target, parts: Sequence[ArchiveRange]) -> CreatedFiles:
    with closing(open_archive(places.archive)) as archive, closing(open_archive(places.tables)) as tables:
        return _make_share(archive, tables, target, parts)


def _split_into_shares(parts: Sequence[ArchiveRange], count: int) -> Iterator[Sequence[ArchiveRange]]:
    """Split parts into about equal shares, in the order of tables. The parts of one object stay together: it is read
    once.
    """
    by_object: defaultdict[str, list[ArchiveRange]] = defaultdict(list)
    for part in sorted(parts, key=lambda each: (each.timeline, each.partition, each.first)):
        by_object[part.location.key].append(part)
    most = max(SHARE_BYTES, sum(part.location.length for part in parts) / count)
    share: list[ArchiveRange] = []
    size = 0
    for found in by_object.values():
        share += found
        size += sum(part.location.length for part in found)
        if size >= most:
            yield share
            share, size = [], 0
    if share:
        yield share


class _Chunk(NamedTuple):
    """Text of members of a topic, and the wanted parts of it."""

    topic: str
    text: bytes
    parts: Sequence[ArchiveRange]


def _make_share(
    archive: ArchiveStore, tables: ArchiveStore, target: Target, parts: Sequence[ArchiveRange]
) -> CreatedFiles:
    reader, files, left = Reader(target.form), _DayFiles(tables, target), _GatheredLines(tables, target)
    read = doubtful = 0
    for chunk in _chunks(archive, parts):
        if doubtful > MAX_DOUBTFUL_SHARE * read:
            left.add(chunk.text)
            continue
        found = reader.read(chunk.text, chunk.topic, chunk.parts[0].timeline)
        read += len(found.rows) + len(found.doubtful)
        doubtful += len(found.doubtful)
        left.add(b"".join(found.doubtful))
        for place, rows in _ascending_runs(_select_rows(found.rows, chunk.parts)):
            files.add(place, rows, len(chunk.text) * len(rows) // len(found.rows))
    files.finish()
    left.finish()
    return CreatedFiles(files.made, left.made)


def _chunks(archive: ArchiveStore, parts: Sequence[ArchiveRange]) -> Iterator[_Chunk]:
    """The text of members; each member is read once. Raises `ArchiveObjectGone` and `BadArchive`."""
    for topic, found in groupby(_read_members(archive, parts), key=lambda each: each[0][0].topic):
        texts: list[bytes] = []
        together: list[ArchiveRange] = []
        for here, content in found:
            found_texts = gzip_format.decompress_members(content)
            texts += (text if text.endswith(b"\n") or not text else text + b"\n" for text in found_texts)
            together += here
            if sum(map(len, texts)) >= CHUNK_BYTES:
                yield _Chunk(topic, b"".join(texts), together)
                texts, together = [], []
        if together:
            yield _Chunk(topic, b"".join(texts), together)


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

    def add(self, place: tuple[int, int, int, int], rows: pa.Table, size: int) -> None:
        day = place[0]
        self._waiting[day].append((place, rows))
        self._bytes[day] += size
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
        of_day = EPOCH + timedelta(days=day)
        key = f"{self._target.folder}/{self._target.partition}={of_day}/{uuid4()}.parquet"
        self._tables.put(key, out.getvalue().to_pybytes())
        self.made.append(DayFile(key, of_day.isoformat(), len(rows)))


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
