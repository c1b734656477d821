"""Reads ranges of the log in a task, as rows with the columns of the event type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from nakadi_jobs.columns import Struct as Columns
from nakadi_jobs.columns import ddl_of, derive_columns
from nakadi_spark.errors import BadRead
from nakadi_spark.sources import OpenSource, Source
from nakadi_sql.columns import PLACE_COLUMNS
from nakadi_sql.http_source import LogRange
from nakadi_sql.rows import LoggedEvent, RowMaker
from nakadi_sql.sources import EventTypeInfo


class Wanted(Struct, frozen=True):
    """What to read of an event type: the columns `names`, of events stored from `since` to before `until`."""

    event_type: EventTypeInfo
    columns: Columns
    names: Sequence[str]
    since: datetime | None
    until: datetime | None

    def ddl(self) -> str:
        """The wanted columns with their types, in Spark's DDL."""
        kinds = {each.name: each.kind for each in (*PLACE_COLUMNS.fields, *self.columns.fields)}
        return ", ".join(f"`{name}` {ddl_of(kinds[name])}" for name in self.names)

    def read_columns(self) -> Columns:
        """The columns to convert from the text of an event. If `nakadi_event` is wanted, these are all columns, because
        its value depends on whether they hold the whole event.
        """
        if "nakadi_event" in self.names:
            return self.columns
        needed = {*self.names, *(["metadata"] if "nakadi_publisher" in self.names else [])}
        return Columns(tuple(each for each in self.columns.fields if each.name in needed))

    def is_in_time(self, event: LoggedEvent) -> bool:
        """Whether the event was stored in the wanted time. An event whose time is unknown counts as such, because its
        range was chosen by that time.
        """
        moment = event.stored_at
        if moment is None:
            return True
        return (self.since is None or moment >= self.since) and (self.until is None or moment < self.until)


def as_utc(moment: datetime | None) -> datetime | None:
    """The time with a zone, which is UTC if the time has none; None stays None."""
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)


def column_names(columns: Columns) -> Sequence[str]:
    """The names of all columns: those for the place of an event, and those for the members in its schema."""
    return [each.name for each in (*PLACE_COLUMNS.fields, *columns.fields)]


def choose_names(columns: Columns, chosen: Sequence[str] | None, event_type: str) -> Sequence[str]:
    """The chosen names, or those of all columns if none are chosen. Raises `BadRead` for an unknown name."""
    if isinstance(chosen, str):
        raise BadRead(f"The columns are a list of names, such as [{chosen!r}].")
    known = column_names(columns)
    for name in chosen or ():
        if name not in known:
            raise BadRead(f"{event_type} has no column {name}; it has {', '.join(known)}.")
    return known if chosen is None else chosen


def want_log(
    opened: OpenSource,
    event_type: str,
    chosen: Sequence[str] | None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Wanted:
    """What to read of an event type if all events come from the log, and none from its table. Raises `BadRead`."""
    found = opened.find(event_type)
    if found is None:
        raise BadRead(f"There is no event type {event_type}.")
    found = replace(found, table="", seam={})
    columns = derive_columns(found, found.schemas)
    return Wanted(found, columns, choose_names(columns, chosen, event_type), since, until)


def read_log(source: Source, wanted: Wanted, ranges: Iterable[LogRange]) -> Iterator[pa.Table]:
    """Read the rows of ranges of the log, with the wanted columns in the wanted order. Tasks call this."""
    maker = RowMaker(wanted.read_columns())
    with source.open() as opened:
        for each in ranges:
            for piece in opened.read(wanted.event_type, each):
                yield maker.make_rows([event for event in piece if wanted.is_in_time(event)]).select(wanted.names)


def row_tuples(tables: Iterable[pa.Table]) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of Python values, the form in which Spark 3.5 takes them from a task."""
    for table in tables:
        yield from zip(*(column.to_pylist(maps_as_pydicts="lossy") for column in table.columns), strict=True)
