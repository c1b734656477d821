"""The interface through which a query gets the properties of event types, and the events that their tables lack."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from nakadi.model.event_type import Category
from nakadi_jobs.columns import KnownSchema
from nakadi_jobs.places import table_name
from nakadi_sql.errors import BadQuery
from nakadi_sql.rows import LoggedEvent

MAX_OFFSET = (1 << 63) - 1

NAME_WITH_DOT = re.compile(r"[a-zA-Z0-9_-]+([.][a-zA-Z0-9_-]+)+")
"""A name that can only be that of an event type, and not that of a table. A path or a URL is neither."""

Seam = Mapping[int, Mapping[int, int]]
"""The boundary between a table and the log: for each partition, and in it for each named timeline, the first offset
that the table lacks. Of the timelines without a name here, the table has all events of those that are older than the
newest named one, and no events of newer ones.
"""


class EventTypeInfo(Struct, frozen=True, kw_only=True):
    """An event type: its schemas, oldest first, and the name of its table, which is empty if there is no table. With a
    table but an empty `seam`, a query reads all events from the log.

    The key of an event consists of the values at `key_paths`; without paths, events have no key.

    With `has_owners`, single events may have an owner, and the broker lets only this owner read them. With
    `has_current_state`, the newest event of a key is the current state of what the key names. With `is_compacted`, the
    log keeps only this event once a table has the older ones.
    """

    name: str
    category: Category
    schemas: Sequence[KnownSchema]
    key_paths: Sequence[tuple[str, ...]] = ()
    table: str = ""
    seam: Seam = {}
    has_owners: bool = False
    has_current_state: bool = False
    is_compacted: bool = False


class EventSource(Protocol):
    """A source of event types and their events, such as a broker."""

    def names(self) -> Iterator[str]:
        """The names of all event types."""

    def find(self, name: str) -> EventTypeInfo | None:
        """An event type that may be read; None if it does not exist."""

    def events(self, event_type: EventTypeInfo) -> Iterator[Sequence[LoggedEvent]]:
        """The events that exist now and that the table lacks, according to `seam`, in pieces."""


def is_in_table(seam: Seam, timeline: int, partition: int, offset: int) -> bool:
    """Whether the table has the event at this place."""
    known = seam.get(partition)
    if not known:
        return False
    following = known.get(timeline)
    return timeline < max(known) if following is None else offset < following


def seam_condition(seam: Seam, pick_end: Callable[[str], str]) -> str:
    """`is_in_table` as an SQL condition over the columns of a table. `pick_end` gets a list of numbers, one for each
    partition, and returns the expression that picks the one for the row's partition in the dialect.
    """
    timelines = sorted({timeline for known in seam.values() for timeline in known})
    cases = " ".join(
        f"WHEN {timeline} THEN nakadi_offset < {pick_end(_ends(seam, timeline))}" for timeline in timelines
    )
    is_older = f"nakadi_timeline < {timelines[-1]} AND nakadi_partition <= {max(seam)}"
    return f"CASE nakadi_timeline {cases} ELSE {is_older} END"


def _ends(seam: Seam, timeline: int) -> str:
    """The first offset of a timeline that the table lacks, for each partition from 0, separated by commas."""
    ends = (
        seam[partition].get(timeline, MAX_OFFSET if timeline < max(seam[partition]) else 0) if partition in seam else 0
        for partition in range(max(seam) + 1)
    )
    return ", ".join(map(str, ends))


def find_event_type(source: EventSource, table: str) -> EventTypeInfo:
    """The event type that a query means by the name of a table. Raises `BadQuery`.

    That is the event type of this name, or else the one whose table has the name.
    """
    if NAME_WITH_DOT.fullmatch(table) and (found := source.find(table)):
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
