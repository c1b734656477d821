"""Writes tables from the archive: an Iceberg table for each event type, and for compacted ones a second table with the
newest event of each key.

`python -m nakadi_jobs.compaction --help` explains the arguments, which are the same on a laptop and on Glue.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import msgspec
from py4j.protocol import Py4JError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from nakadi.model.annotations import MATERIALIZE_ANNOTATION
from nakadi.model.event_type import Category, EventType, PartitionStrategy
from nakadi_jobs import command, table_states, transform
from nakadi_jobs.archive_ranges import (
    NO_PROGRESS,
    ArchiveRange,
    Progress,
    refresh_ranges,
    split_into_batches,
    unblocked_prefixes,
    unread_parts,
)
from nakadi_jobs.columns import Struct
from nakadi_jobs.command import JobContext
from nakadi_jobs.event_type_tables import (
    EXPIRED_BEFORE_PROPERTY,
    all_tables,
    columns_of_all_versions,
    events_table,
    latest_table,
    lay_out,
    prepare_table,
    take_plain_name,
)
from nakadi_jobs.exact_values import MISFIT
from nakadi_jobs.expectations import count_unmet
from nakadi_jobs.gathering import GatheredMembers, IncompleteReading, Reading
from nakadi_jobs.misfits import Reason, misfit_reasons
from nakadi_jobs.plain_batches import RECOVERABLE_ERRORS, open_plain_batch
from nakadi_jobs.plain_lines import NotPlain
from nakadi_jobs.quality import report_runs
from nakadi_jobs.reports import first_line
from nakadi_jobs.run_ledger import BatchCounts
from nakadi_jobs.tables import PROGRESS_PROPERTY, AddedRows, Change, ChangedMeanwhile, Table

DESCRIPTION = """\
Keep the tables of the event types up to date with the archive.

Each event type has a table, named after it (order.placed: order_placed), with a column for each property of its
schema, and columns nakadi_… with the event's place. It is partitioned by day and sorted by partition and offset.
Event types that are compacted, and those of the category data that are partitioned by hash, have a second table,
…__latest, with the newest event of each key, without those that a tombstone or the operation D took away.
An event is in its table exactly once, however often this runs; what was archived late is picked up by the next run."""

ATTEMPTS = 5

MAX_EXPLAINED_MISFITS = 1000
"""The largest number of misfits in a batch whose reasons a run finds."""

NOTHING = AddedRows(0, 0)

BranchWriter = Callable[[Reading], int]


class TableOutcome(msgspec.Struct, frozen=True):
    """The result of adding a batch of ranges to a table."""

    read: Sequence[ArchiveRange]
    damaged: Sequence[tuple[ArchiveRange, str]]
    added: AddedRows
    misfits: int
    misfit_reasons: Counter[Reason]

    @property
    def empty(self) -> int:
        """The number of offsets that no longer have an event."""
        return _count_offsets(self.read) - self.added.rows


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run("compaction", _options(arguments), compact)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("compaction", DESCRIPTION)
    add_options(parser)
    return command.options(parser, sys.argv[1:] if arguments is None else arguments)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for writing and maintaining tables."""
    work = parser.add_argument_group("tables")
    work.add_argument(
        "--batch-mb", type=command.at_least(1), default=2048, help="compressed megabytes of a commit, default 2048"
    )
    work.add_argument(
        "--at-once", type=command.at_least(1), default=2, help="event types worked on at the same time, default 2"
    )
    work.add_argument(
        "--keep-snapshots-days",
        type=command.at_least(0.0),
        default=3.0,
        help="how long queries can look back, default 3",
    )
    work.add_argument(
        "--keep-days",
        type=command.at_least(0),
        default=0,
        help="days for which to keep the state at the end of each day, as the tag day-2026-11-22; default 0",
    )
    work.add_argument(
        "--orphans-after-days",
        type=command.at_least(0.0),
        default=3.0,
        help="age at which lost files are removed, default 3",
    )
    work.add_argument(
        "--read-damaged", action="store_true", help="read again the objects that were damaged at the last run"
    )
    work.add_argument(
        "--late-after-minutes",
        type=command.at_least(0.0),
        default=60.0,
        help="count events as late if they occurred this long before the broker stored them, default 60",
    )
    work.add_argument(
        "--no-quality",
        action="store_true",
        help="do not count late events and duplicates, and do not write the table nakadi__runs",
    )
    work.add_argument(
        "--lineage-url",
        default=os.environ.get("OPENLINEAGE_URL"),
        help="URL of a service that gets OpenLineage events about each run; default OPENLINEAGE_URL, or none",
    )
    work.add_argument(
        "--lineage-namespace", default="nakadi", help="the name of this broker in such events, default nakadi"
    )
    work.add_argument("--no-tidying", action="store_true", help="do not tidy small files, old snapshots and lost files")


