"""The tables of an event type: their names, and whether they have the right columns and layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from nakadi.event_types.personal_data import BadPersonalData, personal_data_paths
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.table_layout import BadTableLayout
from nakadi.model.event_type import EventType
from nakadi.schemas.avro.json_schema import json_schema_of
from nakadi.schemas.avro.types import RecordType
from nakadi_jobs.columns import (
    KnownSchema,
    Struct,
    ddl_of,
    derive_columns,
    new_columns,
    parse_schema,
    whole_event_schema,
)
from nakadi_jobs.descriptions import column_descriptions, schema_description
from nakadi_jobs.layout import KEY_LAYOUT, choose_layout
from nakadi_jobs.places import LATEST_SUFFIX, ORDER, PLACES, table_name
from nakadi_jobs.reports import first_line
from nakadi_jobs.session import CATALOG
from nakadi_jobs.tables import PROGRESS_PROPERTY, Table
from nakadi_jobs.transform import frame_columns

EVENT_TYPE_PROPERTY = "nakadi.event-type"
EVENT_TYPE_ID_PROPERTY = "nakadi.event-type-id"

COMMENT_PROPERTY = "comment"
"""The comment of the table: engines and catalogs know it by this name."""

OWNER_PROPERTY = "nakadi.owning-application"

PERSONAL_DATA_PROPERTY = "nakadi.personal-data"
"""The paths of members that are personal data, with commas between."""

DESCRIBING_PROPERTIES = (COMMENT_PROPERTY, OWNER_PROPERTY, PERSONAL_DATA_PROPERTY)

EXPIRED_BEFORE_PROPERTY = "nakadi.expired-before"
"""A property of a table of all events: a job has removed the expired events from before this moment."""

PARTITIONED_BY_DAY = "PARTITIONED BY (days(nakadi_time))"


def events_table(spark: SparkSession, database: str, event_type: EventType) -> Table:
    """The table of all events. If a deleted event type of the same name left a table behind, the new table has another
    name until that table has been dropped; then `take_plain_name` moves the new one.
    """
    plain, named = _candidate_tables(spark, database, event_type)
    if named.exists():
        return plain if _is_moved_to(plain, event_type) else named
    return plain if _is_free_for(plain, event_type) else named


def take_plain_name(spark: SparkSession, database: str, event_type: EventType) -> Table:
    """Return the table of all events. If its name is not the event type's, and that name is free now, move the tables.

    No catalog renames a table together with its folder, and some rename none, so this copies the rows. The copy counts
    once a commit has also given it the progress. If a run is killed before, the next one begins again; old tables are
    dropped last.
    """
    plain, named = _candidate_tables(spark, database, event_type)
    latest = latest_table(named)
    if not named.exists():
        return plain if _is_free_for(plain, event_type) else named
    if not (_is_free_for(plain, event_type) and _is_free_for(latest_table(plain), event_type)):
        return named
    if not _is_moved_to(plain, event_type):
        # The order matters: without the first table, the copy of the second does not count.
        if latest.exists():
            _copy_newest(latest, latest_table(plain), event_type)
        _copy_all(named, plain, event_type)
    latest.drop()
    named.drop()
    return plain


def _candidate_tables(spark: SparkSession, database: str, event_type: EventType) -> tuple[Table, Table]:
    """The table with the name of the event type, and the one with the beginning of its id as a suffix."""
    plain = Table(spark, database, table_name(event_type.name))
    return plain, Table(spark, database, f"{plain.name}_{event_type.id.replace('-', '')[:8]}")


def _is_free_for(table: Table, event_type: EventType) -> bool:
    return not table.exists() or table.properties().get(EVENT_TYPE_ID_PROPERTY) == event_type.id


def _is_moved_to(plain: Table, event_type: EventType) -> bool:
    return plain.exists() and plain.properties().get(EVENT_TYPE_ID_PROPERTY) == event_type.id and bool(plain.progress())


def _copy_all(named: Table, plain: Table, event_type: EventType) -> None:
    rows, progress = named.state()
    prepare_table(plain, event_type, _own_columns(frame_columns(rows)), by_day=True)
    lay_out(plain, event_type)
    if expired := named.properties().get(EXPIRED_BEFORE_PROPERTY):
        plain.set(EXPIRED_BEFORE_PROPERTY, expired)
    with plain.change() as change:
        # Another run may have been faster, and may have added events since then.
        if not plain.progress():
            change.append(rows, progress)
            change.publish()


def _copy_newest(named: Table, plain: Table, event_type: EventType) -> None:
    rows, progress = named.state()
    prepare_table(plain, event_type, _own_columns(frame_columns(rows)), by_day=False)
    with plain.change() as change:
        change.delete("true")
        change.append(rows, None)
        change.publish()
    plain.set(PROGRESS_PROPERTY, progress)


def _own_columns(columns: Struct) -> Struct:
    places = {name for name, _, _ in PLACES}
    return Struct(tuple(field for field in columns.fields if field.name not in places))


def find_tables(spark: SparkSession, database: str, event_type: EventType) -> Sequence[Table]:
    """Every table with events of an event type, or of a deleted one of the same name, whatever the table's name is."""
    return [each for each in all_tables(spark, database) if each.properties()[EVENT_TYPE_PROPERTY] == event_type.name]


