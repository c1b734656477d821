"""The registry's document about each table. The broker shows the document, and uses it to decide whether a job has work
to do.

A job writes the state after the commit that it describes. If the job is killed in between, the document describes the
previous commit; the next run writes the right one, but does not know the misfits of the commit in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from nakadi.event_types.table_objective import TableFreshness, count_commit, valid_table_objective
from nakadi.event_types.table_runs import TABLE_RUNS_KIND, TableRun
from nakadi.event_types.table_states import (
    TABLE_STATES_KIND,
    LastRun,
    TableState,
    table_state_body,
    table_state_from_body,
)
from nakadi.model.event_type import EventType
from nakadi.model.events import datetime_from_microseconds
from nakadi.model.objective import ConsumedBatch
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, PutDocument, Registry, RemoveDocument
from nakadi_jobs.archive_ranges import ArchiveRange, Progress
from nakadi_jobs.command import JobContext
from nakadi_jobs.tables import Table


def store_state(
    work: JobContext,
    event_type: EventType,
    table: Table,
    batch: Sequence[ArchiveRange],
    read: Sequence[ArchiveRange],
    misfits: int,
    *,
    is_new: bool,
) -> float:
    """Store the state of a table after the commit of a batch, and how long the oldest event of the batch had waited.
    Returns that time in seconds. `read` are the ranges of the batch that the job could read.

    In a new or rebuilt table, misfits are counted from the beginning.
    """
    waited = max(0.0, work.clock.now().timestamp() - min(part.since for part in batch) / 1e6)
    work.report.keep_maximum("latency_seconds", event_type.name, round(waited, 3))
    known = None if is_new else _find_state(work, event_type)
    _write_state(work, event_type, table, misfits + (known.misfit_count if known else 0), waited, read, is_new=is_new)
    return waited


def store_missing_state(work: JobContext, event_type: EventType, table: Table) -> None:
    """Store the state of a table, unless the registry knows it: an earlier run may have been killed before it stored
    the state.
    """
    if not (text := table.progress()):
        return
    known = _find_state(work, event_type)
    if known is None or known.table_name != table.name or known.next_offsets != Progress.read(text).following:
        _write_state(
            work, event_type, table, known.misfit_count if known else 0, known.latency_seconds if known else None
        )


def find_outdated(work: JobContext, event_types: Sequence[EventType]) -> Sequence[EventType]:
    """The event types that may have events missing from their tables. This does not read the tables."""
    known = {
        document.key: table_state_from_body(document.body).next_offsets
        for document in work.registry.list(TABLE_STATES_KIND)
    }
    places = {
        each.id: [(line.topic, number) for line in each.timelines for number in range(line.partitions)]
        for each in event_types
    }
    heads = work.index.index_heads([place for found in places.values() for place in found])
    return [
        each
        for each in event_types
        if any(known.get(each.id, {}).get(place, 0) < heads[place].state.next_offset for place in places[each.id])
    ]


def states_by_name(work: JobContext) -> Mapping[str, TableState]:
    """The state of each table, by the name of its event type."""
    names = {event_type.id: event_type.name for event_type in work.event_types.all()}
    documents = work.registry.list(TABLE_STATES_KIND)
    return {names[each.key]: table_state_from_body(each.body) for each in documents if each.key in names}


def remove_deletion_note(work: JobContext) -> None:
    """Remove the states of tables whose event types no longer exist, and the reports about them."""
    there = {event_type.id for event_type in work.event_types.all()}
    for kind in (TABLE_STATES_KIND, TABLE_RUNS_KIND):
        for document in work.registry.list(kind):
            if document.key not in there:
                work.registry.write(RemoveDocument(kind, document.key))


def _find_state(work: JobContext, event_type: EventType) -> TableState | None:
    """The state that the registry knows, even if the table has moved to another name since; None if there is none."""
    document = work.registry.get(TABLE_STATES_KIND, event_type.id)
    return None if document is None else table_state_from_body(document.body)


def acknowledge(registry: Registry, event_type: EventType) -> TableState | None:
    """Acknowledge all misfits and gaps of a table. Returns its state; None if it has no table."""
    state: TableState | None = None

    def acknowledge_all(found: TableState | None) -> TableState | None:
        nonlocal state
        state = found and replace(
            found, acknowledged_misfits=found.misfit_count, acknowledged_unreadable=found.unreadable_count
        )
        return state

    _change_state(registry, event_type, acknowledge_all)
    return state


def store_last_run(registry: Registry, event_type: EventType, run: TableRun) -> None:
    """Store the defects of a run's events, for the metrics of housekeeping."""
    last = LastRun(ended_at=run.ended_at, defects=run.defects())
    _change_state(registry, event_type, lambda found: found and replace(found, last_run=last))


