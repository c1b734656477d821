"""The tables of an event type: which they are, and which columns they have to have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson
from pyspark.sql import SparkSession

from nakadi.analytics.columns import Struct, columns_of, ddl, new_columns
from nakadi.analytics.lines import ORDER, PLACES
from nakadi.analytics.session import CATALOG
from nakadi.analytics.tables import EVENT_TYPE, EVENT_TYPE_ID, Table, table_name
from nakadi.event_types.repository import EventTypes
from nakadi.model.event_type import EventType

LATEST = "__latest"
"""How the table ends that has the newest event of each key. No event type's own table has two underscores together."""

BY_DAY = "PARTITIONED BY (days(nakadi_time))"


def events_table(spark: SparkSession, database: str, event_type: EventType) -> Table:
    """The table of all events. One that a deleted event type of the same name left behind is not touched."""
    plain = Table(spark, database, table_name(event_type.name))
    if not plain.exists() or plain.properties().get(EVENT_TYPE_ID) == event_type.id:
        return plain
    return Table(spark, database, f"{plain.name}_{event_type.id.replace('-', '')[:8]}")


def latest_table(events: Table) -> Table:
    """The table of the newest events."""
    return Table(events.spark, events.database, f"{events.name}{LATEST}")


def columns_for(event_types: EventTypes, event_type: EventType) -> Struct:
    """The columns that every version of the schema asks for, the oldest first."""
    versions = reversed(event_types.schemas(event_type))
    return columns_of(event_type, [orjson.loads(version.text) for version in versions])


def made_ready(table: Table, event_type: EventType, columns: Struct, *, by_day: bool) -> None:
    """Have the table be there with these columns."""
    described = [
        *PLACES,
        *((field.name, ddl(field.kind), "") for field in columns.fields),
    ]
    if not table.exists():
        known = {EVENT_TYPE: event_type.name, EVENT_TYPE_ID: event_type.id}
        table.create(described, known, BY_DAY if by_day else "")
    table.add(new_columns(table.columns(), columns))
    table.ordered_by(*(ORDER if by_day else ("nakadi_key",)))


def all_tables(spark: SparkSession, database: str) -> Iterator[Table]:
    """Every table that belongs to an event type."""
    for name in _names(spark, database):
        table = Table(spark, database, name)
        if EVENT_TYPE_ID in table.properties():
            yield table


def _names(spark: SparkSession, database: str) -> Sequence[str]:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.`{database}`")
    return [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {CATALOG}.`{database}`").collect()]
