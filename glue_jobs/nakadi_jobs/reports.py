"""The report of a run: messages while it works, a summary at its end, and an exit code."""

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
from msgspec.structs import replace
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.sql import SparkSession

DONE = 0
NOT_DONE = 1
NEEDS_ATTENTION = 3


class SubjectProgress(Struct, frozen=True):
    """The progress of a job with the events of a subject, since a moment of the monotonic clock."""

    subject: str
    events: int
    since: float
    done: int = 0

    def line(self, now: float) -> str:
        """The progress as text, and, once some events are done, the speed and the remaining seconds."""
        line = f"{self.subject}: {self.done} of {self.events} events"
        if not self.done or now <= self.since:
            return line
        pace = self.done / (now - self.since)
        return f"{line}, {pace:.0f}/s, {(self.events - self.done) / pace:.0f} s left"


class Report(Struct):
    """Information, warnings and complaints by subject. A complaint needs attention, so the exit code is 3."""

    job: str
    started_at: datetime
    facts: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    complaints: list[tuple[str, str]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    in_progress: dict[str, SubjectProgress] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def info(self, subject: str, fact: str) -> None:
        self._add(self.facts, subject, fact, "")

    def warn(self, subject: str, warning: str) -> None:
        """Add a warning about something known that may stay; it does not change the exit code."""
        self._add(self.warnings, subject, warning, "Warning: ")

    def count(self, what: str, subject: str, number: int) -> None:
        """Add to a count of a subject."""
        with self._lock:
            counted = self.details.setdefault(what, {})
            counted[subject] = counted.get(subject, 0) + number

    def keep_maximum(self, what: str, subject: str, value: float) -> None:
        """Keep the greatest measured value of a subject."""
        with self._lock:
            measured = self.details.setdefault(what, {})
            measured[subject] = max(measured.get(subject, value), value)

    def complain(self, subject: str, complaint: str) -> None:
        """Add a complaint, which needs attention; the exit code is 3."""
        self._add(self.complaints, subject, complaint, "Needs attention: ")

    def expect(self, subject: str, events: int) -> None:
        """Begin with a subject that has this many events."""
        with self._lock:
            self.in_progress[subject] = SubjectProgress(subject, events, time.monotonic())

    def advance(self, subject: str, events: int) -> None:
        """Count processed events of a subject. After the last one, the subject is finished."""
        with self._lock:
            work = replace(self.in_progress[subject], done=self.in_progress[subject].done + events)
            self.in_progress[subject] = work
            if work.done >= work.events:
                del self.in_progress[subject]

    @property
    def exit_code(self) -> int:
        return NEEDS_ATTENTION if self.complaints else DONE

    def summary(self) -> str:
        head = "done, except for what needs attention:" if self.complaints else "done."
        warnings = [f"  Warning: {subject}: {warning}" for subject, warning in self.warnings]
        complaints = [f"  {subject}: {complaint}" for subject, complaint in self.complaints]
        return "\n".join([f"{self.job}: {head}", *complaints, *warnings])

    def document(self, now: datetime) -> str:
        known: Mapping[str, Any] = {
            "job": self.job,
            "begun": self.started_at.isoformat(),
            "ended": now.isoformat(),
            "facts": [list(each) for each in self.facts],
            "warnings": [list(each) for each in self.warnings],
            "complaints": [list(each) for each in self.complaints],
            **self.details,
        }
        return json.dumps(known, indent=2, default=str)

    def _add(self, to: list[tuple[str, str]], subject: str, text: str, mark: str) -> None:
        with self._lock:
            to.append((subject, text))
            print(f"{mark}{subject}: {text}", file=sys.stderr, flush=True)


def first_line(error: Exception) -> str:
    """Return the first line of an error, or of the Java error that it wraps."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(text).strip().partition("\n")[0][:500]


@contextmanager
def show_progress(spark: SparkSession, report: Report, every_seconds: float = 5.0) -> Iterator[None]:
    """Print every few seconds the progress of the job with each event type, and of Spark with its tasks."""
    over = threading.Event()
    # Spark gives each thread a connection, and takes back only those of its own kind of threads.
    thread = InheritableThread(
        target=_show_until, args=(spark, report, over, every_seconds), name="nakadi-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show_until(spark: SparkSession, report: Report, over: threading.Event, every_seconds: float) -> None:
    started_at = time.monotonic()
    while not over.wait(every_seconds):
        now = time.monotonic()
        done, all_ = _count_tasks(spark)
        lines = [work.line(now) for work in list(report.in_progress.values())]
        lines += [f"{done} of {all_} tasks"] if all_ else []
        for line in lines:
            print(f"  {now - started_at:5.0f} s: {line}", file=sys.stderr, flush=True)


def _count_tasks(spark: SparkSession) -> tuple[int, int]:
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in found if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
