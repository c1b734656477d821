"""Removes expired events, events of deleted event types, and events to be erased.

`python -m nakadi_jobs.retention --help` explains the arguments, which are the same on a laptop and on Glue.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from nakadi.app.settings import Settings
from nakadi.engines.archive.evacuation import Evacuation, EvacuationBusy
from nakadi.engines.archive.merging import BlockCachingStore, PartitionBusy, SegmentMerger
from nakadi.engines.archive.segment_cache import UnreadableSegment
from nakadi.event_types.storages import STORAGES_KIND
from nakadi.event_types.table_retention import data_lake_retention
from nakadi.event_types.topic_directory import TopicDirectory
from nakadi.model.event_type import DEFAULT_STORAGE_ID, EventType
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import EventLog
from nakadi.ports.log_index import LogIndex
from nakadi.ports.registry import Registry
from nakadi_jobs import command, hot_log, leftovers
from nakadi_jobs.archive_ranges import NO_PROGRESS, ArchiveRange, unread_parts
from nakadi_jobs.command import BadArguments, JobContext, local_folder
from nakadi_jobs.dead_members import remove_dead_members
from nakadi_jobs.erasure import (
    ENVELOPE,
    ErasedValue,
    ErasureMode,
    Rewriter,
    RewrittenPart,
    Unreadable,
    group_by_partition,
    search_archive,
)
from nakadi_jobs.event_type_tables import (
    EVENT_TYPE_ID_PROPERTY,
    EVENT_TYPE_PROPERTY,
    EXPIRED_BEFORE_PROPERTY,
    all_tables,
    find_tables,
)
from nakadi_jobs.failed_events import find_dead_letters, remove_parked_events, search_redriven
from nakadi_jobs.in_tasks import run_in_tasks
from nakadi_jobs.namespaces import namespaces_of_broker
from nakadi_jobs.old_versions import remove_old_versions
from nakadi_jobs.places import LATEST_SUFFIX, ORDER, PLACES
from nakadi_jobs.reports import first_line
from nakadi_jobs.session import make_frame
from nakadi_jobs.tables import BRANCH_LIFETIME, ChangedMeanwhile, Table
from nakadi_jobs.wiping import wipe_data_files

DESCRIPTION = """\
Remove events.

  expire   of tables, what is older than the event type's annotation datalake.zalando.org/retention-period says, or than
           its retention time if it has none; the tables of event types that were deleted; and of the archive, objects
           without references, after their grace time. Many small neighbours in the archive become one,
           which is read in less time.
  erase    of one event type, the events with a certain value at a certain path, in the archive and in the tables.
           Offsets stay as they are: `remove` leaves holes, `blank` leaves events that say nothing.
           Dead letters and parked events with the value go too.
           What was touched is reported, and looked for again."""

DEFAULTS = Settings()

DELETED_SEEN_PROPERTY = "nakadi.deleted-seen-at"

ATTEMPTS = 5

REMAINING_EVENTS_NOTES = {
    "kinesis": "events still in the stream are removed by its retention, and are not delivered",
    "kafka": "events in Kafka are delivered until they are deleted there, NAKADI_HOT_RETENTION_MS after archiving",
}
"""Notes for operators about logs whose archived events an erasure does not reach, by storage type."""

MICROSECOND_FORMAT = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""The format for searching moments in tables."""

MERGED_SPAN = 24 * 3600 * 1_000_000
"""The longest period of the events in a merged part, in microseconds. A part is removed when all of it has expired, so
an event stays at most a day longer."""


