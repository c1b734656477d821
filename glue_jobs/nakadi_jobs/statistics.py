"""Measures the traffic of each event type from the archive: sizes, rates, parallelism, and recommended partitions.

`python -m nakadi_jobs.statistics --help` explains the arguments, which are the same on a laptop and on Glue.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import msgspec
from py4j.protocol import Py4JError
from pyarrow import ArrowException
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from nakadi.event_types.measured_statistics import (
    MEASURED_STATISTICS_KIND,
    MeasuredStatistics,
    measured_statistics_body,
)
from nakadi.model.event_type import Category, EventType
from nakadi.model.events import microseconds_since_epoch
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi.ports.registry import PutDocument, RemoveDocument
from nakadi.subscriptions.api.repository import SUBSCRIPTIONS_KIND as SUBSCRIPTIONS
from nakadi.subscriptions.api.repository import subscription_from_document
from nakadi_jobs import command, file_counts, measuring, plots, table_states
from nakadi_jobs.archive_ranges import NO_PROGRESS, ArchiveRange, Progress, unread_parts_since
from nakadi_jobs.command import BadArguments, JobContext
from nakadi_jobs.data_files import FilePlan, TimeRange
from nakadi_jobs.event_type_tables import events_table
from nakadi_jobs.file_counts import CountRequest, File
from nakadi_jobs.gathering import Reading
from nakadi_jobs.history import MEASUREMENTS, Measurement, record_measurements
from nakadi_jobs.leftovers import Unreadable, relative_folder
from nakadi_jobs.measuring import (
    Advice,
    Count,
    Traffic,
    advise_partition_count,
    default_statistic,
    first_minute,
    split_into_windows,
    traffic_of_period,
    window_start,
)
from nakadi_jobs.reports import first_line
from nakadi_jobs.tables import Table
from nakadi_jobs.transform import locate_lines, make_wanted_frame, select_topics, select_wanted

Result = TypeVar("Result")

EVENT_TYPES_PER_JOB = 100
"""The largest number of event types that one Spark job counts, because its plan has a part for each table."""

NO_EVENTS = "no events in the archive for this time"

DESCRIPTION = """\
Measure the traffic of each event type from the archive, and recommend a number of partitions.