def compact(work: JobContext) -> None:
    """Bring all tables up to date, and print their sizes."""
    update_all_tables(work, list(work.selected_event_types()))
    table_states.remove_deletion_note(work)
    table_states.warn_of_misfits(work)
    with work.spans.of_step("report"):
        report_runs(work)
    work.show(format_tables(list(all_tables(work.spark, work.database))))


def update_all_tables(work: JobContext, event_types: Sequence[EventType]) -> None:
    """Bring the tables of these event types up to date. A failure with one does not stop the others."""
    wanted = [each for each in event_types if each.annotations.get(MATERIALIZE_ANNOTATION) != "off"]
    for each in event_types:
        if each not in wanted:
            work.report.info(each.name, f"no table, as its annotation {MATERIALIZE_ANNOTATION} says")
    with ThreadPoolExecutor(max(1, work.options.at_once)) as pool:
        for some, parts in _group_by_shared_objects(work, wanted):
            try:
                with work.archive.gather(parts) as gathered:
                    _run_each(pool, partial(_run_one, work, partial(_add_gathered, work, gathered, parts)), some)
            except (Py4JError, PySparkException) as error:
                work.report.info("archive", f"each event type is read by itself: {first_line(error)}")
                break
        _run_each(pool, partial(_run_one, work, partial(update_tables, work)), wanted)


def _run_each(pool: ThreadPoolExecutor, task: Callable[[EventType], None], event_types: Sequence[EventType]) -> None:
    # Spark gives each thread a connection, which this call closes.
    for _ in pool.map(inheritable_thread_target(task), event_types):
        pass


def _group_by_shared_objects(
    work: JobContext, event_types: Sequence[EventType]
) -> Iterator[tuple[Sequence[EventType], Sequence[ArchiveRange]]]:
    """Groups of event types whose new events lie in the same objects, with the ranges to read together, oldest first.

    An event type may be in several groups, which have its new events in order, so no table skips any.
    """
    news: dict[str, list[ArchiveRange]] = {}
    outdated = table_states.find_outdated(work, event_types)
    for each in outdated if len(outdated) > 1 else ():
        try:
            progress = _read_progress(events_table(work.spark, work.database, each))
        except (Py4JError, PySparkException):
            continue  # `update_tables` reports the error
        parts = unread_parts(work.index, each, progress)
        news[each.id] = [part for part in parts if work.options.read_damaged or part.name not in progress.damaged]
    readers = Counter(key for parts in news.values() for key in {part.location.key for part in parts})
    sharing = {each for each, parts in news.items() if any(readers[part.location.key] > 1 for part in parts)}
    owners = {part.topic: each for each in sharing for part in news[each]}
    for batch in split_into_batches((part for each in sharing for part in news[each]), work.options.batch_mb * 2**20):
        here = {owners[part.topic] for part in batch}
        yield [each for each in event_types if each.id in here], batch


def format_tables(tables: Sequence[Table]) -> str:
    """Format the names and sizes of tables for a terminal."""
    lines = [f"{'table':40s} {'events':>14s} {'files':>8s} {'MB':>10s}"]
    for table in tables:
        known = table.summary()
        # Replaced rows of a `…__latest` table stay in its files until the job merges these.
        events = int(known.get("total-records", 0)) - int(known.get("total-position-deletes", 0))
        files, size = known.get("total-data-files", "0"), int(known.get("total-files-size", 0)) / 1e6
        lines.append(f"{table.name:40s} {events:>14d} {files:>8s} {size:10.1f}")
    return "\n".join(lines)