def main(arguments: Sequence[str] | None = None) -> int:
    known = _options(arguments)
    return command.run("retention", known, erase if known.do == "erase" else expire)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("retention", DESCRIPTION)
    parser.add_argument("--do", choices=("expire", "erase"), default="expire", help="default expire")
    work = parser.add_argument_group("expire")
    work.add_argument(
        "--grace-hours", type=command.at_least(0.0), default=24.0, help="how long unneeded objects stay, default 24"
    )
    work.add_argument(
        "--merge-below",
        type=command.at_least(0),
        default=8_000,
        metavar="BYTES",
        help="merge adjacent archive objects whose compressed size is smaller; 0 merges none; default 8000",
    )
    work = parser.add_argument_group("erase")
    work.add_argument("--event-type", help="the event type")
    work.add_argument("--path", help="the path of the value, from the top of the event: customer.id, data.customer.id")
    value = work.add_mutually_exclusive_group()
    value.add_argument("--value", help="the value; for a number or a text")
    value.add_argument(
        "--value-file", help="file or s3:// object with the value, because Glue keeps the arguments of a job"
    )
    work.add_argument(
        "--how", type=ErasureMode, choices=tuple(ErasureMode), default=ErasureMode.REMOVE, help="default remove"
    )
    work.add_argument("--event-log", help="as NAKADI_EVENT_LOG; default sqlite:///DATA/nakadi.db")
    work.add_argument("--coordination", help="as NAKADI_COORDINATION; default where the registry is")
    work.add_argument("--dead-letter-queue", default=DEFAULTS.dead_letter_queue, help="as NAKADI_DEAD_LETTER_QUEUE")
    work.add_argument(
        "--dead-letter-redrive", default=DEFAULTS.dead_letter_redrive, help="as NAKADI_DEAD_LETTER_REDRIVE"
    )
    return command.options(parser, sys.argv[1:] if arguments is None else arguments)


# Expiry


def expire(work: JobContext) -> None:
    now = work.clock.now()
    known = {event_type.id: event_type for event_type in work.event_types.all()}
    for table in list(all_tables(work.spark, work.database)):
        identity = table.properties()[EVENT_TYPE_ID_PROPERTY]
        try:
            with work.spans.of_step("expire", table.name), work.exclusive(identity):
                _expire_table(work, table, known.get(identity), now)
        except (Py4JError, PySparkException, ChangedMeanwhile) as error:
            work.report.complain(table.name, f"is not done. {first_line(error)}")
    leftovers.remove_copies(work.table_files, f"{leftovers.GATHERED_FOLDER}/", now - BRANCH_LIFETIME)
    # The order matters: replaced objects stay until the next run, since somebody may be reading them.
    namespaces = namespaces_of_broker(work)
    with work.spans.of_step("sweep archive"):
        _sweep_archive(work, namespaces, now)
    with work.spans.of_step("evacuate archive"):
        _evacuate_archive(work, namespaces, now)
    with work.spans.of_step("merge archive"):
        _merge_archive(work)


def _expire_table(work: JobContext, table: Table, event_type: EventType | None, now: datetime) -> None:
    if event_type is None:
        _drop_deleted_table(work, table, now)
        return
    keep = data_lake_retention(event_type)
    if keep is None or table.name.endswith(LATEST_SUFFIX):
        return
    before = f"nakadi_time < TIMESTAMP '{now - keep:%Y-%m-%d %H:%M:%S}'"
    count = table.rows().where(before).count()
    if count:
        # The mark comes first: an unnecessary mark loses nothing, but without a mark, deleted keys would return to
        # `__latest`.
        table.set(EXPIRED_BEFORE_PROPERTY, (now - keep).isoformat())
        _change_table(table, lambda path: f"DELETE FROM {path} WHERE {before}")  # noqa: S608  # values are dates and numbers of this job
        work.report.info(event_type.name, f"{count} events older than {keep} are gone from {table.name}")


def _drop_deleted_table(work: JobContext, table: Table, now: datetime) -> None:
    """Drop the table of a deleted event type after a grace time, which begins when a job first sees the deletion."""
    name, seen = table.properties()[EVENT_TYPE_PROPERTY], table.properties().get(DELETED_SEEN_PROPERTY)
    if seen is None:
        table.set(DELETED_SEEN_PROPERTY, now.isoformat())
    grace = timedelta(hours=work.options.grace_hours)
    if now - datetime.fromisoformat(seen or now.isoformat()) >= grace:
        table.drop()
        work.report.info(name, f"was deleted, and {table.name} is gone too")
    else:
        work.report.info(name, f"was deleted; {table.name} goes after {work.options.grace_hours:g} hours")