For each window (an hour by default): sizes of stored events (mean, p50, p95, greatest), events a minute
(mean, peak), distinct publishers and consumers, how evenly partitions are filled, and the error of the number of
partitions.
Windows go to the table nakadi__statistics; measuring a window again replaces what was there. The whole period is what
`GET /event-types/{name}` returns as measured_statistic."""


class MeasuredEventType(msgspec.Struct, frozen=True):
    """The measurements of an event type."""

    event_type: EventType
    windows: Sequence[Traffic]
    period: Traffic
    consumers: int
    advice: Advice


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run("statistics", _options(arguments), measure_event_types)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("statistics", DESCRIPTION)
    work = parser.add_argument_group("measuring")
    work.add_argument("--hours", type=command.at_least(1), default=24, help="how long a period is measured, default 24")
    work.add_argument("--until", type=command.moment, help="up to this RFC 3339 time, default now")
    work.add_argument("--window-minutes", type=int, default=60, help="a divisor of a day, at least 60; default 60")
    work.add_argument(
        "--max-partitions", type=command.at_least(1), default=8, help="as NAKADI_MAX_PARTITIONS, default 8"
    )
    work.add_argument("--plots", help="folder or s3:// prefix to draw rate, sizes and skew to, as PNG")
    work.add_argument("--plot-days", type=command.at_least(1), default=7, help="days that plots show, default 7")
    return command.options(parser, sys.argv[1:] if arguments is None else arguments)


def measure_event_types(work: JobContext) -> None:
    """Measure every event type, store the results, and print them."""
    since, until, length = measured_period(work.options, work.clock.now())
    # Spark does not need to plan again after each stage, because little data is left after the first counts.
    work.spark.conf.set("spark.sql.adaptive.enabled", "false")
    work.spark.conf.set("spark.sql.shuffle.partitions", str(work.spark.sparkContext.defaultParallelism))
    consumers = count_consumers(work)
    timely = _find_active(work, since)
    found = [
        _measure_event_type(
            work, event_type, counts, split_into_windows(since, until, length), consumers.get(event_type.name, 0)
        )
        for event_type, counts in count_all(work, timely, since, until, length)
    ]
    if found:
        with work.spans.of_step("store"):
            _store_measurements(work, found, length, since, until)
    _remove_stale_measurements(work)
    work.show(format_measurements(found))
    if work.options.plots:
        _draw_plots(work, until)


def measured_period(options: argparse.Namespace, now: datetime) -> tuple[datetime, datetime, timedelta]:
    """The measured time: from the beginning of a window to the beginning of the current minute."""
    length = timedelta(minutes=options.window_minutes)
    if length < timedelta(hours=1) or timedelta(days=1) % length:
        raise BadArguments("--window-minutes has to be at least 60, and a divisor of the 1440 of a day.")
    until = (options.until or now).astimezone(UTC).replace(second=0, microsecond=0)
    if not options.until:
        # The current minute counts too, because a new publisher may have published events just now.
        until += timedelta(minutes=1)
    return window_start(until - timedelta(hours=options.hours), length), until, length


def _measure_event_type(
    work: JobContext,
    event_type: EventType,
    counts: Sequence[Count],
    spans: Sequence[tuple[datetime, datetime]],
    consumers: int,
) -> MeasuredEventType:
    """Measure each window, and all windows together."""
    partitions = event_type.timeline.partitions
    by_window: defaultdict[datetime, list[Count]] = defaultdict(list)
    for each in counts:
        by_window[each.window].append(each)
    # The time before the first event does not count: the event type may not have been in use yet.
    whole = traffic_of_period(counts, max(spans[0][0], first_minute(counts)), spans[-1][1], partitions)
    work.report.info(event_type.name, f"{whole.events} events measured")
    return MeasuredEventType(
        event_type=event_type,
        windows=[traffic_of_period(by_window[span[0]], *span, partitions) for span in spans if span[0] in by_window],
        period=whole,
        consumers=consumers,
        advice=advise_partition_count(default_statistic(whole, consumers), partitions, work.options.max_partitions),
    )


# Reading


class Source(msgspec.Struct, frozen=True):
    """Where to count the events of an event type: in the table as far as it is up to date, and after that in the
    archive.
    """

    event_type: EventType
    table: Table | None
    plan: FilePlan | None
    parts: Sequence[ArchiveRange]

    def rows(self) -> DataFrame:
        """The rows of the table in the state in which its files were listed."""
        assert self.table is not None
        assert self.plan is not None
        return self.table.rows_of(self.plan.snapshot)

    @property
    def is_stamped(self) -> bool:
        """Whether the broker writes the publisher into events."""
        return self.event_type.category is not Category.UNDEFINED


def count_all(
    work: JobContext, event_types: Sequence[EventType], since: datetime, until: datetime, length: timedelta
) -> Iterator[tuple[EventType, Sequence[Count]]]:
    """Count the events of many event types in one Spark job. If that fails, count each event type in its own job."""
    sources = [
        source
        for each in event_types
        for source in _try_for_event_type(work, each, partial(_find_source, work, each, since, until))
    ]
    for start in range(0, len(sources), EVENT_TYPES_PER_JOB):
        some = sources[start : start + EVENT_TYPES_PER_JOB]
        try:
            with work.spans.of_step("count"):
                counted = list(_count_sources(work, some, since, until, length))
            yield from counted
        except (Py4JError, PySparkException) as error:
            work.report.info("statistics", f"each event type is measured by itself: {first_line(error)}")
            for each in some:
                for found in _try_for_event_type(
                    work, each.event_type, partial(_count_sources, work, [each], since, until, length)
                ):
                    yield from found


def _try_for_event_type(work: JobContext, event_type: EventType, attempt: Callable[[], Result]) -> Iterator[Result]:
    """The result for an event type, if the attempt succeeds. A failure with one does not stop the others."""
    try:
        with work.spans.of_step("measure", event_type.name):
            result = attempt()
        yield result
    except (Py4JError, PySparkException) as error:
        gone = work.event_types.find(event_type.name) is None
        problem = "was deleted during the run" if gone else f"is not measured. {first_line(error)}"
        work.report.complain(event_type.name, problem)


def _find_active(work: JobContext, since: datetime) -> Sequence[EventType]:
    """The event types with new events. For the others, only their heads in the log index are read."""
    event_types = list(work.selected_event_types())
    places = {
        each.id: [(one.topic, number) for one in each.timelines for number in range(one.partitions)]
        for each in event_types
    }
    heads = work.index.index_heads([place for found in places.values() for place in found])
    timely = []
    for each in event_types:
        if any(heads[place].state.latest_stored_at >= microseconds_since_epoch(since) for place in places[each.id]):
            timely.append(each)
        else:
            work.report.info(each.name, NO_EVENTS)
    return timely


def _find_source(work: JobContext, event_type: EventType, since: datetime, until: datetime) -> Source:
    """The table as far as it is up to date, and after that the archive. Nothing older than the period is read."""
    table = events_table(work.spark, work.database, event_type)
    plan = table.plan_files(TimeRange("nakadi_time", since, until)) if table.exists() else None
    if plan is None or not plan.progress or not {"nakadi_size", "nakadi_publisher"} <= plan.columns:
        return _find_archive_source(work, event_type, since, until)
    parts = _parts_beyond(work, event_type, Progress.read(plan.progress), since, until)
    return Source(event_type, table, plan, parts)


def _find_archive_source(work: JobContext, event_type: EventType, since: datetime, until: datetime) -> Source:
    return Source(event_type, None, None, _parts_beyond(work, event_type, NO_PROGRESS, since, until))


def _parts_beyond(
    work: JobContext, event_type: EventType, progress: Progress, since: datetime, until: datetime
) -> Sequence[ArchiveRange]:
    found = unread_parts_since(work.index, event_type, progress, microseconds_since_epoch(since))
    return [part for part in found if part.since < microseconds_since_epoch(until)]


def _count_sources(
    work: JobContext, sources: Sequence[Source], since: datetime, until: datetime, length: timedelta
) -> Sequence[tuple[EventType, Sequence[Count]]]:
    """Count events in tables and in the archive in one job."""
    counts = _count_each_source(work, sources, since, until, length)
    earlier = [number for number, found in counts.items() if any(map(measuring.lacks_measurements, found))]
    if earlier:
        lines = [_find_archive_source(work, sources[each].event_type, since, until) for each in earlier]
        recounted = _count_each_source(work, lines, since, until, length)
        counts |= {number: recounted.get(at, []) for at, number in enumerate(earlier)}
    for number, source in enumerate(sources):
        _report_gone(work, source)
        if not counts.get(number):
            work.report.info(source.event_type.name, NO_EVENTS)
    return [(source.event_type, counts[number]) for number, source in enumerate(sources) if counts.get(number)]


def _count_each_source(
    work: JobContext, sources: Sequence[Source], since: datetime, until: datetime, length: timedelta
) -> dict[int, list[Count]]:
    """The counts of each source, by its number. Each source is counted in its own job."""
    requests = {number: CountRequest(since, None, length, source.is_stamped) for number, source in enumerate(sources)}
    counts = {number: _count_in_files(work, source, requests[number], until) for number, source in enumerate(sources)}
    rows = [
        measuring.events_in_table(source.rows(), str(number), since, until, stamped=source.is_stamped)
        for number, source in enumerate(sources)
        if source.table and counts[number] is None
    ]
    found: defaultdict[int, list[Count]] = defaultdict(list)
    for number, each in counts.items():
        found[number] += each or ()
    for number, count in _count_with_spark(work, sources, rows, since, until, length):
        found[number].append(count)
    return found


def _count_in_files(work: JobContext, source: Source, request: CountRequest, until: datetime) -> Sequence[Count] | None:
    """The counts of a table's files; None if there is no table, or if its files cannot be read without Spark."""
    if source.plan is None or not all(file.is_plain for file in source.plan.files):
        return None
    name, folder = source.event_type.name, f"{work.database}/{source.event_type.id}"
    try:
        files = [File(relative_folder(work.tables, file.path), file.size) for file in source.plan.files]
        known = file_counts.load_counts(work.table_files, folder)
        found = file_counts.count_files(work.files_of_tables(), files, known, request, until)
        if found.known != known:
            file_counts.save_counts(work.table_files, folder, found.known)
    except Unreadable:
        # The catalog may keep tables elsewhere.
        return None
    except (ArchiveObjectGone, Unavailable, OSError, ArrowException, Py4JError, PySparkException) as error:
        work.report.info(name, f"the table is read by Spark: {first_line(error)}")
        return None
    work.report.count("files_read", name, found.read)
    return found.counts


