"""Where events come from: what a query needs to know of an event type, and the events that its table lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from nakadi.model.event_type import Category
from nakadi_jobs.columns import KnownSchema
from nakadi_jobs.places import table_name
from nakadi_sql.errors import BadQuery
from nakadi_sql.rows import LoggedEvent

MAX_OFFSET = (1 << 63) - 1

Seam = Mapping[int, Mapping[int, int]]
"""For each partition and timeline, the offset at which reading from the log begins. The table has all events of older
timelines, and none of newer ones.
"""


class EventTypeInfo(Struct, frozen=True, kw_only=True):
    """An event type: its schemas, oldest first, and its table; without a table, `table` is empty. With a table but
    without a seam, a query reads all events from the log.

    The key of an event consists of the values at `key_paths`; without paths, events have none.

    With `has_owners`, single events may have an owner, and the broker lets only this owner read them. With
    `has_current_state`, the newest event of a key is its current state.
    """

    name: str
    category: Category
    schemas: Sequence[KnownSchema]
    key_paths: Sequence[tuple[str, ...]] = ()
    table: str = ""
    seam: Seam = {}
    has_owners: bool = False
    has_current_state: bool = False


class EventSource(Protocol):
    """A broker, or the data that it has left."""

    def names(self) -> Iterator[str]:
        """The names of all event types."""

    def find(self, name: str) -> EventTypeInfo | None:
        """An event type that may be read; None if it does not exist."""

    def events(self, event_type: EventTypeInfo) -> Iterator[Sequence[LoggedEvent]]:
        """The events after the seam that are there now, in pieces."""


def is_in_table(seam: Seam, timeline: int, partition: int, offset: int) -> bool:
    """Whether the table has the event at this place."""
    known = seam.get(partition)
    if not known:
        return False
    following = known.get(timeline)
    return timeline < max(known) if following is None else offset < following


def seam_condition(seam: Seam, pick_end: Callable[[str], str]) -> str:
    """`is_in_table` as SQL over the columns of a table. `pick_end` takes the element of the row's partition from a list
    of numbers, as the dialect does that.
    """
    timelines = sorted({timeline for known in seam.values() for timeline in known})
    cases = " ".join(
        f"WHEN {timeline} THEN nakadi_offset < {pick_end(_ends(seam, timeline))}" for timeline in timelines
    )
    is_older = f"nakadi_timeline < {timelines[-1]} AND nakadi_partition <= {max(seam)}"
    return f"CASE nakadi_timeline {cases} ELSE {is_older} END"


def _ends(seam: Seam, timeline: int) -> str:
    """The offset up to which the table has the events of a timeline, for each partition from 0."""
    ends = (
        seam[partition].get(timeline, MAX_OFFSET if timeline < max(seam[partition]) else 0) if partition in seam else 0
        for partition in range(max(seam) + 1)
    )
    return ", ".join(map(str, ends))


def find_event_type(source: EventSource, table: str) -> EventTypeInfo:
    """The event type that a query means by the name of a table. Raises `BadQuery`.

    That is the one of this name, or else the one whose table has the name.
    """
    if "." in table and (found := source.find(table)):
        return found
    names = [*source.names()]
    if table not in names:
        meant = [name for name in names if table_name(name) == table.lower()]
        if len(meant) > 1:
            choice = ", ".join(f'"{name}"' for name in meant)
            raise BadQuery(f"{table} may be any of {choice}: write the one that you mean, in quotes.")
        if not meant:
            raise BadQuery(f"There is no event type {table}, and none whose table has this name.")
        [table] = meant
    event_type = source.find(table)
    if event_type is None:
        raise BadQuery(f"There is no event type {table}.")
    return event_type