def _run_one(work: JobContext, task: Callable[[EventType], None], event_type: EventType) -> None:
    begun = work.clock.monotonic()
    try:
        with work.spans.of_step("update", event_type.name), work.exclusive(event_type.id):
            task(event_type)
    except (Py4JError, PySparkException, IncompleteReading, ChangedMeanwhile) as error:
        if _is_gone(work, event_type):
            work.report.complain(event_type.name, "was deleted during the run; its table was not changed")
        else:
            work.report.complain(event_type.name, f"is not done. {first_line(error)}")
    finally:
        work.runs.add_seconds(event_type, work.clock.monotonic() - begun)


def _add_gathered(
    work: JobContext, gathered: GatheredMembers, parts: Sequence[ArchiveRange], event_type: EventType
) -> None:
    """Add the events that were gathered for many event types to the table of one. `update_tables` adds the rest."""
    table = events_table(work.spark, work.database, event_type)
    columns = columns_of_all_versions(work.event_types, event_type, table)
    prepare_table(table, event_type, columns, by_day=True)
    lay_out(table, event_type)  # `update_tables` follows for each event type, and warns if this is refused
    progress = _read_progress(table)
    names = {part.name for part in parts} | progress.damaged
    batch = [
        part
        for part in unblocked_prefixes(unread_parts(work.index, event_type, progress), names)
        if work.options.read_damaged or part.name not in progress.damaged
    ]
    if not batch:
        return
    work.report.expect(event_type.name, _count_offsets(batch))
    try:
        outcome, _ = _write_batch(work, event_type, table, columns, gathered.read_parts(batch), progress)
    except (Py4JError, PySparkException, IncompleteReading, ChangedMeanwhile) as error:
        work.report.info(event_type.name, f"is read by itself: {first_line(error)}")
        return
    _record_batch(work, event_type, table, batch, outcome, is_new=progress == NO_PROGRESS)


def update_tables(work: JobContext, event_type: EventType) -> None:
    """Bring the tables of an event type up to date with the archive."""
    events = take_plain_name(work.spark, work.database, event_type)
    if _is_idle(work, event_type, events):
        work.report.info(event_type.name, "nothing new")
        table_states.store_missing_state(work, event_type, events)
        return
    columns = columns_of_all_versions(work.event_types, event_type, events)
    prepare_table(events, event_type, columns, by_day=True)
    if problem := lay_out(events, event_type):
        work.report.warn(event_type.name, f"{events.name} is partitioned and sorted as it was. {problem}")
    _fill_with_retries(work, event_type, events, columns)
    if has_current_state(event_type):
        latest = latest_table(events)
        prepare_table(latest, event_type, columns, by_day=False)
        _merge_current_state_with_retries(work, event_type, events, latest)
        _tidy_and_report(work, event_type, latest)
    _tidy_and_report(work, event_type, events)


def _is_idle(work: JobContext, event_type: EventType, table: Table) -> bool:
    """Whether there is nothing to do. Asking Iceberg and Spark for details would take a second each."""
    if not table.exists() or not (work.options.no_tidying or table.is_tidy(work.clock.now())):
        return False
    progress = _read_progress(table)
    if progress == NO_PROGRESS or progress.damaged or any(unread_parts(work.index, event_type, progress)):
        return False
    if not has_current_state(event_type):
        return True
    latest = latest_table(table)
    return latest.exists() and _read_progress(latest) == progress


# All events


def _fill_with_retries(work: JobContext, event_type: EventType, table: Table, columns: Struct) -> None:
    for _ in range(ATTEMPTS):
        try:
            return _add_batches(work, event_type, table, columns)
        except ChangedMeanwhile:
            work.report.info(event_type.name, "the table or the archive was changed by another run; trying again")
    raise ChangedMeanwhile(f"table {table.name}: changed by other runs during {ATTEMPTS} attempts")