def _count_with_spark(
    work: JobContext,
    sources: Sequence[Source],
    rows: Sequence[DataFrame],
    since: datetime,
    until: datetime,
    length: timedelta,
) -> Iterator[tuple[int, Count]]:
    """Count rows, and lines of the archive, in one Spark job."""
    parts = [part for source in sources for part in source.parts]
    count = partial(_collect_counts, sources, rows, since=since, until=until, length=length)
    if not parts:
        return count(None)
    with work.archive.gather(parts) as gathered:
        reading = gathered.read_parts(parts)
        names = {line.topic: source.event_type.name for source in sources for line in source.event_type.timelines}
        for part, problem in reading.damaged:
            work.report.warn(names[part.topic], f"left out: {part.location.key} {problem}")
        return count(reading)


def _collect_counts(
    sources: Sequence[Source],
    rows: Sequence[DataFrame],
    reading: Reading | None,
    since: datetime,
    until: datetime,
    length: timedelta,
) -> Iterator[tuple[int, Count]]:
    frames = list(rows)
    if reading is not None and reading.parts:
        frames.append(measuring.events_in_lines(_select_lines(sources, reading), since, until))
    found = measuring.count_events(frames, length).collect() if frames else []
    return ((int(row["type"]), measuring.read_count(row)) for row in found)


