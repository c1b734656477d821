"""Traffic of each event type, measured from the archive: sizes, rates, parallelism, and the partitions to have.

`python -m nakadi_jobs.statistics --help` explains the arguments; they are the same on a laptop and on Glue.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from py4j.protocol import Py4JError
from pyarrow import ArrowException
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from nakadi.event_types.documents import MEASURED_STATISTICS_KIND, MeasuredStatistics, measured_statistics_body
from nakadi.model.event_type import Category, EventType
from nakadi.model.events import microseconds_since_epoch
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi.ports.registry import PutDocument, RemoveDocument
from nakadi.subscriptions.api.repository import SUBSCRIPTIONS_KIND as SUBSCRIPTIONS
from nakadi.subscriptions.api.repository import subscription_from_document
from nakadi_jobs import command, file_counts, measuring, plots, table_states
from nakadi_jobs.archive_ranges import NOTHING_READ, ArchiveRange, Progress, since_moment
from nakadi_jobs.command import BadArguments, Workplace
from nakadi_jobs.data_files import Planned, Times
from nakadi_jobs.event_type_tables import events_table
from nakadi_jobs.file_counts import Asked, File, TableFiles
from nakadi_jobs.history import Measurement, history_table, record, rows_since
from nakadi_jobs.leftovers import Unreadable, folder_in
from nakadi_jobs.measuring import Advice, Count, Traffic, advice, begun, first_minute, statistic, traffic, windows
from nakadi_jobs.reading import Reading
from nakadi_jobs.reports import in_a_line
from nakadi_jobs.tables import Table
from nakadi_jobs.transform import among, located, of_topics, wanted

Result = TypeVar("Result")

AT_ONCE = 100
"""Event types that are counted in one job of Spark: its plan has a part for each table."""

NOTHING = "no events in the archive for this time"

DESCRIPTION = """\
Measure the traffic of each event type from the archive, and recommend a number of partitions.