def _add_batches(work: JobContext, event_type: EventType, table: Table, columns: Struct) -> None:
    """Add the events of the archive, batch by batch. Each batch is one commit, which also stores the progress."""
    progress = _read_progress(table)
    found = _skip_damaged(work, event_type, list(unread_parts(work.index, event_type, progress)), progress)
    if not found:
        work.report.info(event_type.name, "nothing new")
        table_states.store_missing_state(work, event_type, table)
        return
    work.report.expect(event_type.name, _count_offsets(found))
    for batch in split_into_batches(found, work.options.batch_mb * 2**20):
        is_new = progress == NO_PROGRESS
        outcome, progress = _add_batch(work, event_type, table, columns, batch, progress)
        _record_batch(work, event_type, table, batch, outcome, is_new=is_new)


def _record_batch(
    work: JobContext,
    event_type: EventType,
    table: Table,
    batch: Sequence[ArchiveRange],
    outcome: TableOutcome,
    *,
    is_new: bool,
) -> None:
    """Record the commit of a batch: in the registry, in the counts of the run, and in its report."""
    waited = table_states.store_state(work, event_type, table, batch, outcome.read, outcome.misfits, is_new=is_new)
    counts = BatchCounts(
        read=outcome.read,
        damaged=[part for part, _ in outcome.damaged],
        rows=outcome.added.rows,
        misfits=outcome.misfits,
        misfit_reasons=outcome.misfit_reasons,
        unmet=count_unmet(work, event_type, outcome.read),
        lag_seconds=waited,
        bytes_written=outcome.added.size,
    )
    work.runs.add_batch(event_type, counts)
    work.report.advance(event_type.name, _count_offsets(batch))
    _report_outcome(work, event_type, table, outcome)


def _count_offsets(parts: Sequence[ArchiveRange]) -> int:
    return sum(part.end - part.first for part in parts)


def _skip_damaged(
    work: JobContext, event_type: EventType, found: Sequence[ArchiveRange], progress: Progress
) -> Sequence[ArchiveRange]:
    """Leave out ranges that were damaged when they were last read, unless the options ask for them, and report how many
    events are missing.
    """
    if work.options.read_damaged:
        return found
    left_out = [part for part in found if part.name in progress.damaged]
    if left_out:
        events = _count_offsets(left_out)
        work.report.count("missing", event_type.name, events)
        tell = work.report.info if table_states.is_missing_acknowledged(work, event_type, events) else work.report.warn
        tell(
            event_type.name,
            f"{events} events are missing, in {len(left_out)} damaged parts of the archive. "
            "If the archive was repaired, or was the wrong one, --read-damaged reads them",
        )
    return [part for part in found if part.name not in progress.damaged]


def _add_batch(
    work: JobContext,
    event_type: EventType,
    table: Table,
    columns: Struct,
    batch: Sequence[ArchiveRange],
    progress: Progress,
) -> tuple[TableOutcome, Progress]:
    """Add a batch to a table: without Spark where that is possible, otherwise through copies that Spark reads."""
    try:
        with open_plain_batch(work, table, columns, batch) as reading:
            return _write_batch(work, event_type, table, columns, reading, progress)
    except NotPlain:
        pass
    except (*RECOVERABLE_ERRORS, IncompleteReading) as error:
        work.report.info(event_type.name, f"Spark reads the archive: {first_line(error)}")
    with work.archive.gather(batch) as gathered:
        return _write_batch(work, event_type, table, columns, gathered.read_parts(batch), progress)


def _write_batch(
    work: JobContext, event_type: EventType, table: Table, columns: Struct, reading: Reading, progress: Progress
) -> tuple[TableOutcome, Progress]:
    if reading.damaged:
        work.check_archive()  # the archive may have been unmounted since the start
    following = progress.after_reading(reading.parts, (part for part, _ in reading.damaged))
    with table.change() as change:
        added, misfits = _append_lines(change, reading, columns, following) if reading.has_lines else (NOTHING, 0)
        if reading.files or not reading.has_lines:
            by_files = change.append_files(reading.files, following.to_text())
            added = AddedRows(added.rows + by_files.rows, added.size + by_files.size)
        count = added.rows
        if reading.expected_events() is not None and count != reading.expected_events():
            raise IncompleteReading(f"{reading.expected_events()} events should be there, {count} are")
        _check_unchanged(work, event_type, [*reading.parts, *(each for each, _ in reading.damaged)])
        if count or following != progress:
            change.publish()
    reasons = _find_misfit_reasons(work, event_type, reading, columns) if misfits else Counter[Reason]()
    return TableOutcome(reading.parts, reading.damaged, added, misfits, reasons), following


