"""Traffic of each event type, measured from the archive: sizes, rates, parallelism, and the partitions to have.

`python -m nakadi_jobs.statistics --help` explains the arguments; they are the same on a laptop and on Glue.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from nakadi.event_types.documents import MEASURED_KIND, MeasuredStatistics, measured_body
from nakadi.model.event_type import Category, EventType
from nakadi.ports.registry import Put, Remove
from nakadi.subscriptions.api.repository import KIND as SUBSCRIPTIONS
from nakadi.subscriptions.api.repository import subscription_of
from nakadi_jobs import command, measuring, plots, table_states
from nakadi_jobs.archive_ranges import NOTHING_READ, ArchiveRange, Progress, unread_parts
from nakadi_jobs.columns import Field, Struct
from nakadi_jobs.command import BadArguments, Workplace
from nakadi_jobs.history import Measurement, history_table, record, rows_since
from nakadi_jobs.measuring import Advice, Counts, Traffic, advice, begun, statistic, traffic, windows
from nakadi_jobs.reading import Reading
from nakadi_jobs.reports import in_a_line
from nakadi_jobs.tables import columns_of_all_versions, events_table
from nakadi_jobs.transform import among, located, of_topics

DESCRIPTION = """\
Measure the traffic of each event type from the archive, and recommend a number of partitions.

For each window (an hour by default): sizes of events (mean, p50, p95, greatest), events a minute (mean,
peak), distinct publishers and consumers, how evenly partitions are filled, and the error of the number of partitions.
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
    consumers = consumers_in(work)
    found = [each for event_type in work.chosen() for each in _one(work, event_type, since, until, length, consumers)]
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


def _one(
    work: Workplace,
    event_type: EventType,
    since: datetime,
    until: datetime,
    length: timedelta,
    consumers: Mapping[str, int],
) -> Sequence[Found]:
    try:
        counts = counts_of(work, event_type, since, until)
    except (Py4JError, PySparkException) as error:
        gone = work.event_types.find(event_type.name) is None
        problem = "was deleted during the run" if gone else f"is not measured. {in_a_line(error)}"
        work.report.complain(event_type.name, problem)
        return []
    if not counts:
        work.report.info(event_type.name, "no events in the archive for this time")
        return []
    readers = consumers.get(event_type.name, 0)
    found = measured(event_type, counts, windows(since, until, length), readers, work.options.max_partitions)
    work.report.info(event_type.name, f"{found.period.events} events measured")
    return [found]


def measured(
    event_type: EventType,
    counts: Sequence[Counts],
    spans: Sequence[tuple[datetime, datetime]],
    consumers: int,
    most_partitions: int,
) -> Found:
    """Each window by itself, and all of them together."""
    partitions = event_type.timeline.partitions
    per_window = [traffic(_within(counts, *span), *span, partitions) for span in spans]
    # The time before the first event does not count: the event type may not have been in use yet.
    first = min(each.minute for each in counts)
    whole = traffic(counts, max(spans[0][0], first), spans[-1][1], partitions)
    return Found(
        event_type=event_type,
        windows=[each for each in per_window if each.events],
        period=whole,
        consumers=consumers,
        advice=advice(statistic(whole, consumers), partitions, most_partitions),
    )


# Reading


def counts_of(work: Workplace, event_type: EventType, since: datetime, until: datetime) -> Sequence[Counts]:
    """Events of a time, counted by what matters: in the table as far as it goes, and in the archive beyond it."""
    columns = columns_of_all_versions(work.event_types, event_type)
    counted, progress = _counts_in_table(work, event_type, columns, since, until)
    found = [each for each in unread_parts(work.index, event_type, progress) if _overlaps(each, since, until)]
    _report_gone(work, event_type, found)
    if not found:
        return counted
    publisher = publisher_in(columns, event_type)
    if work.archive.worth_reading_in_place(found):
        try:
            return [*counted, *_counts(work.archive.in_place(found), publisher, since, until)]
        except (Py4JError, PySparkException) as error:
            work.report.info(event_type.name, f"reading each member of the archive by itself: {in_a_line(error)}")
    with work.archive.gathering(found) as reading:
        for part, problem in reading.damaged:
            work.report.warn(event_type.name, f"left out: {part.location.key} {problem}")
        return [*counted, *_counts(reading, publisher, since, until)]


