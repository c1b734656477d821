"""Runs work on parts of the archive in Spark's tasks: one process would be too small for all events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession

from nakadi.model.log_index import ArchiveLocation
from nakadi_jobs.reading import MIN_TASK_WORK

PARTS_PER_TASK = 200

Found = Iterable[tuple[str, str]]


class LocatedPart(Protocol):
    """A part of the archive."""

    @property
    def location(self) -> ArchiveLocation:
        """The place of its bytes."""


Part = TypeVar("Part", bound=LocatedPart)


def run_in_tasks(spark: SparkSession, parts: Sequence[Part], job: Callable[[Iterable[Part]], Found]) -> Found:
    """Run a job on these parts, and return its results. A few parts are processed here, since starting Python in tasks
    takes longer.
    """
    most, size = MIN_TASK_WORK
    if len(parts) < most and sum(part.location.length for part in parts) < size:
        return list(job(parts))
    context = spark.sparkContext
    tasks = min(len(parts), max(context.defaultParallelism, len(parts) // PARTS_PER_TASK))
    return context.parallelize(parts, max(1, tasks)).mapPartitions(job).collect()