def _append_lines(change: Change, reading: Reading, columns: Struct, following: Progress) -> tuple[AddedRows, int]:
    """Append the lines as rows. Returns what was added, and the number of rows that do not fit the columns."""
    seen = Observation()
    rows = make_rows(reading, columns).observe(seen, F.sum(F.col(MISFIT).cast("int")).alias("misfits"))
    added = change.append(transform.sort_events(rows.drop(MISFIT)), following.to_text())
    return added, (seen.get["misfits"] or 0) if added.rows else 0


def _find_misfit_reasons(work: JobContext, event_type: EventType, reading: Reading, columns: Struct) -> Counter[Reason]:
    """Count the reasons why events do not fit the columns. This reads the lines again."""
    texts = make_rows(reading, columns).where(MISFIT).select("nakadi_event").limit(MAX_EXPLAINED_MISFITS)
    try:
        misfits = texts.collect()
    except (Py4JError, PySparkException) as error:
        # The table already has the events, so an incomplete report must not fail the run.
        work.report.info(event_type.name, f"no reasons for misfits. {first_line(error)}")
        return Counter()
    return Counter(reason for row in misfits for reason in misfit_reasons(row[0], columns))


def make_rows(reading: Reading, columns: Struct) -> DataFrame:
    """Turn lines of the archive into rows of the table."""
    lines = transform.select_topics(reading.lines, (part.topic for part in reading.parts))
    wanted = transform.select_placed(transform.parse_lines(lines, columns, reading.parts), reading.parts)
    return transform.table_rows(wanted, columns)


def _check_unchanged(work: JobContext, event_type: EventType, read: Sequence[ArchiveRange]) -> None:
    """Raise `ChangedMeanwhile` if a range was replaced while it was read: an erasure may have removed events."""
    now = {each.location for each in refresh_ranges(work.index, event_type, read)}
    if any(part.location not in now for part in read):
        raise ChangedMeanwhile(event_type.name)


def _report_outcome(work: JobContext, event_type: EventType, table: Table, outcome: TableOutcome) -> None:
    work.report.info(event_type.name, f"{outcome.added.rows} events into {table.name}")
    if outcome.empty:
        work.report.count("empty_offsets", event_type.name, outcome.empty)
        work.report.info(event_type.name, f"{outcome.empty} offsets had no event any more: compacted away, or erased")
    if outcome.misfits:
        work.report.count("misfits", event_type.name, outcome.misfits)
        work.report.warn(
            event_type.name,
            f"{outcome.misfits} events do not fit the columns; they are whole in nakadi_event (table {table.name})",
        )
    for part, problem in outcome.damaged:
        place = f"partition {part.partition} of timeline {part.timeline}, offsets {part.first}-{part.end - 1}"
        work.report.count("missing", event_type.name, part.end - part.first)
        work.report.complain(event_type.name, f"{place} are missing, {part.location.key} {problem}")


# The newest event of each key


def _merge_current_state_with_retries(work: JobContext, event_type: EventType, events: Table, latest: Table) -> None:
    """Bring the second table up to date with the first. Repeating this is harmless: progress is stored last."""
    for _ in range(ATTEMPTS):
        known, stored = _read_progress(latest), _read_progress(events)
        if known == stored:
            return
        try:
            _merge_current_state(event_type, events, latest, known, stored)
        except ChangedMeanwhile:
            continue
        latest.set(PROGRESS_PROPERTY, stored.to_text())
        work.report.info(event_type.name, f"newest events into {latest.name}")
        return
    raise ChangedMeanwhile(f"table {latest.name}: changed by other runs during {ATTEMPTS} attempts")


