"""Gathers members of the archive for Spark.

Gathering copies the wanted members, and nothing else, into a few objects that Spark reads. It reads each archive object
once for all event types, and checks every member that it copies, so Spark never reads a damaged one.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from nakadi.engines.archive.stores import open_archive
from nakadi.model.log_index import ArchiveLocation
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.data_files import NewFile
from nakadi_jobs.in_tasks import count_tasks, is_little_work

Knowledge = TypeVar("Knowledge")

GATHERED_BYTES = 32 * 1024 * 1024
READING_THREADS = 4

MAX_SKIPPED_BYTES = 256 * 1024
"""The most bytes between two members that one request reads together: a second request would take longer."""

MAX_SPAN_BYTES = 8 * 1024 * 1024
"""The most bytes that one request reads, unless a single member is larger: a task holds several requests in memory."""


class IncompleteReading(Exception):
    """Raised when the archive has fewer events than the log index says."""


class Reading(Struct, frozen=True):
    """Lines of the archive, the parts that they come from, and damaged parts.

    `files` have the rows of further lines of the same parts.
    """

    lines: DataFrame
    parts: Sequence[ArchiveRange]
    damaged: Sequence[tuple[ArchiveRange, str]]
    files: Sequence[NewFile] = ()
    has_lines: bool = True

    def expected_events(self) -> int | None:
        """The number of events that the parts must have; None if it is unknown for one of them."""
        events = [part.events for part in self.parts if part.events is not None]
        return sum(events) if len(events) == len(self.parts) else None


class GatheredMembers(Struct, frozen=True):
    """Copies of members: their paths by topic, and the problems of members that could not be copied."""

    archive: Archive
    paths: Mapping[str, Sequence[str]]
    problems: Mapping[str, str]

    def read_parts(self, parts: Sequence[ArchiveRange]) -> Reading:
        """Read the copies of these parts."""
        topics = sorted({part.topic for part in parts})
        return Reading(
            self.archive.text([path for topic in topics for path in self.paths.get(topic, ())]),
            [part for part in parts if part.name not in self.problems],
            [(part, self.problems[part.name]) for part in parts if part.name in self.problems],
        )


class Archive(Struct, frozen=True):
    """An archive, and `gathered`, a store at `gathered_url` whose objects Spark can read."""

    spark: SparkSession
    store: ArchiveStore
    url: str
    gathered: ArchiveStore
    gathered_url: str

    @contextmanager
    def gather(self, parts: Sequence[ArchiveRange]) -> Iterator[GatheredMembers]:
        """Copy members, each to an object of its topic. The copies are removed at the end."""
        by_object: defaultdict[str, set[ArchiveLocation]] = defaultdict(set)
        topics = {part.location: part.topic for part in parts}
        for location in topics:
            by_object[location.key].add(location)
        wanted = [[(location, topics[location]) for location in sorted(found)] for found in by_object.values()]
        run = uuid4().hex
        paths: defaultdict[str, list[str]] = defaultdict(list)
        problems: dict[str, str] = {}
        try:
            for copy in self._copy_members(run, wanted):
                if copy.problem:
                    problems[copy.name] = copy.problem
                else:
                    paths[copy.topic].append(f"{self.gathered_url}/{copy.name}")
            yield GatheredMembers(self, paths, problems)
        finally:
            for topic in set(topics.values()):
                kept = [each.key for each in self.gathered.list_objects(f"{topic}/")]
                self.gathered.remove([key for key in kept if key.startswith(f"{topic}/{run}-")])

    def _copy_members(self, run: str, wanted: Sequence[Members]) -> Iterable[Copy]:
        size = sum(location.length for each in wanted for location, _ in each)
        if is_little_work(len(wanted), size):
            return copy_members(self.store, self.gathered, f"{run}-0", wanted)
        query = urlsplit(self.url).query
        to = f"{self.gathered_url}?{query}".rstrip("?")
        context = self.spark.sparkContext
        tasks = context.parallelize(wanted, count_tasks(len(wanted), size, context.defaultParallelism))
        found: list[Copy] = tasks.mapPartitionsWithIndex(partial(_copy_in_task, self.url, to, run)).collect()
        return found

    def text(self, paths: Sequence[str]) -> DataFrame:
        if not paths:
            return self.spark.createDataFrame([], "value string")
        return self.spark.read.option("lineSep", "\n").text(list(paths))


Members = Sequence[tuple[ArchiveLocation, str]]
"""Members of one object, in order, with their topics."""


class Copy(NamedTuple):
    """An object with copies of members of a topic, or a part that could not be copied, with its problem."""

    topic: str
    name: str
    problem: str = ""


def copy_members(store: ArchiveStore, to: ArchiveStore, run: str, wanted: Iterable[Members]) -> Iterator[Copy]:
    """Copy members of objects, each of which is read once. `run` is the prefix of the copies' names."""
    together: defaultdict[str, bytearray] = defaultdict(bytearray)
    number = 0
    for location, topic, content, problem in _read_members(store, wanted):
        if problem:
            yield Copy(topic, f"{location.key}@{location.start}", problem)
            continue
        together[topic] += content
        while sum(map(len, together.values())) >= GATHERED_BYTES:
            largest = max(together, key=lambda each: len(together[each]))
            yield _write_copy(to, largest, f"{run}-{number}", together.pop(largest))
            number += 1
    for topic, several in together.items():
        yield _write_copy(to, topic, f"{run}-{number}", several)
        number += 1


