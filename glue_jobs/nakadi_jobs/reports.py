"""What a run tells: lines while it works, a summary at its end, and an exit code that says whether to look."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from msgspec import Struct, field
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.sql import SparkSession

DONE = 0
NOT_DONE = 1
LOOK_AT_IT = 3


class Report(Struct):
    """Facts by subject, and complaints: what somebody has to look at."""

    job: str
    begun: datetime
    facts: list[tuple[str, str]] = field(default_factory=list)
    complaints: list[tuple[str, str]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, subject: str, fact: str) -> None:
        self._add(self.facts, subject, fact, "")

    def complain(self, subject: str, complaint: str) -> None:
        self._add(self.complaints, subject, complaint, "LOOK AT THIS: ")

    @property
    def exit_code(self) -> int:
        return LOOK_AT_IT if self.complaints else DONE

    def summary(self) -> str:
        complaints = [f"  {subject}: {complaint}" for subject, complaint in self.complaints]
        if not complaints:
            return f"{self.job}: done."
        return "\n".join([f"{self.job}: done, but for what somebody has to look at:", *complaints])

    def document(self, now: datetime) -> str:
        known: Mapping[str, Any] = {
            "job": self.job,
            "begun": self.begun.isoformat(),
            "ended": now.isoformat(),
            "facts": [list(each) for each in self.facts],
            "complaints": [list(each) for each in self.complaints],
            **self.details,
        }
        return json.dumps(known, indent=2, default=str)

    def _add(self, to: list[tuple[str, str]], subject: str, text: str, mark: str) -> None:
        with self._lock:
            to.append((subject, text))
            print(f"{mark}{subject}: {text}", file=sys.stderr, flush=True)


def in_a_line(error: Exception) -> str:
    """What went wrong; of what happened in Java, what Java says of it."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(text).strip().partition("\n")[0][:500]


@contextmanager
def progress_shown(spark: SparkSession, every_seconds: float = 5.0) -> Iterator[None]:
    """Tell every few seconds how far Spark is with what it does."""
    over = threading.Event()
    # Spark gives each thread a connection, and takes back those of its own kind of threads.
    thread = InheritableThread(target=_show, args=(spark, over, every_seconds), name="nakadi-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(spark: SparkSession, over: threading.Event, every_seconds: float) -> None:
    begun = time.monotonic()
    while not over.wait(every_seconds):
        done, all_ = _tasks(spark)
        if all_:
            print(f"  {time.monotonic() - begun:5.0f} s: {done} of {all_} tasks", file=sys.stderr, flush=True)


def _tasks(spark: SparkSession) -> tuple[int, int]:
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in found if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