def _sweep_archive(work: JobContext, namespaces: Collection[str], now: datetime) -> None:
    grace = timedelta(hours=work.options.grace_hours)
    swept = Evacuation(work.index, work.store, namespaces).sweep(now - grace, now)
    work.report.info(
        "archive", f"{swept.removed_count} objects ({swept.bytes_freed} bytes) that nothing refers to are gone"
    )


def _evacuate_archive(work: JobContext, namespaces: Collection[str], now: datetime) -> None:
    """Move members in use out of objects with dead members, so that these objects can be removed sooner."""
    try:
        result = Evacuation(work.index, BlockCachingStore(work.store), namespaces).vacate_partly_dead_objects(now)
    except EvacuationBusy:
        return  # another process is merging this archive
    for key, problem in result.problem_by_key.items():
        work.report.complain("archive", f"the live members of {key} could not be moved: {problem}")
    if result.moved_count:
        work.report.info(
            "archive", f"{result.moved_count} objects go with the next run: {result.dead_bytes} bytes in them are dead"
        )


def _merge_archive(work: JobContext) -> None:
    """Merge small segments of all partitions in the order of time, because those of a time are in the same objects."""
    merger = SegmentMerger(
        index=work.index,
        store=BlockCachingStore(work.store),
        event_type_name_of=TopicDirectory(work.event_types, work.clock.monotonic).event_type_name_of,
        max_small_segment_bytes=work.options.merge_below,
        max_span_microseconds=MERGED_SPAN,
        read_concurrently=True,
    )
    merged = pieces = 0
    for piece in sorted(piece for place in _find_partitions(work.index) for piece in merger.plan_merges(*place)):
        try:
            found = merger.merge_group(piece)
        except PartitionBusy:
            continue  # another process rewrites this partition; the next run tries again
        except (UnreadableSegment, Unavailable) as problem:
            work.report.complain("archive", f"not everything could be merged: {problem}")
            continue
        merged, pieces = merged + found, pieces + (found > 0)
    if pieces:
        work.report.info("archive", f"{merged + pieces} small segments are {pieces} now")


def _find_partitions(index: LogIndex) -> Iterator[tuple[str, int]]:
    for topic in index.topic_names():
        known = index.topic(topic)
        yield from ((topic, partition) for partition in range(known.partitions if known else 0))


# Erasure


def erase(work: JobContext) -> None:
    """Erase a value from the archive, then from tables, dead letters and parked events, and verify that it is gone."""
    event_type, wanted = _read_request(work)
    work.check_archive()  # the wrong archive would seem to contain nothing of the value
    work.report.details["erasure"] = describe_erasure(event_type, wanted, work.options.how)
    work.report.details |= {"archive": [], "replaced_objects": [], "removed_objects": [], "removed_versions": 0}
    url = work.options.event_log or f"sqlite:///{Path(work.options.data).absolute() / 'nakadi.db'}"
    meant = [(event_type, wanted), *find_dead_letters(work, event_type, wanted)]
    with hot_log.open_hot_log(url, work.clock) as hot:
        places = [place for each in meant for place in _erase_events(work, hot, *each)]
        # This comes last: as long as an event type has the events, consumers can park more of them.
        with work.spans.of_step("erase parked events"):
            places += map(str, remove_parked_events(work, meant))
        with work.spans.of_step("search redriven events"):
            places += map(str, search_redriven(work, hot, wanted))
    _report_verification(work, event_type, places)
    with work.spans.of_step("wipe data files"):
        wipe_data_files(work, url)
    for fact in remaining_event_notes(work.registry, event_type, url.partition(":")[0]):
        work.report.info("stream", fact)