def _write_copy(to: ArchiveStore, topic: str, name: str, content: bytearray) -> Copy:
    key = f"{topic}/{name}.json.gz"
    to.put(key, bytes(content))
    return Copy(topic, key)


def _copy_in_task(url: str, to_url: str, run: str, task: int, wanted: Iterable[Members]) -> Iterator[Copy]:
    with closing(open_archive(url)) as store, closing(open_archive(to_url)) as to:
        # A task that is repeated writes the same copies again.
        yield from copy_members(store, to, f"{run}-{task}", wanted)


def _read_members(store: ArchiveStore, wanted: Iterable[Members]) -> Iterator[tuple[ArchiveLocation, str, bytes, str]]:
    """Each member with its topic, its bytes, and its problem."""
    spans = chain.from_iterable(map(group_into_spans, wanted))
    with ThreadPoolExecutor(READING_THREADS) as pool:
        while some := list(islice(spans, READING_THREADS)):
            for span in pool.map(partial(_read_span, store), some):
                yield from span


def group_into_spans(
    members: Sequence[tuple[ArchiveLocation, Knowledge]],
) -> Iterator[Sequence[tuple[ArchiveLocation, Knowledge]]]:
    """Group members of one object so that one request reads each group."""
    span: list[tuple[ArchiveLocation, Knowledge]] = []
    for location, known in members:
        end = span[-1][0].start + span[-1][0].length if span else 0
        is_far = location.start > end + MAX_SKIPPED_BYTES
        if span and (is_far or location.start + location.length > span[0][0].start + MAX_SPAN_BYTES):
            yield span
            span = []
        span.append((location, known))
    yield span


def _read_span(store: ArchiveStore, span: Members) -> Sequence[tuple[ArchiveLocation, str, bytes, str]]:
    first, last = span[0][0], span[-1][0]
    try:
        content = store.read_range(ArchiveLocation(first.key, first.start, last.start + last.length - first.start))
    except ArchiveObjectGone:
        return [(location, topic, b"", "is not there") for location, topic in span]
    found = []
    for location, topic in span:
        start = location.start - first.start
        member = content[start : start + location.length]
        found.append((location, topic, member, find_problem(member, location.length)))
    return found


def find_problem(content: bytes, length: int) -> str:
    """The problem of a member; empty if the member is intact."""
    if len(content) < length:
        return f"is cut off after {len(content)} of {length} bytes"
    try:
        for _ in _decompress(content):
            pass
    except (zlib.error, EOFError) as error:
        return f"is damaged ({error})"
    return ""


def _decompress(content: bytes) -> Iterator[bytes]:
    """The text of gzip members, piece by piece."""
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
