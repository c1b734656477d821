"""The program of a driver: it runs the jobs that its standard input names, one per line, and answers each with a line.
With `--little`, executors also do work that is usually too small for them. With `--bucket NAME`, the driver's Java
reaches this bucket at `AWS_ENDPOINT_URL`. Each fault happens once, in the executors' Python.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from pyspark.sql import SparkSession

from nakadi_jobs import command, file_counts, in_tasks, plain_files
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.plain_files import CreatedFiles, StoreUrls, Target
from nakadi_jobs.session import open_spark
from tests.support.s3_files import buckets_in_spark

MakeFiles = Callable[[StoreUrls, Target, Sequence[ArchiveRange]], CreatedFiles]

make_in_task = plain_files.make_in_task


def kill_in_file(marks: Path, places: StoreUrls, target: Target, parts: Sequence[ArchiveRange]) -> CreatedFiles:
    """Kill the first executor that has written the bytes of a file, before the file gets its final name."""
    if not _is_first(marks / "kill in file"):
        return make_in_task(places, target, parts)
    # A file gets its final name when it is complete.
    with patch.object(Path, "replace", lambda *_: _kill_executor()):
        return make_in_task(places, target, parts)


def kill_after_file(marks: Path, places: StoreUrls, target: Target, parts: Sequence[ArchiveRange]) -> CreatedFiles:
    """Kill the first executor that has finished files, before the driver knows them."""
    made = make_in_task(places, target, parts)
    if _is_first(marks / "kill after file"):
        _kill_executor()
    return made


def wait_after_file(marks: Path, places: StoreUrls, target: Target, parts: Sequence[ArchiveRange]) -> CreatedFiles:
    """Let the first task that has finished files wait until it is killed: with its driver, or because another attempt
    was quicker.
    """
    made = make_in_task(places, target, parts)
    if _is_first(marks / "wait after file"):
        while True:
            time.sleep(0.05)
    return made


def make(_: Path, places: StoreUrls, target: Target, parts: Sequence[ArchiveRange]) -> CreatedFiles:
    return make_in_task(places, target, parts)


FAULTS = {
    "": make,
    "kill in file": kill_in_file,
    "kill after file": kill_after_file,
    "wait after file": wait_after_file,
}


def _is_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kill_executor() -> NoReturn:
    """Kill the executor and this process, which a Python daemon of the executor has forked."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def run_ordered_job(asked: dict[str, object]) -> dict[str, object]:
    told = StringIO()
    module = import_module(f"nakadi_jobs.{asked['job']}")
    fault = partial(FAULTS[str(asked["fault"])], Path(str(asked["marks"])))
    before = _tasks()
    with patch.object(plain_files, "make_in_task", fault), redirect_stderr(told), redirect_stdout(StringIO()):
        code = module.main(asked["arguments"])
    return {"code": code, "told": told.getvalue(), "tasks": _tasks() - before}


def _tasks() -> int:
    """The number of finished tasks of jobs that have no job group."""
    running = SparkSession.getActiveSession()
    if running is None:
        return 0
    tracker = running.sparkContext.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup() for stage in tracker.getJobInfo(job).stageIds]
    return sum(found.numCompletedTasks for stage in stages if (found := tracker.getStageInfo(stage)) is not None)


def main() -> None:
    if "--little" in sys.argv:
        plain_files.MIN_TASK_BYTES = file_counts.MIN_TASK_BYTES = plain_files.SHARE_BYTES = 1
        in_tasks.MIN_TASK_WORK = (1, 1)
    with ExitStack() as stack:
        if "--bucket" in sys.argv:
            bucket = sys.argv[sys.argv.index("--bucket") + 1]
            stack.enter_context(patch.object(command, "open_spark", partial(open_with_bucket, stack, bucket)))
        run_orders()


def open_with_bucket(stack: ExitStack, bucket: str, *arguments: Any) -> SparkSession:
    spark = open_spark(*arguments)
    stack.enter_context(buckets_in_spark(spark, os.environ["AWS_ENDPOINT_URL"], bucket))
    return spark


def run_orders() -> None:
    for line in sys.stdin:
        print(json.dumps(run_ordered_job(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