def _erase_events(work: JobContext, hot: EventLog | None, event_type: EventType, wanted: ErasedValue) -> Sequence[str]:
    """Erase events of an event type, and return the places that still have the value."""
    with work.spans.of_step("erase", event_type.name), work.exclusive(event_type.id):
        searched: set[str] = set()
        rewritten = _rewrite_parts(work, event_type, _make_rewriter(work, hot, wanted), searched)
        for table in find_tables(work.spark, work.database, event_type):
            _erase_from_table(work, table, wanted, work.options.how)
        _remove_copies(work, event_type)
        holding = [*remove_dead_members(work, event_type, wanted)]
        holding += remove_old_versions(work, event_type, wanted, _folders_of(work, event_type))
        if hot is not None:
            holding += hot_log.remove_archived(hot, work.index, event_type, wanted)
        left = _find_left_in_archive(work, event_type, wanted, searched)
        places = [*(part.location.key for part in left), *map(str, holding)]
        try:
            places += _find_left_on_disk(work, event_type, wanted)
        except leftovers.Unreadable as file:
            work.report.complain(event_type.name, f"{file} cannot be looked through; run this again when it is gone")
    _report_erasure(work, event_type, rewritten)
    return places


def describe_erasure(event_type: EventType, wanted: ErasedValue, how: ErasureMode) -> dict[str, str]:
    """Describe the erasure for the report, with a digest instead of the value."""
    digest = hashlib.sha256(wanted.value.encode()).hexdigest()
    return {"event_type": event_type.name, "path": ".".join(wanted.path), "sha256_of_value": digest, "how": str(how)}


def _read_request(work: JobContext) -> tuple[EventType, ErasedValue]:
    asked = work.options
    if asked.value and asked.catalog in {"glue", "s3tables"}:
        raise BadArguments(
            "Arguments stay in the history of a job on Glue; name a file with the value by --value-file."
        )
    value = asked.value or (asked.value_file and read_value(asked.value_file))
    if not (asked.event_type and asked.path and value):
        raise BadArguments("To erase, --event-type, --path and --value or --value-file are needed.")
    if asked.how is ErasureMode.BLANK and asked.path.split(".")[0] in ENVELOPE:
        raise BadArguments("A blanked event keeps its metadata; use --how remove.")
    event_type = work.event_types.find(asked.event_type)
    if event_type is None:
        raise BadArguments(f'There is no event type "{asked.event_type}".')
    return event_type, ErasedValue(tuple(asked.path.split(".")), value)


def read_value(file: str) -> str:
    """Return the first line of a file or of an object in a bucket."""
    return command.read(file).partition("\n")[0]


def _make_rewriter(work: JobContext, hot: EventLog | None, wanted: ErasedValue) -> Rewriter:
    compacted = (
        work.index.set_compacted_until if hot is None else lambda *place: hot_log.trim(hot, work.index, *place[:2])
    )
    return Rewriter(work.index, work.store, wanted, work.options.how, compacted)


def remaining_event_notes(registry: Registry, event_type: EventType, built_in: str) -> Sequence[str]:
    """Notes for operators about each storage type with timelines of the event type. `built_in` is the type of
    the broker's own storage.
    """
    timelines = [*event_type.timelines, *([event_type.switching_to] if event_type.switching_to else [])]
    storages = {each.storage_id for each in timelines if not each.deleted}
    kinds = {built_in if each == DEFAULT_STORAGE_ID else _storage_kind(registry, each) for each in storages}
    return [fact for kind, fact in REMAINING_EVENTS_NOTES.items() if kind in kinds]


def _storage_kind(registry: Registry, storage_id: str) -> str:
    document = registry.get(STORAGES_KIND, storage_id)
    return "" if document is None else str(document.body["type"])


def _search_parts(work: JobContext, parts: Sequence[ArchiveRange], wanted: ErasedValue) -> Mapping[str, str]:
    """The names of the parts that have the value, and of unreadable parts with the reason."""
    return dict(run_in_tasks(work.spark, parts, partial(search_archive, work.archive.url, wanted)))


