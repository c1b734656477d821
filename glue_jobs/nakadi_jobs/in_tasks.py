"""Runs work on parts of the archive in Spark's tasks: one process would be too small for all events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession

from nakadi.model.log_index import ArchiveLocation

MIN_TASK_WORK = 64, 16 * 1024 * 1024
"""With at least this many objects or bytes, Spark's tasks do the work; starting Python there takes a second."""

PARTS_PER_TASK = 200
BYTES_PER_TASK = 32 * 1024 * 1024

Found = Iterable[tuple[str, str]]


class LocatedPart(Protocol):
    """A part of the archive."""

    @property
    def location(self) -> ArchiveLocation:
        """The location of the part's bytes."""


Part = TypeVar("Part", bound=LocatedPart)


def is_little_work(parts: int, size: int) -> bool:
    """Whether the driver does the work itself."""
    most_parts, most_bytes = MIN_TASK_WORK
    return parts < most_parts and size < most_bytes


def count_tasks(parts: int, size: int, workers: int) -> int:
    """The number of tasks for parts of the archive. It depends on the amount of work, not only on the current number of
    workers: a cluster that grows with its waiting tasks begins with few workers.
    """
    return max(1, min(parts, max(workers, parts // PARTS_PER_TASK, -(-size // BYTES_PER_TASK))))


def run_in_tasks(spark: SparkSession, parts: Sequence[Part], job: Callable[[Iterable[Part]], Found]) -> Found:
    """Run a job on these parts, and return its results. A few parts are processed here, since starting Python in tasks
    takes longer.
    """
    size = sum(part.location.length for part in parts)
    if is_little_work(len(parts), size):
        return list(job(parts))
    context = spark.sparkContext
    tasks = count_tasks(len(parts), size, context.defaultParallelism)
    return context.parallelize(parts, tasks).mapPartitions(job).collect()
