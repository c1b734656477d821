"""The state of an event type's table, which a job writes into the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from nakadi.common.converting import Converter
from nakadi.event_types.documents import DocumentBody
from nakadi.event_types.positions import last_offset_if_closed, timelines_with_partition
from nakadi.event_types.table_objective import TableFreshness
from nakadi.model.event_type import EventType, Position
from nakadi.model.events import TopicPartition

TABLE_STATES_KIND = "tables"
"""The kind of the documents with states of tables, whose keys are the ids of event types."""


_STORED_TABLE_STATE_NAMES = {
    "table_name": "table",
    "next_offsets": "next",
    "row_count": "rows",
    "latency_seconds": "latency",
    "misfit_count": "misfits",
    "acknowledged_misfits": "known_misfits",
    "unreadable_count": "missing",
    "acknowledged_unreadable": "known_missing",
}


class LastRun(Struct, frozen=True, kw_only=True):
    """The defects of the events that the last run added, by kind: `late`, `duplicate`, `missing`, `misfit` and `unmet`
    for expectations.
    """

    ended_at: datetime
    defects: Mapping[str, int]


class TableState(Struct, frozen=True, kw_only=True, rename=_STORED_TABLE_STATE_NAMES):
    """The state of an event type's table after the last job that changed it.

    `next_offsets` has, for each partition, the offset up to which the table has its events. Misfits are counted events
    that do not fit the columns, and unreadable ones could not be read; an operator has acknowledged some of each.
    `latency_seconds` is how long the oldest event of the last commit had waited since it was published; None if that is
    unknown. `freshness` has the counts of jobs for the objective of the table, if it has one.
    """

    table_name: str
    next_offsets: Mapping[TopicPartition, int]
    row_count: int
    misfit_count: int
    unreadable_count: int
    updated_at: datetime
    latency_seconds: float | None = None
    acknowledged_misfits: int = 0
    acknowledged_unreadable: int = 0
    last_run: LastRun | None = None
    freshness: TableFreshness | None = None


_table_states = Converter(TableState)


def table_state_body(state: TableState) -> DocumentBody:
    offsets = {f"{topic}/{partition}": offset for (topic, partition), offset in state.next_offsets.items()}
    body = to_builtins(replace(state, next_offsets={}))
    return {**body, "next": offsets}


def table_state_from_body(body: DocumentBody) -> TableState:
    places = ((name.rpartition("/"), offset) for name, offset in body["next"].items())
    next_offsets = {(topic, int(partition)): offset for (topic, _, partition), offset in places}
    return replace(_table_states.from_builtins({**body, "next": {}}), next_offsets=next_offsets)


def positions_after_table(state: TableState, event_type: EventType) -> Iterator[tuple[str, Position]]:
    """For each partition, the positions after which the log has events that the table lacks, oldest first.

    Each partition has a position in the newest timeline. It has one in an older timeline only if the table lacks events
    of it.
    """
    for partition in range(event_type.timeline.partitions):
        for timeline in timelines_with_partition(event_type, partition):
            last = state.next_offsets.get((timeline.topic, partition), 0) - 1
            end = last_offset_if_closed(timeline, partition)
            if end is None or last < end:
                yield str(partition), Position(timeline.order, last)
