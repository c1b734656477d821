"""The archive's objects as Spark reads them: where they lie, or gathered first.

Gathering copies the members that are wanted, and nothing else, into a few objects for Spark. It is done where most of
an object belongs to others, where Spark cannot reach the archive, and where something is damaged: every member is
checked on its way.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec import Struct
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from nakadi.ports.archive_store import ArchiveGone, ArchiveStore
from nakadi_jobs import transform
from nakadi_jobs.archive_ranges import ArchiveRange, sizes

GATHERED_BYTES = 32 * 1024 * 1024
AT_ONCE = 16
SAMPLE = 10

WORTH_READING = 0.5
"""An object is read where it lies if at least so much of it is wanted."""


class Reading(Struct, frozen=True):
    """Lines of the archive, what was asked of them, and what could not be read."""

    lines: DataFrame
    parts: Sequence[ArchiveRange]
    damaged: Sequence[tuple[ArchiveRange, str]]
    by_file: bool

    def wanted(self) -> DataFrame:
        return transform.wanted(self.lines.sparkSession, self.parts, by_file=self.by_file)

    def expected(self) -> int | None:
        """How many events there have to be; None where that is uncertain for a part."""
        events = [part.events for part in self.parts if part.events is not None]
        return sum(events) if len(events) == len(self.parts) else None


class Archive(Struct, frozen=True):
    """`gathered` is a store whose objects Spark can read, at `gathered_url`."""

    spark: SparkSession
    store: ArchiveStore
    url: str
    gathered: ArchiveStore
    gathered_url: str

    def worth_reading_in_place(self, parts: Sequence[ArchiveRange]) -> bool:
        wanted = sizes(parts)
        base = place_of(self.url)
        if base is None or any(each.events is None for each in parts) or not self._has(base):
            return False
        sample = list(wanted)[:: max(1, len(wanted) // SAMPLE)]
        try:
            there = sum(self._size(f"{base}/{key}") for key in sample)
        except Py4JJavaError:
            return False
        return sum(wanted[key] for key in sample) >= WORTH_READING * there

    def in_place(self, parts: Sequence[ArchiveRange]) -> Reading:
        base = place_of(self.url)
        paths = sorted({f"{base}/{part.location.key}" for part in parts})
        return Reading(self._text(paths), parts, (), by_file=True)

    @contextmanager
    def gathering(self, parts: Sequence[ArchiveRange]) -> Iterator[Reading]:
        """The same, member by member, without those that are damaged."""
        kept: list[str] = []
        found = _Found()
        run = uuid4().hex
        try:
            for content in _packed(self._members(parts, found)):
                key = f"{parts[0].topic}/{run}-{len(kept)}.json.gz"
                self.gathered.put(key, content)
                kept.append(key)
            paths = [f"{self.gathered_url}/{key}" for key in kept]
            yield Reading(self._text(paths), found.whole, found.damaged, by_file=False)
        finally:
            self.gathered.remove(kept)

    def _members(self, parts: Sequence[ArchiveRange], found: _Found) -> Iterator[bytes]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in range(0, len(parts), 4 * AT_ONCE):
                some = parts[start : start + 4 * AT_ONCE]
                for part, (content, problem) in zip(some, pool.map(self._member, some), strict=True):
                    if problem:
                        found.damaged.append((part, problem))
                    else:
                        found.whole.append(part)
                        yield content

    def _member(self, part: ArchiveRange) -> tuple[bytes, str]:
        try:
            content = self.store.get(part.location)
        except ArchiveGone:
            return b"", "is not there"
        return content, problem_with(content, part.location.length)

    def _text(self, paths: Sequence[str]) -> DataFrame:
        if not paths:
            return self.spark.createDataFrame([], "value string, file string")
        text = self.spark.read.option("lineSep", "\n").text(list(paths))
        return text.select("value", F.col("_metadata.file_name").alias("file"))

    def _has(self, base: str) -> bool:
        """Whether Spark knows how to reach such a place."""
        try:
            self._files(base)
        except Py4JJavaError:
            return False
        return True

    def _size(self, path: str) -> int:
        return int(self._files(path).getFileStatus(self._jvm().org.apache.hadoop.fs.Path(path)).getLen())

    def _files(self, path: str) -> Any:
        configuration = self.spark._jsc.hadoopConfiguration()  # noqa: SLF001  # no other way
        return self._jvm().org.apache.hadoop.fs.Path(path).getFileSystem(configuration)

    def _jvm(self) -> Any:
        return self.spark._jvm  # noqa: SLF001  # the only way to ask Hadoop


class _Found:
    def __init__(self) -> None:
        self.whole: list[ArchiveRange] = []
        self.damaged: list[tuple[ArchiveRange, str]] = []


def place_of(url: str) -> str | None:
    """The archive's place as Spark knows it; None if only this process can see it."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return f"file://{parts.path.rstrip('/')}"
    if parts.scheme == "s3":
        return f"s3://{parts.netloc}{parts.path.rstrip('/')}"
    return None


def problem_with(content: bytes, length: int) -> str:
    """What is wrong with a member; nothing if it is whole."""
    if len(content) < length:
        return f"is cut off after {len(content)} of {length} bytes"
    try:
        for _ in _unpacked(content):
            pass
    except (zlib.error, EOFError) as error:
        return f"is damaged ({error})"
    return ""


def _unpacked(content: bytes) -> Iterator[bytes]:
    """The text of gzip members, a piece at a time."""
    rest = content
    while rest:
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        yield unpacker.decompress(rest, 1 << 20)
        while not unpacker.eof:
            piece = unpacker.decompress(unpacker.unconsumed_tail, 1 << 20)
            if not piece and not unpacker.eof:
                raise EOFError("it ends too early")
            yield piece
        rest = unpacker.unused_data


def _packed(members: Iterable[bytes]) -> Iterator[bytes]:
    """Members together, as much as makes an object of a good size."""
    together = bytearray()
    for member in members:
        together += member
        if len(together) >= GATHERED_BYTES:
            yield bytes(together)
            together.clear()
    if together:
        yield bytes(together)
