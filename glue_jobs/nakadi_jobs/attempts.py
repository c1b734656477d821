"""Cleans up after tasks that Spark attempted several times: one attempt counts, and no table has files of the others.

Spark repeats an attempt because its executor died, or because it is slow and `spark.speculation` is on. Iceberg lets
every attempt keep its files. The names of all files of a write contain the same identifier.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

FILE_NAME = re.compile(r"\d+-\d+-(?P<write>.+)-\d+\.\w+")
"""Iceberg's name of a data file: partition, task, write, and number."""

LONGEST_WAIT = 30.0
"""The longest wait for killed attempts, in seconds. Spark kills the Python process of an attempt after two seconds, but
executors that work on other tables may stay busy."""


def wait_for_killed_attempts(spark: SparkSession) -> None:
    """Wait until no executor runs a task, so that the attempts that Spark kills write no more files."""
    context = spark.sparkContext
    if context.getConf().get("spark.speculation", "false") != "true":
        return
    executors: Any = context._jsc.sc().statusTracker()  # noqa: SLF001  # Python's own tracker does not know executors
    deadline = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < deadline and any(each.numRunningTasks() for each in executors.getExecutorInfos()):
        time.sleep(0.02)


def remove_files_of_other_attempts(java: Any, snapshot: Any, before: int) -> None:
    """Remove the files of attempts that do not count, for the writes of the snapshots from `snapshot` back to its
    ancestor `before`.
    """
    counted = {_name(path): path.rpartition("/")[0] for path in _added_files(java, snapshot, before)}
    writes = {_write_of(name) for name in counted} - {None}
    for folder in sorted(set(counted.values())) if writes else ():
        for path in list(_locations(java.io().listPrefix(f"{folder}/"))):
            if _name(path) not in counted and _write_of(_name(path)) in writes:
                java.io().deleteFile(path)


def _added_files(java: Any, snapshot: Any, before: int) -> Iterator[str]:
    while snapshot is not None and snapshot.snapshotId() != before:
        yield from _locations(snapshot.addedDataFiles(java.io()))
        parent = snapshot.parentId()
        snapshot = None if parent is None else java.snapshot(parent)


def _locations(files: Any) -> Iterator[str]:
    each = files.iterator()
    while each.hasNext():
        yield str(each.next().location())


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _write_of(name: str) -> str | None:
    """The write that made a file; None for files that Spark did not write."""
    found = FILE_NAME.fullmatch(name)
    return found and found["write"]
