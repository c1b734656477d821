"""Iceberg tables: made, grown, and changed by whole runs that either count or do not.

A run writes to a branch of its own, and at its end the table becomes what the branch is, unless another run changed it
meanwhile. How far a run has read is written with what it has read, in the same commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import orjson
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from nakadi.event_types.repository import EventTypes
from nakadi.model.event_type import EventType
from nakadi_jobs.columns import Array, Field, Kind, Scalar, Struct, Texts, columns_of, ddl, new_columns
from nakadi_jobs.session import CATALOG
from nakadi_jobs.transform import ORDER, PLACES

PROGRESS = "nakadi.progress"
EVENT_TYPE = "nakadi.event-type"
EVENT_TYPE_ID = "nakadi.event-type-id"
TIDIED = "nakadi.tidied-at"

MAIN = "main"
RUN = "run_"
"""How the branches of runs begin."""

BRANCH_STAYS = timedelta(days=1)
"""A run that was killed leaves its branch for so long. No run takes longer."""

BOUNDED = ("nakadi_timeline", "nakadi_partition", "nakadi_offset", "nakadi_time", "window_start")
"""Columns whose bounds are worth having: tables are sorted by them."""

SMALL_FILES = 8
"""So many small files of a day are made one."""

SMALL_BYTES = 32 * 1024 * 1024


class ChangedMeanwhile(Exception):
    """Raised when another run changed the table since this one began."""


class Table(msgspec.Struct, frozen=True):
    spark: SparkSession
    database: str
    name: str

    @property
    def path(self) -> str:
        return f"{CATALOG}.`{self.database}`.`{self.name}`"

    @property
    def plain_path(self) -> str:
        """As Iceberg's procedures want it."""
        return f"{CATALOG}.{self.database}.{self.name}"

    # Reading

    def exists(self) -> bool:
        return bool(self.spark.catalog.tableExists(self.path))

    def rows(self) -> DataFrame:
        return self.spark.table(self.path)

    def properties(self) -> Mapping[str, str]:
        return dict(self._java().properties())

    def columns(self) -> Struct:
        """The columns that are there. Of one of texts it is not known what the texts are."""
        found = _kind(self.rows().schema)
        assert isinstance(found, Struct)
        return found

    def summary(self) -> Mapping[str, str]:
        """What Iceberg counts: records, files and bytes."""
        snapshot = self._java().currentSnapshot()
        return {} if snapshot is None else dict(snapshot.summary())

    def progress(self) -> str:
        """Return the progress that the last run stored; an empty text if there was none."""
        java = self._java()
        snapshot = java.currentSnapshot()
        while snapshot is not None:
            summary = dict(snapshot.summary())
            if PROGRESS in summary:
                return str(summary[PROGRESS])
            parent = snapshot.parentId()
            snapshot = None if parent is None else java.snapshot(parent)
        return str(dict(java.properties()).get(PROGRESS, ""))

    # Making and growing

    def create(self, columns: Sequence[tuple[str, str, str]], properties: Mapping[str, str], clauses: str = "") -> None:
        """Create the table with an empty first snapshot, if it does not exist."""
        listed = ", ".join(f"`{name}` {kind} COMMENT '{comment}'" for name, kind, comment in columns)
        bounded = {f"write.metadata.metrics.column.{name}": "full" for name, _, _ in columns if name in BOUNDED}
        all_properties = {**_DEFAULTS, **bounded, **properties}
        known = ", ".join(f"'{name}'='{value}'" for name, value in all_properties.items())
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.`{self.database}`")
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.path} ({listed}) USING iceberg {clauses} TBLPROPERTIES ({known})"
        )
        if self._java().currentSnapshot() is None:
            self._java().newAppend().commit()

    def ordered_by(self, *names: str) -> None:
        """What tables are sorted by when their files are written anew."""
        if self._java().sortOrder().isUnsorted():
            self.spark.sql(f"ALTER TABLE {self.path} WRITE LOCALLY ORDERED BY {', '.join(names)}")

    def add(self, columns: Sequence[tuple[tuple[str, ...], str]]) -> None:
        for path, kind in columns:
            quoted = ".".join(f"`{step}`" for step in path)
            try:
                self.spark.sql(f"ALTER TABLE {self.path} ADD COLUMNS ({quoted} {kind})")
            except (AnalysisException, Py4JJavaError) as error:
                # Two runs may find the same column missing.
                if "already exists" not in str(error):
                    raise

    def set(self, name: str, value: str) -> None:
        self._java().updateProperties().set(name, value).commit()

    # Changing

    def drop_run_branches(self) -> int:
        """Remove the branches of runs that were cut short; a run that goes on has to begin again."""
        refs = self.spark.table(f"{self.path}.refs").where(f"name LIKE '{RUN}%'")
        names = [row["name"] for row in refs.collect()]
        for name in names:
            self._java().manageSnapshots().removeBranch(name).commit()
        return len(names)

    @contextmanager
    def change(self) -> Iterator[Change]:
        """Open a branch to write to. Without `publish` the table does not change."""
        change = Change(self, f"{RUN}{uuid4().hex}")
        java = self._java()
        snapshots = java.manageSnapshots().createBranch(change.branch, java.currentSnapshot().snapshotId())
        snapshots.setMaxRefAgeMs(change.branch, int(BRANCH_STAYS.total_seconds() * 1000)).commit()
        try:
            yield change
        finally:
            java = self._java()
            if not change.published and java.refs().containsKey(change.branch):
                java.manageSnapshots().removeBranch(change.branch).commit()

    # Maintenance

    def tidy(self, now: datetime, *, keep_snapshots: timedelta, orphans_after: timedelta) -> Mapping[str, int]:
        """Merge small files, expire old snapshots, and remove files that no snapshot has."""
        done = {"files made larger": self._merge_small_files(), **self._expire_snapshots(now - keep_snapshots)}
        if self._due(now):
            done["orphans removed"] = self._remove_orphans(now - orphans_after)
            self.set(TIDIED, now.isoformat())
        return {what: count for what, count in done.items() if count}

    def _merge_small_files(self) -> int:
        if not self._has_many_small_files():
            return 0
        options = (
            f"map('min-input-files', '2', 'min-file-size-bytes', '{SMALL_BYTES}', 'max-file-size-bytes', '{2**40}')"
        )
        done = self._call(
            f"rewrite_data_files(table => '{self.plain_path}', strategy => 'sort', options => {options})"
            if not self._java().sortOrder().isUnsorted()
            else f"rewrite_data_files(table => '{self.plain_path}', options => {options})"
        )
        return int(done["rewritten_data_files_count"])

    def _has_many_small_files(self) -> bool:
        files = self.spark.table(f"{self.path}.files").where(f"file_size_in_bytes < {SMALL_BYTES}")
        by = [name for name in files.columns if name == "partition"]
        return not files.groupBy(*by).count().where(f"count >= {SMALL_FILES}").isEmpty()

    def _expire_snapshots(self, before: datetime) -> Mapping[str, int]:
        oldest = self.spark.table(f"{self.path}.snapshots").agg({"committed_at": "min"}).first()
        branches = self.spark.table(f"{self.path}.refs").where(f"name != '{MAIN}'")
        if oldest is None or oldest[0] is None or (oldest[0] >= before.replace(tzinfo=None) and branches.isEmpty()):
            return {}
        return {"old files removed": self.expire_snapshots_before(before)}

    def expire_snapshots_before(self, moment: datetime) -> int:
        """Expire the snapshots from before a moment, and keep the progress that the last of them has."""
        self.set(PROGRESS, self.progress())
        at = f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}'"
        done = self._call(f"expire_snapshots(table => '{self.plain_path}', older_than => {at}, retain_last => 1)")
        return int(done["deleted_data_files_count"])

    def is_tidy(self, now: datetime) -> bool:
        """Whether the table was tidied within a day."""
        return not self._due(now)

    def _due(self, now: datetime) -> bool:
        tidied = self.properties().get(TIDIED)
        return tidied is None or now - datetime.fromisoformat(tidied) > timedelta(days=1)

    def _remove_orphans(self, before: datetime) -> int:
        at = f"TIMESTAMP '{before:%Y-%m-%d %H:%M:%S.%f}'"
        statement = f"CALL {CATALOG}.system.remove_orphan_files(table => '{self.plain_path}', older_than => {at})"
        return self.spark.sql(statement).count()

    def remove_lost_files(self, before: datetime) -> int:
        """Remove files of the table's folder that no snapshot has, written before a moment.

        The procedure of the same purpose refuses files of the last day. This does not: it is for a caller who knows
        that no other run is writing.
        """
        jvm: Any = self.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        actions = jvm.org.apache.iceberg.spark.actions.SparkActions.get(self.spark._jsparkSession)  # noqa: SLF001
        found = actions.deleteOrphanFiles(self._java()).olderThan(int(before.timestamp() * 1000)).execute()
        return sum(1 for _ in found.orphanFileLocations())

    def location(self) -> str:
        """The URL of the table's folder."""
        return str(self._java().location())

    def data_files(self) -> frozenset[str]:
        """The names of the data files that snapshots have."""
        found = self.spark.table(f"{self.path}.all_data_files").select("file_path").distinct().collect()
        return frozenset(row["file_path"].rpartition("/")[2] for row in found)

    def bounds(self) -> frozenset[bytes]:
        """The smallest and greatest values of columns that manifests have, also those of deleted files."""
        entries = self.spark.table(f"{self.path}.all_entries")
        bounds = entries.selectExpr(
            "explode(concat(map_values(data_file.lower_bounds), map_values(data_file.upper_bounds))) AS bound"
        )
        return frozenset(bytes(row["bound"]) for row in bounds.distinct().collect())

    def _call(self, procedure: str) -> Mapping[str, Any]:
        found = self.spark.sql(f"CALL {CATALOG}.system.{procedure}").first()
        return found.asDict() if found else {}

    def drop(self) -> None:
        self.spark.sql(f"DROP TABLE IF EXISTS {self.path} PURGE")

    def _java(self) -> Any:
        jvm: Any = self.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        loader = jvm.org.apache.iceberg.spark.Spark3Util
        return loader.loadIcebergTable(self.spark._jsparkSession, self.path)  # noqa: SLF001  # as above