def latest_table(events: Table) -> Table:
    """The table of the newest events."""
    return Table(events.spark, events.database, f"{events.name}{LATEST_SUFFIX}")


def columns_of_all_versions(event_types: EventTypes, event_type: EventType, table: Table | None = None) -> Struct:
    """The columns for every version of the schema, oldest first, with the types that an existing table has."""
    versions = reversed(event_types.schemas(event_type))
    there = table.columns() if table is not None and table.exists() else None
    return derive_columns(event_type, (parse_schema(each.type, each.text) for each in versions), there)


def prepare_table(table: Table, event_type: EventType, columns: Struct, *, by_day: bool) -> None:
    """Create the table if it does not exist, add the columns that it lacks, and describe them.

    With `by_day`, the table of all events is partitioned by day, which `lay_out` may change; otherwise, the table of
    the newest events is partitioned by key.
    """
    described = [
        *PLACES,
        *((field.name, ddl_of(field.kind), "") for field in columns.fields),
    ]
    schema = parse_schema(event_type.schema.type, event_type.schema.text)
    about = _describing_properties(event_type, schema)
    if not table.exists():
        known = {EVENT_TYPE_PROPERTY: event_type.name, EVENT_TYPE_ID_PROPERTY: event_type.id}
        table.create(described, {**known, **about}, PARTITIONED_BY_DAY if by_day else "")
    there = table.columns()
    names = {field.name for field in there.fields}
    table.add([((name,), kind) for name, kind, _ in PLACES if name not in names])
    table.add(new_columns(there, columns))
    table.describe(_comments(event_type, schema, columns), {**dict.fromkeys(DESCRIBING_PROPERTIES, ""), **about})
    if by_day:
        table.set_order(*ORDER)
    else:
        table.lay_out(KEY_LAYOUT)


def _describing_properties(event_type: EventType, schema: KnownSchema) -> Mapping[str, str]:
    """The properties of a table from its event type: a comment, the owner, and the paths of personal data."""
    described = schema_description(json_schema_of(schema) if isinstance(schema, RecordType) else schema)
    try:
        personal = personal_data_paths(event_type.annotations)
    except BadPersonalData:
        # Administrators may write annotations that the broker otherwise rejects.
        personal = ()
    found = {
        COMMENT_PROPERTY: described or f"Events of the type {event_type.name}",
        OWNER_PROPERTY: event_type.owning_application or "",
        PERSONAL_DATA_PROPERTY: ", ".join(personal),
    }
    return {name: value for name, value in found.items() if value}


def _comments(event_type: EventType, schema: KnownSchema, columns: Struct) -> Mapping[str, str]:
    """The comments of columns, from the newest version of the schema. Columns that it does not name keep theirs."""
    return column_descriptions(columns, whole_event_schema(event_type, schema))


def lay_out(table: Table, event_type: EventType) -> str:
    """Partition and sort a table of all events as the annotations of its event type say. If that is impossible, the
    table keeps its layout, and this returns the reason.
    """
    try:
        table.lay_out(choose_layout(event_type, table.columns()))
    except BadTableLayout as reason:
        return str(reason)
    except (Py4JError, PySparkException) as error:
        return first_line(error)
    return ""


def all_tables(spark: SparkSession, database: str) -> Iterator[Table]:
    """Every table that belongs to an event type."""
    for name in _names(spark, database):
        table = Table(spark, database, name)
        if EVENT_TYPE_ID_PROPERTY in table.properties():
            yield table


def _names(spark: SparkSession, database: str) -> Sequence[str]:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.`{database}`")
    return [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {CATALOG}.`{database}`").collect()]