def _merge_current_state(
    event_type: EventType, events: Table, latest: Table, known: Progress, stored: Progress
) -> None:
    """Merge the newest event of each key that has new events.

    New rows of the first table may be older than the known event of their key: they filled a gap, or come from another
    partition. So this considers all events of these keys that are at least as new as the oldest new row, including
    deletions, which leave no row.
    """
    new = events.rows().where(
        _news_condition(event_type, known, stored, events.properties().get(EXPIRED_BEFORE_PROPERTY))
    )
    oldest = new.agg(F.min("nakadi_timeline"), F.min(F.expr("unix_micros(nakadi_time)"))).first()
    if oldest is None or oldest[0] is None:
        return
    as_new = events.rows().where(f"nakadi_timeline > {oldest[0]} or nakadi_time >= timestamp_micros({oldest[1] or 0})")
    keys = new.where("nakadi_key is not null").select("nakadi_key").distinct()
    view = f"newest_of_{events.name}"
    transform.newest_per_key(as_new.join(keys, "nakadi_key", "left_semi")).createOrReplaceTempView(view)
    with latest.change() as change:
        events.spark.sql(merge_statement(change.path, view, has_operations=event_type.category is Category.DATA))
        change.publish()


def has_current_state(event_type: EventType) -> bool:
    """Whether the newest event of a key is its current state, as in compacted event types and keyed data changes."""
    has_keys = event_type.partition_strategy is PartitionStrategy.HASH
    return event_type.cleanup_policy.compacts or (event_type.category is Category.DATA and has_keys)


def merge_statement(table: str, newest: str, *, has_operations: bool) -> str:
    """Return the statement that replaces older events by newer ones, and removes those that are deleted.

    A tombstone deletes the event of its key; with `has_operations`, so does a data change whose operation is D.
    """
    deletes = (
        "(new.nakadi_tombstone OR coalesce(new.data_op = 'D', false))" if has_operations else "new.nakadi_tombstone"
    )
    newer = " > ".join(
        f"struct({each}.nakadi_timeline, {each}.nakadi_time, {each}.nakadi_partition, {each}.nakadi_offset)"
        for each in ("new", "old")
    )
    return f"""
        MERGE INTO {table} old USING {newest} new ON old.nakadi_key = new.nakadi_key
        WHEN MATCHED AND {deletes} AND {newer} THEN DELETE
        WHEN MATCHED AND {newer} THEN UPDATE SET *
        WHEN NOT MATCHED AND NOT {deletes} THEN INSERT *
    """


def _news_condition(event_type: EventType, known: Progress, stored: Progress, expired_before: str | None) -> str:
    """Return the condition for rows that the first table has gained since the second was last updated.

    Events in a gap that are older than the last expiry are not new: newer events of their keys may have been removed,
    including deletions. Events after the gap cannot have lost a newer event.
    """
    orders = {timeline.topic: timeline.order for timeline in event_type.timelines}
    following = {place: (known.following.get(place, 0), end) for place, end in stored.following.items()}
    gained = [(orders[place[0]], place[1], *found) for place, found in following.items() if place[0] in orders]
    filled = [
        (orders[topic], partition, *gap)
        for (topic, partition), gaps in known.gaps.items()
        for gap in gaps
        if topic in orders
    ]
    condition = f"({transform.range_condition(filled)})"
    if expired_before:
        condition += f" and nakadi_time >= timestamp '{expired_before}'"
    return f"{transform.range_condition(each for each in gained if each[2] < each[3])} or ({condition})"


# Housekeeping


def _tidy_and_report(work: JobContext, event_type: EventType, table: Table) -> None:
    if work.options.no_tidying:
        return
    try:
        done = table.tidy(
            work.clock.now(),
            keep_snapshots=timedelta(days=work.options.keep_snapshots_days),
            keep_days=work.options.keep_days,
            orphans_after=timedelta(days=max(1.0, work.options.orphans_after_days)),
        )
    except (Py4JError, PySparkException) as error:
        # Another run may be tidying; the next run tidies again anyway.
        work.report.info(event_type.name, f"{table.name} was not tidied. {first_line(error)}")
        return
    for what, count in done.items():
        work.report.info(event_type.name, f"{table.name}: {count} {what}")


def _read_progress(table: Table) -> Progress:
    text = table.progress() if table.exists() else ""
    return Progress.read(text) if text else NO_PROGRESS


def _is_gone(work: JobContext, event_type: EventType) -> bool:
    now = work.event_types.find(event_type.name)
    return now is None or now.id != event_type.id


if __name__ == "__main__":
    sys.exit(main())