class Change(msgspec.Struct):
    """A run's branch of a table."""

    table: Table
    branch: str
    published: bool = False

    @property
    def path(self) -> str:
        return f"{CATALOG}.`{self.table.database}`.`{self.table.name}`.`branch_{self.branch}`"

    def append(self, rows: DataFrame, progress: str) -> int:
        """Write rows, and how far the table is with them; how many there were."""
        writer = rows.writeTo(self.path).option("fanout-enabled", "true")
        writer.option(f"snapshot-property.{PROGRESS}", progress).append()
        snapshot = self.table._java().snapshot(self.branch)  # noqa: SLF001  # the two are one
        return int(dict(snapshot.summary()).get("added-records", "0"))

    def delete(self, condition: str) -> None:
        """Delete rows. The condition must be built from trusted values only."""
        self.table.spark.sql(f"DELETE FROM {self.path} WHERE {condition}")  # noqa: S608  # see above

    def publish(self) -> None:
        """Make the branch the state of the table. Raises `ChangedMeanwhile`."""
        snapshots = self.table._java().manageSnapshots()  # noqa: SLF001  # the two are one
        try:
            snapshots.fastForwardBranch(MAIN, self.branch).removeBranch(self.branch).commit()
        except (Py4JJavaError, PySparkException) as error:
            if _is_conflict(error):
                raise ChangedMeanwhile(self.table.name) from error
            raise
        self.published = True