def _report_gone(work: Workplace, event_type: EventType, found: Sequence[ArchiveRange]) -> None:
    """Count the offsets that have no event any more, and are in no table: what was published there is not measured."""
    gone = sum(part.end - part.first - part.events for part in found if part.events is not None)
    if gone:
        work.report.count("empty_offsets", event_type.name, gone)
        work.report.info(event_type.name, f"{gone} offsets had no event any more, and are not measured")


def _counts_in_table(
    work: Workplace, event_type: EventType, columns: Struct, since: datetime, until: datetime
) -> tuple[Sequence[Counts], Progress]:
    """What the table has, and how far it goes. One that does not know the sizes of its events is not used."""
    table = events_table(work.spark, work.database, event_type)
    text = table.progress() if table.exists() else ""
    if not text:
        return [], NOTHING_READ
    rows = table.rows()
    if "nakadi_size" not in rows.columns:
        return [], NOTHING_READ
    period = rows.where((F.col("nakadi_time") >= F.lit(since)) & (F.col("nakadi_time") < F.lit(until)))
    has_publisher = event_type.category is not Category.UNDEFINED and "metadata" in {
        each.name for each in columns.fields
    }
    publisher = measuring.PUBLISHER_IN_TABLE if has_publisher else measuring.NO_PUBLISHER
    counted = measuring.counted(measuring.of_table(period), publisher).collect()
    if any(row["largest"] is None for row in counted):
        return [], NOTHING_READ
    return [_counts_in(row) for row in counted], Progress.read(text)


def publisher_in(columns: Struct, event_type: EventType) -> str | None:
    """How the publisher is found in a line; None if that has to be tried out."""
    if event_type.category is Category.UNDEFINED:
        return measuring.NO_PUBLISHER
    payload = [field for field in columns.fields if field.name != "metadata"]
    return measuring.PUBLISHER_EXACTLY if any(map(_has_publisher, payload)) else None


def _has_publisher(field: Field) -> bool:
    within = field.kind.fields if isinstance(field.kind, Struct) else ()
    return field.name == "published_by" or any(map(_has_publisher, within))


def _counts(reading: Reading, publisher: str | None, since: datetime, until: datetime) -> Sequence[Counts]:
    lines = reading.lines
    if publisher is None:
        publisher = measuring.PUBLISHER_EXACTLY if measuring.ambiguous(lines) else measuring.PUBLISHER_AT_ONCE
    topics = {part.topic for part in reading.parts}
    return [_counts_in(row) for row in counts_frame(lines, topics, reading, publisher, since, until).collect()]


def counts_frame(
    lines: DataFrame, topics: set[str], reading: Reading, publisher: str, since: datetime, until: datetime
) -> DataFrame:
    """From lines to counts."""
    lines_of_type = measuring.sized(located(of_topics(lines, topics)))
    timely = measuring.between(lines_of_type, _minute(since), _minute(until))
    return measuring.counted(among(timely, reading.wanted(), by_file=reading.by_file), publisher)


def consumers_in(work: Workplace) -> Mapping[str, int]:
    """Event type -> how many applications and groups are subscribed to it."""
    found: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    after = ""
    while page := work.registry.list(SUBSCRIPTIONS, after=after, limit=1000):
        for subscription in map(subscription_of, page):
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
            since=each.period.since,
            until=each.period.until,
        )
        work.registry.write(Put(MEASURED_KIND, each.event_type.id, measured_body(statistics)))


def _remove_measurements_of_deleted(work: Workplace) -> None:
    known = {event_type.id for event_type in work.event_types.all()}
    for document in work.registry.list(MEASURED_KIND):
        if document.key not in known:
            work.registry.write(Remove(MEASURED_KIND, document.key))


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


def _counts_in(row: Row) -> Counts:
    minute = row["minute"]
    begun_at = (
        datetime.fromtimestamp(minute * 60, UTC)
        if isinstance(minute, int)
        else datetime.fromisoformat(f"{minute}:00+00:00")
    )
    return Counts(
        begun_at, row["partition"], row["publisher"], row["step"], row["events"], row["bytes"], row["largest"]
    )


def _within(counts: Sequence[Counts], since: datetime, until: datetime) -> Sequence[Counts]:
    return [each for each in counts if since <= each.minute < until]


def _overlaps(part: ArchiveRange, since: datetime, until: datetime) -> bool:
    return part.since < until.timestamp() * 1e6 and part.until >= since.timestamp() * 1e6


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M}"


if __name__ == "__main__":
    sys.exit(main())
