"""Keeps tables up to date within minutes: it looks at the log index every few seconds, and updates tables with new
events.

It runs `compaction` in a loop, with the same exactly-once guarantee: the commit that adds rows to a table also stores
up to which offsets the table has the events (decision 0017 says why there is no separate checkpoint). On a laptop, the
job runs until it is interrupted; on Glue, it is a streaming job.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.model.annotations import MATERIALIZE_ANNOTATION
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Unavailable
from nakadi_jobs import command, compaction, table_states
from nakadi_jobs.command import JobContext
from nakadi_jobs.quality import report_runs
from nakadi_jobs.reports import Report, show_progress

DESCRIPTION = """\
Keep the tables up to date within moments of what is archived, until this is interrupted.

Every few seconds the log index is asked which event types have news, without Spark; only their tables are changed.
Small files are merged and old snapshots expired every few minutes.
A run can be interrupted or killed at any time: the next one, and every run of compaction, goes on where it was."""

RETRY_SECONDS = 300.0
"""The pause before a failed event type is tried again if it has no new events."""

Marker = tuple[tuple[str, int, int], ...]
"""The revision of each partition's head in the log index, with its topic and number."""


class HandledNews(Struct, frozen=True):
    """The state of the log index at the last attempt to update a table, the time of that attempt, and whether it
    failed.
    """

    marker: Marker
    at: float
    failed: bool


class Follower(Struct):
    """Remembers what it has handled, so a round without news costs only a look at the log index."""

    work: JobContext
    tidied_at: dict[str, float] = field(default_factory=dict)
    handled: dict[str, HandledNews] = field(default_factory=dict)

    def round(self) -> Sequence[EventType]:
        """Bring the tables of event types with news up to date, and return these event types."""
        event_types = [
            each for each in self.work.selected_event_types() if each.annotations.get(MATERIALIZE_ANNOTATION) != "off"
        ]
        # Read before the tables: events that are archived meanwhile change the marker, and are news of the next round.
        markers = self._markers(event_types)
        now = self.work.clock.monotonic()
        outdated = [each for each in event_types if self._has_news(each, markers[each.id], now)]
        if outdated:
            # A run lasts for days: each round with news is a trace.
            with self.work.spans.of_run("follow"):
                self._update_tables(outdated, markers)
        there = {each.id for each in event_types}
        self.handled = {key: each for key, each in self.handled.items() if key in there}
        return outdated

    def _markers(self, event_types: Sequence[EventType]) -> Mapping[str, Marker]:
        places = {
            each.id: [(one.topic, number) for one in each.timelines for number in range(one.partitions)]
            for each in event_types
        }
        heads = self.work.index.index_heads([place for found in places.values() for place in found])
        return {
            identity: tuple((topic, number, heads[topic, number].revision) for topic, number in found)
            for identity, found in places.items()
        }

    def _has_news(self, event_type: EventType, marker: Marker, now: float) -> bool:
        handled = self.handled.get(event_type.id)
        if handled is None or handled.marker != marker:
            return True
        return handled.failed and now - handled.at >= RETRY_SECONDS

    def _update_tables(self, event_types: Sequence[EventType], markers: Mapping[str, Marker]) -> None:
        """Update tables with a report for this round only: a report on the whole run would grow without limit."""
        now = self.work.clock.monotonic()
        report = Report("compaction", self.work.clock.now())
        due = {each.id for each in event_types if self._is_tidying_due(each, now)}
        with show_progress(self.work.spark, report):
            for tidies in (False, True):
                some = [each for each in event_types if (each.id in due) is tidies]
                if some:
                    compaction.update_all_tables(self._context(report, tidies=tidies), some)
        failed = {name for name, _ in report.complaints}
        for each in event_types:
            self.handled[each.id] = HandledNews(markers[each.id], now, each.name in failed)
            if each.id in due:
                self.tidied_at[each.id] = now
        self._sum_up(report)
        report_runs(self.work, timedelta(minutes=self.work.options.tidy_minutes))

    def _is_tidying_due(self, event_type: EventType, now: float) -> bool:
        options = self.work.options
        if options.no_tidying:
            return False
        # The first tidying of a table has to wait too, because the first round has the largest backlog.
        tidied = self.tidied_at.setdefault(event_type.id, now)
        return bool(now - tidied >= options.tidy_minutes * 60)

    def _context(self, report: Report, *, tidies: bool) -> JobContext:
        options = argparse.Namespace(**{**vars(self.work.options), "no_tidying": not tidies})
        return replace(self.work, report=report, options=options)

    def _sum_up(self, round_report: Report) -> None:
        """Add the counts of a round, and the last complaint about each event type, to the report of the run."""
        whole = self.work.report
        for what, counted in round_report.details.items():
            for subject, number in counted.items():
                add = whole.keep_maximum if what == "latency_seconds" else whole.count
                add(what, subject, number)
        subjects = {subject for subject, _ in round_report.complaints}
        whole.complaints[:] = [each for each in whole.complaints if each[0] not in subjects]
        whole.complaints += list({subject: (subject, text) for subject, text in round_report.complaints}.values())


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run("follow", _options(arguments), follow, has_one_trace=False)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("follow", DESCRIPTION)
    compaction.add_options(parser)
    rounds = parser.add_argument_group("rounds")
    rounds.add_argument(
        "--every-seconds", type=command.at_least(0.0), default=10.0, help="how often to look for new events, default 10"
    )
    rounds.add_argument(
        "--tidy-minutes",
        type=command.at_least(0.0),
        default=15.0,
        help="how often to tidy a table that changes, default 15",
    )
    rounds.add_argument("--until-idle", action="store_true", help="end as soon as there are no new events")
    return command.options(parser, sys.argv[1:] if arguments is None else arguments)


def follow(work: JobContext) -> None:
    """Repeat rounds until the process has to end; if requested, only until there is no news."""
    follower = Follower(work)
    with _handle_signals() as ending:
        while not ending.is_set():
            try:
                had_news = bool(follower.round())
            except Unavailable as reason:
                # A short outage of a store is no reason to restart Spark.
                work.report.info("log index", f"looking for new events failed, trying again: {reason}")
            else:
                if work.options.until_idle:
                    if not had_news:
                        break
                    continue
            ending.wait(work.options.every_seconds)
    report_runs(work)
    table_states.remove_deletion_note(work)


@contextmanager
def _handle_signals() -> Iterator[threading.Event]:
    """Let the first SIGINT or SIGTERM end the work after the current round, and the second one at once."""
    ending = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        # Threads other than the main one get no signals; their caller ends the process.
        yield ending
        return
    before: dict[int, Any] = {}

    def end(number: int, _frame: FrameType | None) -> None:
        ending.set()
        signal.signal(number, before[number])

    for ends in (signal.SIGINT, signal.SIGTERM):
        before[ends] = signal.signal(ends, end)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