def table_name(event_type: str) -> str:
    """A name that every query engine takes."""
    return re.sub(r"[^a-z0-9]+", "_", event_type.lower()).strip("_") or "events"


def _is_conflict(error: Py4JJavaError | PySparkException) -> bool:
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return any(each in text for each in _CONFLICTS)


_CONFLICTS = (
    "not an ancestor",
    "CommitFailed",
    "PendingUpdateFailed",
    "refresh is required",
    # An erasure removes the branches of all runs.
    "Ref does not exist",
)


def _kind(found: DataType) -> Kind:
    match found:
        case StructType():
            return Struct(tuple(Field(field.name, _kind(field.dataType)) for field in found.fields))
        case ArrayType():
            return Array(_kind(found.elementType))
        case MapType():
            return Texts()
    return Scalar(found.simpleString())


_DEFAULTS = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.distribution-mode": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    # Manifests outlive the files that they name: they hold no values but those of places.
    "write.metadata.metrics.default": "counts",
    # A write fails when what it has read was changed meanwhile.
    "write.delete.isolation-level": "serializable",
}


# The tables of an event type ------------------------------------------------------------------------------------------


LATEST = "__latest"
"""How the table ends that has the newest event of each key. No event type's own table has two underscores together."""

BY_DAY = "PARTITIONED BY (days(nakadi_time))"


def events_table(spark: SparkSession, database: str, event_type: EventType) -> Table:
    """The table of all events. One that a deleted event type of the same name left behind is not touched.

    A table that had to take another name for that reason keeps it when the older one is gone.
    """
    plain = Table(spark, database, table_name(event_type.name))
    named = Table(spark, database, f"{plain.name}_{event_type.id.replace('-', '')[:8]}")
    if named.exists():
        return named
    if not plain.exists() or plain.properties().get(EVENT_TYPE_ID) == event_type.id:
        return plain
    return named


def tables_of(spark: SparkSession, database: str, event_type: EventType) -> Sequence[Table]:
    """Every table that has events of an event type or of a deleted one of the same name, whatever it is called."""
    return [each for each in all_tables(spark, database) if each.properties()[EVENT_TYPE] == event_type.name]


def latest_table(events: Table) -> Table:
    """The table of the newest events."""
    return Table(events.spark, events.database, f"{events.name}{LATEST}")


def columns_of_all_versions(event_types: EventTypes, event_type: EventType, table: Table | None = None) -> Struct:
    """The columns that every version of the schema asks for, the oldest first, with the types that a table has."""
    versions = reversed(event_types.schemas(event_type))
    there = table.columns() if table is not None and table.exists() else None
    return columns_of(event_type, [orjson.loads(version.text) for version in versions], there)


def prepare(table: Table, event_type: EventType, columns: Struct, *, by_day: bool) -> None:
    """Create the table if it does not exist, and add the columns that it lacks."""
    described = [
        *PLACES,
        *((field.name, ddl(field.kind), "") for field in columns.fields),
    ]
    if not table.exists():
        known = {EVENT_TYPE: event_type.name, EVENT_TYPE_ID: event_type.id}
        table.create(described, known, BY_DAY if by_day else "")
    there = table.columns()
    names = {field.name for field in there.fields}
    table.add([((name,), kind) for name, kind, _ in PLACES if name not in names])
    table.add(new_columns(there, columns))
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