For each window (an hour by default): sizes of stored events (mean, p50, p95, greatest), events a minute
(mean, peak), distinct publishers and consumers, how evenly partitions are filled, and the error of the number of
partitions.
Windows go to the table nakadi__statistics; measuring a window again replaces what was there. The whole period is what
`GET /event-types/{name}` returns as measured_statistic."""


class Found(msgspec.Struct, frozen=True):
    """What was measured of an event type."""

    event_type: EventType
    windows: Sequence[Traffic]
    period: Traffic
    consumers: int
    advice: Advice


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run("statistics", _options(arguments), measure)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("statistics", DESCRIPTION)
    work = parser.add_argument_group("measuring")
    work.add_argument("--hours", type=int, default=24, help="how long a period is measured, default 24")
    work.add_argument("--until", help="to before this RFC 3339 time, default now")
    work.add_argument("--window-minutes", type=int, default=60, help="a divisor of a day, at least 60; default 60")
    work.add_argument("--max-partitions", type=int, default=8, help="as NAKADI_MAX_PARTITIONS, default 8")
    work.add_argument("--plots", help="folder or s3:// prefix to draw rate, sizes and skew to, as PNG")
    work.add_argument("--plot-days", type=int, default=7, help="days that plots show, default 7")
    return command.options(parser, sys.argv[1:] if arguments is None else arguments)


def measure(work: Workplace) -> None:
    """Measure every event type, write it down, and show it."""
    since, until, length = period(work.options, work.clock.now())
    # Spark need not think about these plans anew after each of their stages: what is counted soon is little.
    work.spark.conf.set("spark.sql.adaptive.enabled", "false")
    work.spark.conf.set("spark.sql.shuffle.partitions", str(work.spark.sparkContext.defaultParallelism))
    consumers = consumers_in(work)
    timely = _with_events_since(work, since)
    found = [
        _measured(work, event_type, counts, windows(since, until, length), consumers.get(event_type.name, 0))
        for event_type, counts in all_counts(work, timely, since, until, length)
    ]
    if found:
        _write(work, found, length, since, until)
    _remove_measurements_of_deleted(work)
    work.show(table_of(found))
    if work.options.plots:
        _draw(work, until)


def period(options: argparse.Namespace, now: datetime) -> tuple[datetime, datetime, timedelta]:
    """From the beginning of a window on, to before the current minute."""
    length = timedelta(minutes=options.window_minutes)
    if length < timedelta(hours=1) or timedelta(days=1) % length:
        raise BadArguments("--window-minutes has to be at least 60, and a divisor of the 1440 of a day.")
    until = datetime.fromisoformat(options.until) if options.until else now
    until = until.astimezone(UTC).replace(second=0, microsecond=0)
    if not options.until:
        # The current minute counts as far as it goes: a first try has just published.
        until += timedelta(minutes=1)
    return begun(until - timedelta(hours=options.hours), length), until, length


def _measured(
    work: Workplace,
    event_type: EventType,
    counts: Sequence[Count],
    spans: Sequence[tuple[datetime, datetime]],
    consumers: int,
) -> Found:
    """Each window by itself, and all of them together."""
    partitions = event_type.timeline.partitions
    by_window: defaultdict[datetime, list[Count]] = defaultdict(list)
    for each in counts:
        by_window[each.window].append(each)
    # The time before the first event does not count: the event type may not have been in use yet.
    whole = traffic(counts, max(spans[0][0], first_minute(counts)), spans[-1][1], partitions)
    work.report.info(event_type.name, f"{whole.events} events measured")
    return Found(
        event_type=event_type,
        windows=[traffic(by_window[span[0]], *span, partitions) for span in spans if span[0] in by_window],
        period=whole,
        consumers=consumers,
        advice=advice(statistic(whole, consumers), partitions, work.options.max_partitions),
    )


# Reading


class Source(msgspec.Struct, frozen=True):
    """Where the events of an event type are counted: in its table, as far as that goes, and in the archive beyond."""

    event_type: EventType
    table: Table | None
    planned: Planned | None
    parts: Sequence[ArchiveRange]

    def rows(self) -> DataFrame:
        """The rows of the table as it was when its files were looked for."""
        assert self.table is not None
        assert self.planned is not None
        return self.table.rows_of(self.planned.snapshot)

    @property
    def is_stamped(self) -> bool:
        """Whether the broker writes into events who published them."""
        return self.event_type.category is not Category.UNDEFINED


def all_counts(
    work: Workplace, event_types: Sequence[EventType], since: datetime, until: datetime, length: timedelta
) -> Iterator[tuple[EventType, Sequence[Count]]]:
    """Count the events of many event types in one job of Spark; if that fails, of each in one of its own."""
    sources = [
        source for each in event_types for source in _attempted(work, each, partial(_source, work, each, since, until))
    ]
    for start in range(0, len(sources), AT_ONCE):
        some = sources[start : start + AT_ONCE]
        try:
            yield from _counts(work, some, since, until, length)
        except (Py4JError, PySparkException) as error:
            work.report.info("statistics", f"each event type is measured by itself: {in_a_line(error)}")
            for each in some:
                for found in _attempted(work, each.event_type, partial(_counts, work, [each], since, until, length)):
                    yield from found


def _attempted(work: Workplace, event_type: EventType, attempt: Callable[[], Result]) -> Iterator[Result]:
    """What is found of an event type, if the attempt succeeds. A failure with one stops no other."""
    try:
        yield attempt()
    except (Py4JError, PySparkException) as error:
        gone = work.event_types.find(event_type.name) is None
        problem = "was deleted during the run" if gone else f"is not measured. {in_a_line(error)}"
        work.report.complain(event_type.name, problem)


def _with_events_since(work: Workplace, since: datetime) -> Sequence[EventType]:
    """The event types with news: the others cost nothing but a look at their heads in the log index."""
    event_types = list(work.chosen())
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
            work.report.info(each.name, NOTHING)
    return timely


def _source(work: Workplace, event_type: EventType, since: datetime, until: datetime) -> Source:
    """The table as far as it goes, and the archive beyond it. Of what is older than the period nothing is read."""
    table = events_table(work.spark, work.database, event_type)
    planned = table.planned(Times("nakadi_time", since, until)) if table.exists() else None
    if planned is None or not planned.progress or not {"nakadi_size", "nakadi_publisher"} <= planned.columns:
        return _source_in_archive(work, event_type, since, until)
    parts = _beyond(work, event_type, Progress.read(planned.progress), since, until)
    return Source(event_type, table, planned, parts)


def _source_in_archive(work: Workplace, event_type: EventType, since: datetime, until: datetime) -> Source:
    return Source(event_type, None, None, _beyond(work, event_type, NOTHING_READ, since, until))


def _beyond(
    work: Workplace, event_type: EventType, progress: Progress, since: datetime, until: datetime
) -> Sequence[ArchiveRange]:
    found = since_moment(work.index, event_type, progress, microseconds_since_epoch(since))
    return [part for part in found if part.since < microseconds_since_epoch(until)]


def _counts(
    work: Workplace, sources: Sequence[Source], since: datetime, until: datetime, length: timedelta
) -> Sequence[tuple[EventType, Sequence[Count]]]:
    """Count events in tables and in the archive at once."""
    counts = _counted(work, sources, since, until, length)
    earlier = [number for number, found in counts.items() if any(map(measuring.is_of_earlier_version, found))]
    if earlier:
        lines = [_source_in_archive(work, sources[each].event_type, since, until) for each in earlier]
        again = _counted(work, lines, since, until, length)
        counts |= {number: again.get(at, []) for at, number in enumerate(earlier)}
    for number, source in enumerate(sources):
        _report_gone(work, source)
        if not counts.get(number):
            work.report.info(source.event_type.name, NOTHING)
    return [(source.event_type, counts[number]) for number, source in enumerate(sources) if counts.get(number)]


def _counted(
    work: Workplace, sources: Sequence[Source], since: datetime, until: datetime, length: timedelta
) -> dict[int, list[Count]]:
    """Counts by the number of their source."""
    asked = {number: Asked(since, None, length, source.is_stamped) for number, source in enumerate(sources)}
    counts = {number: _counted_in_files(work, source, asked[number], until) for number, source in enumerate(sources)}
    rows = [
        measuring.of_table(source.rows(), str(number), since, until, stamped=source.is_stamped)
        for number, source in enumerate(sources)
        if source.table and counts[number] is None
    ]
    found: defaultdict[int, list[Count]] = defaultdict(list)
    for number, each in counts.items():
        found[number] += each or ()
    for number, count in _counted_by_spark(work, sources, rows, since, until, length):
        found[number].append(count)
    return found


def _counted_in_files(work: Workplace, source: Source, asked: Asked, until: datetime) -> Sequence[Count] | None:
    """What the files of a table have; None if there is no table, or if its files cannot be read without Spark."""
    if source.planned is None or not all(file.is_plain for file in source.planned.files):
        return None
    name, folder = source.event_type.name, f"{work.database}/{source.event_type.id}"
    try:
        files = [File(folder_in(work.tables, file.path), file.size) for file in source.planned.files]
        known = file_counts.load(work.table_files, folder)
        found = file_counts.counted(_table_files(work), files, known, asked, until)
        if found.known != known:
            file_counts.save(work.table_files, folder, found.known)
    except Unreadable:
        # In a catalog that keeps tables elsewhere.
        return None
    except (ArchiveObjectGone, Unavailable, OSError, ArrowException, Py4JError, PySparkException) as error:
        work.report.info(name, f"the table is read by Spark: {in_a_line(error)}")
        return None
    work.report.count("files_read", name, found.read)
    return found.counts


def _table_files(work: Workplace) -> TableFiles:
    url = f"{work.tables}?{urlsplit(work.archive.url).query}".rstrip("?")
    return TableFiles(work.spark, work.table_files, url)


def _counted_by_spark(
    work: Workplace,
    sources: Sequence[Source],
    rows: Sequence[DataFrame],
    since: datetime,
    until: datetime,
    length: timedelta,
) -> Iterator[tuple[int, Count]]:
    """Count rows, and lines of the archive, in one job."""
    parts = [part for source in sources for part in source.parts]
    count = partial(_collected, sources, rows, since=since, until=until, length=length)
    if not parts:
        return count(None)
    if work.archive.worth_reading_in_place(parts):
        try:
            return count(work.archive.in_place(parts))
        except (Py4JError, PySparkException) as error:
            work.report.info("archive", f"reading each member by itself: {in_a_line(error)}")
    with work.archive.gathering(parts) as gathered:
        reading = gathered.reading(parts)
        names = {line.topic: source.event_type.name for source in sources for line in source.event_type.timelines}
        for part, problem in reading.damaged:
            work.report.warn(names[part.topic], f"left out: {part.location.key} {problem}")
        return count(reading)


def _collected(
    sources: Sequence[Source],
    rows: Sequence[DataFrame],
    reading: Reading | None,
    since: datetime,
    until: datetime,
    length: timedelta,
) -> Iterator[tuple[int, Count]]:
    frames = list(rows)
    if reading is not None and reading.parts:
        frames.append(measuring.of_lines(_lines_of(sources, reading), since, until))
    found = measuring.counted(frames, length).collect() if frames else []
    return ((int(row["type"]), measuring.count_in(row)) for row in found)


def _lines_of(sources: Sequence[Source], reading: Reading) -> DataFrame:
    """The lines of all these event types, each with the number of its source."""
    types = {
        line.topic: (str(number), source.is_stamped)
        for number, source in enumerate(sources)
        for line in source.event_type.timelines
    }
    lines = located(of_topics(reading.lines, (part.topic for part in reading.parts)), by_file=reading.by_file)
    chosen = wanted(lines.sparkSession, reading.parts, types, by_file=reading.by_file)
    return among(lines, chosen, by_file=reading.by_file)


def _report_gone(work: Workplace, source: Source) -> None:
    """Count the offsets that have no event any more, and are in no table: what was published there is not measured."""
    gone = sum(part.end - part.first - part.events for part in source.parts if part.events is not None)
    if gone:
        work.report.count("empty_offsets", source.event_type.name, gone)
        work.report.info(source.event_type.name, f"{gone} offsets had no event any more, and are not measured")


def consumers_in(work: Workplace) -> Mapping[str, int]:
    """Event type -> how many applications and groups are subscribed to it."""
    found: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    after = ""
    while page := work.registry.list(SUBSCRIPTIONS, after=after, limit=1000):
        for subscription in map(subscription_from_document, page):
            for name in subscription.event_types:
                found[name].add((subscription.owning_application, subscription.consumer_group))
        after = page[-1].key
    return {name: len(readers) for name, readers in found.items()}


# Writing


def _write(work: Workplace, found: Sequence[Found], length: timedelta, since: datetime, until: datetime) -> None:
    measurements = [
        Measurement(each.event_type, window, each.consumers, each.advice) for each in found for window in each.windows
    ]
    with work.exclusive("statistics"):
        record(history_table(work.spark, work.database), measurements, length, since, until, work.clock.now())
    for each in found:
        statistics = MeasuredStatistics(
            statistic=statistic(each.period, each.consumers),
            recommended_partitions=each.advice.recommended,
            measured_since=each.period.since,
            measured_until=each.period.until,
        )
        work.registry.write(
            PutDocument(MEASURED_STATISTICS_KIND, each.event_type.id, measured_statistics_body(statistics))
        )


def _remove_measurements_of_deleted(work: Workplace) -> None:
    known = {event_type.id for event_type in work.event_types.all()}
    for document in work.registry.list(MEASURED_STATISTICS_KIND):
        if document.key not in known:
            work.registry.write(RemoveDocument(MEASURED_STATISTICS_KIND, document.key))
            file_counts.forget(work.table_files, f"{work.database}/{document.key}")


def _draw(work: Workplace, until: datetime) -> None:
    since = until - timedelta(days=work.options.plot_days)
    history = rows_since(history_table(work.spark, work.database), since)
    states = table_states.all_by_name(work)
    for name, content in {**plots.drawn(history), **plots.drawn_tables(states, work.clock.now())}.items():
        command.write(work.options.plots, name, content)
        work.report.info("plots", name)


def table_of(found: Sequence[Found]) -> str:
    """What was measured, for a terminal."""
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
    lines = [head, *(_line_of(each) for each in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _line_of(found: Found) -> tuple[str, ...]:
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