def is_missing_acknowledged(work: JobContext, event_type: EventType, missing: int) -> bool:
    """Whether an operator has acknowledged that this many events are missing."""
    state = _find_state(work, event_type)
    return state is not None and missing <= state.acknowledged_unreadable


def warn_of_misfits(work: JobContext) -> None:
    """Warn about misfits of earlier runs until they are acknowledged."""
    found_now = work.report.details.get("misfits", {})
    names = {event_type.name for event_type in work.selected_event_types()}
    for name, state in states_by_name(work).items():
        earlier = state.misfit_count - state.acknowledged_misfits - found_now.get(name, 0)
        if name in names and earlier > 0:
            work.report.warn(
                name,
                f"{earlier} events of earlier runs do not fit the columns; they are whole in nakadi_event (table "
                f"{state.table_name}). The job acknowledge ends this warning",
            )


def _write_state(
    work: JobContext,
    event_type: EventType,
    table: Table,
    misfits: int,
    waited: float | None,
    added: Sequence[ArchiveRange] = (),
    *,
    is_new: bool = False,
) -> None:
    progress = Progress.read(table.progress())
    rows = int(table.summary().get("total-records", "0"))
    state = TableState(
        table_name=table.name,
        next_offsets=progress.following,
        row_count=rows,
        misfit_count=min(misfits, rows),
        unreadable_count=sum(end - first for gaps in progress.gaps.values() for first, end in gaps),
        updated_at=work.clock.now(),
        latency_seconds=None if waited is None else round(waited, 3),
    )

    def keep_acknowledged(found: TableState | None) -> TableState:
        """Limit the acknowledged numbers to the present ones: an operator has not acknowledged what is lost later."""
        freshness = count_freshness(event_type, found, added, state.updated_at, is_new=is_new)
        if found is None:
            return replace(state, freshness=freshness)
        return replace(
            state,
            freshness=freshness,
            acknowledged_misfits=min(found.acknowledged_misfits, state.misfit_count),
            acknowledged_unreadable=min(found.acknowledged_unreadable, state.unreadable_count),
            last_run=found.last_run,
        )

    _change_state(work.registry, event_type, keep_acknowledged)


def count_freshness(
    event_type: EventType, found: TableState | None, added: Iterable[ArchiveRange], now: datetime, *, is_new: bool
) -> TableFreshness | None:
    """Count events against the table's objective, including those that a commit added; None without an objective. All
    events of a range count as stored when the first of them was. Events from before the objective do not count; the
    last update of the event type set it. Events that are added once more while a table is rebuilt do not count either.
    """
    objective = valid_table_objective(event_type)
    if objective is None:
        return None
    is_rebuilt = is_new and found is not None
    batches = [
        ConsumedBatch(
            part.end - part.first if part.events is None else part.events, datetime_from_microseconds(part.since)
        )
        for part in added
    ]
    known = None if found is None or is_rebuilt else found.freshness
    return count_commit(objective, known, batches, now if is_rebuilt else event_type.updated_at, now)


def _change_state(
    registry: Registry, event_type: EventType, changed: Callable[[TableState | None], TableState | None]
) -> None:
    """Store a changed state, unless there is none. An acknowledgement may come between reading and writing."""
    while True:
        document = registry.get(TABLE_STATES_KIND, event_type.id)
        state = changed(None if document is None else table_state_from_body(document.body))
        if state is None:
            return
        expected = ABSENT_REVISION if document is None else document.revision
        try:
            registry.write(PutDocument(TABLE_STATES_KIND, event_type.id, table_state_body(state), expected))
        except ChangedMeanwhile:
            continue
        return