def _select_lines(sources: Sequence[Source], reading: Reading) -> DataFrame:
    """The lines of all these event types, each with the number of its source."""
    types = {
        line.topic: (str(number), source.is_stamped)
        for number, source in enumerate(sources)
        for line in source.event_type.timelines
    }
    lines = locate_lines(select_topics(reading.lines, (part.topic for part in reading.parts)))
    return select_wanted(lines, make_wanted_frame(lines.sparkSession, reading.parts, types))


def _report_gone(work: JobContext, source: Source) -> None:
    """Report offsets that no longer have events and are in no table: these events are not measured."""
    gone = sum(part.end - part.first - part.events for part in source.parts if part.events is not None)
    if gone:
        work.report.count("empty_offsets", source.event_type.name, gone)
        work.report.info(source.event_type.name, f"{gone} offsets had no event any more, and are not measured")


def count_consumers(work: JobContext) -> Mapping[str, int]:
    """The number of subscribed applications and groups, by event type."""
    found: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    after = ""
    while page := work.registry.list(SUBSCRIPTIONS, after=after, limit=1000):
        for subscription in map(subscription_from_document, page):
            for name in subscription.event_types:
                found[name].add((subscription.owning_application, subscription.consumer_group))
        after = page[-1].key
    return {name: len(readers) for name, readers in found.items()}


# Writing


def _store_measurements(
    work: JobContext, found: Sequence[MeasuredEventType], length: timedelta, since: datetime, until: datetime
) -> None:
    measurements = [
        Measurement(each.event_type, window, each.consumers, each.advice) for each in found for window in each.windows
    ]
    with work.exclusive("statistics"):
        record_measurements(work.spark, work.database, measurements, length, (since, until), work.clock.now())
    for each in found:
        statistics = MeasuredStatistics(
            statistic=default_statistic(each.period, each.consumers),
            recommended_partitions=each.advice.recommended,
            measured_since=each.period.since,
            measured_until=each.period.until,
        )
        work.registry.write(
            PutDocument(MEASURED_STATISTICS_KIND, each.event_type.id, measured_statistics_body(statistics))
        )


def _remove_stale_measurements(work: JobContext) -> None:
    known = {event_type.id for event_type in work.event_types.all()}
    for document in work.registry.list(MEASURED_STATISTICS_KIND):
        if document.key not in known:
            work.registry.write(RemoveDocument(MEASURED_STATISTICS_KIND, document.key))
            file_counts.remove_counts(work.table_files, f"{work.database}/{document.key}")


def _draw_plots(work: JobContext, until: datetime) -> None:
    since = until - timedelta(days=work.options.plot_days)
    history = MEASUREMENTS.rows_since(work.spark, work.database, since)
    states = table_states.states_by_name(work)
    for name, content in {**plots.draw_plots(history), **plots.draw_table_plots(states, work.clock.now())}.items():
        command.write(work.options.plots, name, content)
        work.report.info("plots", name)


def format_measurements(found: Sequence[MeasuredEventType]) -> str:
    """Format measurements for a terminal."""
    head = (
        "event type",
        "events",
        "mean B",
        "p50 B",
        "p95 B",
        "max B",
        "a minute",
        "peak",
        "publ.",
        "cons.",
        "skew",
        "partitions",
    )
    lines = [head, *(_format_line(each) for each in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _format_line(found: MeasuredEventType) -> tuple[str, ...]:
    whole = found.period
    change = "" if not found.advice.error else f" (better {found.advice.recommended})"
    return (
        found.event_type.name,
        str(whole.events),
        f"{whole.size_mean:.0f}",
        str(whole.size_p50),
        str(whole.size_p95),
        str(whole.size_max),
        f"{whole.per_minute_mean:.1f}",
        str(whole.per_minute_peak),
        str(whole.publishers),
        str(found.consumers),
        f"{whole.partition_skew:.2f}",
        f"{found.advice.partitions}{change}",
    )


if __name__ == "__main__":
    sys.exit(main())