def _rewrite_parts(
    work: JobContext, event_type: EventType, rewriter: Rewriter, searched: set[str]
) -> Sequence[RewrittenPart]:
    """Rewrite the parts of the archive that have the value, and add the names of the others to `searched`."""
    done: list[RewrittenPart] = []
    parts = list(unread_parts(work.index, event_type, NO_PROGRESS))
    held = _search_parts(work, parts, rewriter.wanted)
    for part in parts:
        if held.get(part.name, "unknown"):
            searched.add(part.name)
            _complain_of_unreadable(work, held, part)
            continue
        try:
            found = rewriter.rewrite(part)
        except (Unreadable, Unavailable) as problem:
            work.report.complain(event_type.name, f"not everything could be looked at: {problem}")
            continue
        if found is not None:
            done.append(found)
            work.report.info(event_type.name, f"{len(found.offsets)} events erased: {found.new} replaces {found.old}")
    return done


def _complain_of_unreadable(work: JobContext, held: Mapping[str, str], part: ArchiveRange) -> None:
    if part.name in held:
        work.report.complain(work.options.event_type, f"not everything could be looked at: {held[part.name]}")


def _find_left_in_archive(
    work: JobContext, event_type: EventType, wanted: ErasedValue, searched: Container[str]
) -> Sequence[ArchiveRange]:
    """The parts that still have the value. Searched parts never change, so only new ones are searched."""
    new = [each for each in unread_parts(work.index, event_type, NO_PROGRESS) if each.name not in searched]
    held = _search_parts(work, new, wanted)
    for part in new:
        if held.get(part.name):
            _complain_of_unreadable(work, held, part)
    return [each for each in new if held.get(each.name) == ""]


def _report_verification(work: JobContext, event_type: EventType, places: Sequence[str]) -> None:
    gone = not places and not work.report.complaints
    work.report.details["verified_gone"] = gone
    work.report.details["left_in"] = places
    if gone:
        work.report.info(event_type.name, "verified: nothing of it is found in the archive or in tables")
    for place in places:
        work.report.complain(event_type.name, f"still found in {place}; run this again")


def _folders_of(work: JobContext, event_type: EventType) -> Sequence[str]:
    """The folders of the event type's tables, and of copies of its archive. The verification complains about tables
    elsewhere.
    """
    folders = [f"{leftovers.GATHERED_FOLDER}/{timeline.topic}" for timeline in event_type.timelines]
    for table in find_tables(work.spark, work.database, event_type):
        with suppress(leftovers.Unreadable):
            folders.append(leftovers.relative_folder(work.tables, table.location()))
    return folders


def _find_left_on_disk(work: JobContext, event_type: EventType, wanted: ErasedValue) -> Iterator[str]:
    """Search the rows of tables, files that no table shows, manifests, and copies."""
    for table in find_tables(work.spark, work.database, event_type):
        if find_places(table.rows(), wanted):
            yield f"the table {table.name}"
        if leftovers.search_bounds(table, wanted):
            yield f"manifests of the table {table.name}"
        yield from leftovers.search_files(
            table, work.table_files, work.tables, lambda rows: bool(find_places(rows, wanted)), work.spark
        )
        yield from leftovers.search_metadata(table, work.table_files, work.tables, wanted)
    for timeline in event_type.timelines:
        yield from leftovers.search_copies(work.table_files, timeline.topic, wanted)


def _report_erasure(work: JobContext, event_type: EventType, rewritten: Sequence[RewrittenPart]) -> None:
    work.report.details["archive"] += [
        {"event_type": event_type.name, "timeline": timeline, "partition": partition, "offsets": sorted(offsets)}
        for (timeline, partition), offsets in group_by_partition(rewritten).items()
    ]
    work.report.details["replaced_objects"] += [each.old for each in rewritten]
    count = sum(len(each.offsets) for each in rewritten)
    work.report.info(event_type.name, f"{count} events erased from the archive")


# Erasure in tables


def _erase_from_table(work: JobContext, table: Table, wanted: ErasedValue, how: ErasureMode) -> None:
    """Erase from the rows of a table, from its old snapshots, and from files of interrupted runs."""
    table.drop_other_states()
    found = find_places(table.rows(), wanted)
    if found:
        view = f"erased_from_{table.name}"
        make_frame(table.spark, found, "timeline int, partition int, offset bigint").createOrReplaceTempView(view)
        _change_table(table, lambda path: erase_statement(path, view, table.rows().columns, how))
        work.report.info(work.options.event_type, f"{len(found)} events erased from {table.name}")
    table.remove_replaced_rows()
    table.forget_deleted_files()
    # Old snapshots would still have the events.
    table.expire_snapshots_before(work.clock.now())
    table.remove_lost_files(_abandoned_before(work))


def _abandoned_before(work: JobContext) -> datetime:
    """Files of runs from before this moment are abandoned. On one machine, those are all files, since no other run
    works on this event type. In a bucket, another machine may be writing.
    """
    now = work.clock.now()
    return now - BRANCH_LIFETIME if local_folder(work.tables) is None else now + BRANCH_LIFETIME


def _remove_copies(work: JobContext, event_type: EventType) -> None:
    for timeline in event_type.timelines:
        leftovers.remove_copies(
            work.table_files, f"{leftovers.GATHERED_FOLDER}/{timeline.topic}/", _abandoned_before(work)
        )


def find_places(table: DataFrame, wanted: ErasedValue) -> Sequence[tuple[int, int, int]]:
    """The places of events in rows that have the value. Every row that may have it is checked exactly."""
    places = {name for name, _, _ in PLACES}
    payload = [F.col(f"`{name}`") for name in table.columns if name not in places]
    payload_text = F.to_json(F.struct(*payload), MICROSECOND_FORMAT) if payload else F.lit("{}")
    rows = table.select(*ORDER, "nakadi_key", "nakadi_tombstone", "nakadi_event", payload_text.alias("payload"))
    if not wanted.has_other_spellings:
        texts = F.concat_ws(" ", "nakadi_key", "nakadi_event", "payload")
        rows = rows.where(texts.contains(wanted.value) | texts.contains("\\"))
    found = rows.rdd.filter(partial(_row_contains, wanted)).map(lambda row: tuple(row[name] for name in ORDER))
    return [(timeline, partition, offset) for timeline, partition, offset in found.collect()]


def _row_contains(wanted: ErasedValue, row: Row) -> bool:
    text = row["nakadi_event"] or row["payload"]
    if row["nakadi_tombstone"]:
        return bool(row["nakadi_key"] == wanted.value)
    return text is not None and wanted.occurs_in_text(text.encode())


def erase_statement(path: str, view: str, columns: Sequence[str], how: ErasureMode) -> str:
    """Return the statement that removes or blanks the events of a view."""
    meant = f"({', '.join(ORDER)}) IN (TABLE {view})"
    if how is ErasureMode.REMOVE:
        return f"DELETE FROM {path} WHERE {meant}"  # noqa: S608  # values are dates and numbers of this job
    kept = {*ENVELOPE, *(name for name, _, _ in PLACES)} - {"nakadi_event", "nakadi_key"}
    emptied = ", ".join(f"`{name}` = NULL" for name in columns if name not in kept)
    return f"UPDATE {path} SET {emptied} WHERE {meant}"  # noqa: S608  # as above


def _change_table(table: Table, wanted: Callable[[str], str]) -> None:
    """Run a statement on a branch, and repeat it if another run was faster."""
    for _ in range(ATTEMPTS):
        try:
            with table.change() as change:
                table.spark.sql(wanted(change.path))
                change.publish()
        except ChangedMeanwhile:
            continue
        return
    raise ChangedMeanwhile(f"table {table.name}: changed by other runs during {ATTEMPTS} attempts")


if __name__ == "__main__":
    sys.exit(main())
