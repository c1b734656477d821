"""Creates, extends and changes Iceberg tables. A run changes a table completely or not at all.

A run writes to its own branch. At its end, the table takes over the branch, unless another run has changed the
table meanwhile. The commit that stores the rows also stores how far the run has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from nakadi_jobs import attempts
from nakadi_jobs.columns import Struct
from nakadi_jobs.data_files import (
    FileContents,
    FileForm,
    FilePlan,
    HasDeletedRows,
    NewFile,
    RewriteRows,
    TimeRange,
    UnsupportedForm,
    append,
    column_comments,
    field_ids,
    file_form,
    plan_files,
    prepare_rewrite,
    read_contents,
)
from nakadi_jobs.exact_values import quote_text
from nakadi_jobs.layout import TableLayout, layout_properties, order_by, partition_by
from nakadi_jobs.session import CATALOG, has_tasks_in_driver
from nakadi_jobs.transform import frame_columns

Result = TypeVar("Result")

PROGRESS_PROPERTY = "nakadi.progress"
TIDIED_PROPERTY = "nakadi.tidied-at"
LAYOUT_PROPERTY = "nakadi.layout"
MANIFEST_BYTES = "commit.manifest.target-size-bytes"

MAIN_BRANCH = "main"
BRANCH_PREFIX = "run_"
"""The prefix of the branches of runs."""

DAY = timedelta(days=1)

DAY_TAG_PREFIX = "day-"
"""The prefix of the tags for the states of days: day-2026-11-22."""

BRANCH_LIFETIME = DAY
"""How long the branch of a killed run stays. No run takes longer."""

BOUNDED_COLUMNS = (
    "nakadi_timeline",
    "nakadi_partition",
    "nakadi_offset",
    "nakadi_time",
    "nakadi_tombstone",
    "window_start",
    "ended_at",
)
"""Columns with useful bounds: tables are sorted by them, or they say that a file has no tombstone."""

SMALL_FILES = 8
"""This many small files of a day are merged into one."""

SMALL_BYTES = 32 * 1024 * 1024

MAX_DELETE_FILES = 32
"""If a file has more lists of replaced rows, it is rewritten without these rows."""


class AddedRows(NamedTuple):
    """The rows that a change added to a table, and the bytes of their files."""

    rows: int
    size: int


class ChangedMeanwhile(Exception):
    """Raised if another run has changed the table since this one began."""


class Table(msgspec.Struct, frozen=True):
    spark: SparkSession
    database: str
    name: str

    @property
    def path(self) -> str:
        return f"{CATALOG}.`{self.database}`.`{self.name}`"

    @property
    def plain_path(self) -> str:
        """The path in the form that Iceberg's procedures need."""
        return f"{CATALOG}.{self.database}.{self.name}"

    # Reading

    def exists(self) -> bool:
        return bool(self.spark.catalog.tableExists(self.path))

    def rows(self) -> DataFrame:
        return self.spark.table(self.path)

    def properties(self) -> Mapping[str, str]:
        return dict(self._java().properties())

    def columns(self) -> Struct:
        """The columns of the table. For columns with texts, it is unknown what the texts contain."""
        return frame_columns(self.rows())

    def summary(self) -> Mapping[str, str]:
        """Iceberg's counts: records, files and bytes."""
        snapshot = self._java().currentSnapshot()
        return {} if snapshot is None else dict(snapshot.summary())

    def progress(self) -> str:
        """Return the progress that the last run stored; empty if there was none."""
        return stored_progress(self._java())

    def state(self) -> tuple[DataFrame, str]:
        """Return the rows and the progress of the same moment, whatever other runs change meanwhile."""
        java = self._java()
        return self.rows_of(java.currentSnapshot().snapshotId()), stored_progress(java)

    def rows_of(self, snapshot: int) -> DataFrame:
        return self.spark.sql(f"SELECT * FROM {self.path} VERSION AS OF {snapshot}")  # noqa: S608  # a number

    def plan_files(self, times: TimeRange) -> FilePlan:
        """The files with rows of a period, and the progress at the same moment."""
        java = self._java()
        jvm: Any = self.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        return FilePlan(
            snapshot=java.currentSnapshot().snapshotId(),
            progress=stored_progress(java),
            columns=frozenset(field_ids(java)),
            files=plan_files(java, jvm, times),
        )

    def file_form(self) -> FileForm:
        """The form of files that are written without Spark. Raises `UnsupportedForm`."""
        if self.properties().get(LAYOUT_PROPERTY):
            raise UnsupportedForm("it has a layout of its own")
        jvm: Any = self.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        return file_form(self._java(), jvm, "nakadi_time")

    # Creating and extending

    def create(self, columns: Sequence[tuple[str, str, str]], properties: Mapping[str, str], clauses: str = "") -> None:
        """Create the table with an empty first snapshot. If it exists, only add the snapshot if it is missing."""
        listed = ", ".join(f"`{name}` {kind} COMMENT '{comment}'" for name, kind, comment in columns)
        bounded = {f"write.metadata.metrics.column.{name}": "full" for name, _, _ in columns if name in BOUNDED_COLUMNS}
        all_properties = {**_DEFAULTS, **bounded, **properties}
        known = ", ".join(f"'{name}'={quote_text(value)}" for name, value in all_properties.items())
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.`{self.database}`")
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.path} ({listed}) USING iceberg {clauses} TBLPROPERTIES ({known})"
        )
        if self._java().currentSnapshot() is None:
            self._java().newAppend().commit()

    def set_order(self, *names: str) -> None:
        """Set the sort order of new and rewritten files, unless the table has one."""
        if self._java().sortOrder().isUnsorted():
            self.spark.sql(f"ALTER TABLE {self.path} WRITE LOCALLY ORDERED BY {', '.join(names)}")

    def lay_out(self, layout: TableLayout) -> None:
        """Partition and sort new files in this way. Existing files stay as they are."""
        if self.properties().get(LAYOUT_PROPERTY, "") == layout.name:
            return
        jvm: Any = self.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        partition_by(self._java(), jvm.org.apache.iceberg.expressions.Expressions, layout.partition_by)
        self.spark.sql(f"ALTER TABLE {self.path} WRITE LOCALLY ORDERED BY {order_by(layout.sort_by)}")
        update = self._java().updateProperties()
        for name, value in layout_properties(layout, self.columns(), BOUNDED_COLUMNS).items():
            update = update.set(name, value)
        # This comes last, since it records that everything before was done.
        update.set(LAYOUT_PROPERTY, layout.name).commit()

    def add(self, columns: Sequence[tuple[tuple[str, ...], str]]) -> None:
        """Add columns in one change of the table, since each change writes a new description of all columns."""
        listed = [f"{'.'.join(f'`{step}`' for step in path)} {kind}" for path, kind in columns]
        if listed and not self._add(listed):
            # Two runs may find missing columns, and the other one may have added only some of these.
            for each in listed:
                self._add([each])

    def _add(self, columns: Sequence[str]) -> bool:
        """Add columns. Returns false, and adds none, if one of them exists already."""
        try:
            self.spark.sql(f"ALTER TABLE {self.path} ADD COLUMNS ({', '.join(columns)})")
        except (AnalysisException, Py4JJavaError) as error:
            if "already exists" not in str(error):
                raise
            return False
        return True

    def describe(self, comments: Mapping[str, str], properties: Mapping[str, str]) -> None:
        """Set comments of columns by their paths, and properties. An empty text removes the earlier one.

        Nothing depends on these texts: if another run changes the table at the same moment, the next run sets the rest.
        """
        java, jvm = self._java(), self.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        known = column_comments(java, jvm)
        new = {path: text for path, text in comments.items() if path in known and known[path] != text}
        there = dict(java.properties())
        try:
            if new:
                update = java.updateSchema()
                for path, text in new.items():
                    update = update.updateColumnDoc(path, text or None)
                update.commit()
            if any(there.get(name, "") != value for name, value in properties.items()):
                changed = java.updateProperties()
                for name, value in properties.items():
                    changed = changed.set(name, value) if value else changed.remove(name)
                changed.commit()
        except Py4JJavaError as error:
            if not _is_conflict(error):
                raise

    def set(self, name: str, value: str) -> None:
        self._java().updateProperties().set(name, value).commit()

    # Changing

    def drop_other_states(self) -> None:
        """Remove all tags, and all branches except the main one. A run that is in progress has to begin again."""
        refs = self.spark.table(f"{self.path}.refs").where(f"name != '{MAIN_BRANCH}'").collect()
        for ref in refs:
            snapshots = self._java().manageSnapshots()
            removed = snapshots.removeTag if ref["type"] == "TAG" else snapshots.removeBranch
            removed(ref["name"]).commit()

    @contextmanager
    def change(self) -> Iterator[Change]:
        """Open a branch for writing. Without `publish`, the table does not change."""
        java = self._java()
        change = Change(self, f"{BRANCH_PREFIX}{uuid4().hex}", java.currentSnapshot().snapshotId())
        snapshots = java.manageSnapshots().createBranch(change.branch, change.base)
        snapshots.setMaxRefAgeMs(change.branch, int(BRANCH_LIFETIME.total_seconds() * 1000)).commit()
        try:
            yield change
        finally:
            java = self._java()
            if not change.published and java.refs().containsKey(change.branch):
                java.manageSnapshots().removeBranch(change.branch).commit()

    def rewrite(self, times: TimeRange, changed: RewriteRows) -> None:
        """Replace the files with rows of a period. Raises `ChangedMeanwhile`. This takes one commit without a branch
        and without a Spark job, for tables with few rows.
        """
        begun = self._retry_on_plain_files(lambda java, jvm: prepare_rewrite(java, jvm, times, changed))
        try:
            begun.commit()
        except Py4JJavaError as error:
            if _is_conflict(error):
                begun.discard()
                raise ChangedMeanwhile(self.name) from error
            raise

    def contents(self, times: TimeRange) -> FileContents:
        """The contents of the files that may have rows of a period, in a table with few rows."""
        return self._retry_on_plain_files(lambda java, jvm: read_contents(java, jvm, times))

    def _retry_on_plain_files(self, work: Callable[[Any, Any], Result]) -> Result:
        """Run a task that reads files. If another engine has merely marked rows as deleted, rewrite the files, and run
        it again.
        """
        jvm: Any = self.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        try:
            return work(self._java(), jvm)
        except HasDeletedRows:
            self._write_without_deleted_rows()
            return work(self._java(), jvm)

    # Maintenance

    def tidy(
        self, now: datetime, *, keep_snapshots: timedelta, keep_days: int, orphans_after: timedelta
    ) -> Mapping[str, int]:
        """Tag the states of days, merge small files, expire old snapshots and, once a day, remove files without a
        snapshot. Returns the number of files by action.
        """
        self._tag_days(now.date(), keep_days)
        expired = now - keep_snapshots
        if keep_snapshots >= DAY:
            # The age counts whole days, so that there is work only once a day, not in each run.
            expired = expired.replace(hour=0, minute=0, second=0, microsecond=0)
        done = {"files made larger": self._merge_small_files(), **self._expire_snapshots(expired)}
        if self._is_tidying_due(now):
            done["orphans removed"] = self._remove_orphans(now - orphans_after)
            self.set(TIDIED_PROPERTY, now.isoformat())
        return {what: count for what, count in done.items() if count}

    def _merge_small_files(self) -> int:
        if not self._has_many_small_files():
            return 0
        options = f"'min-input-files', '2', 'min-file-size-bytes', '{SMALL_BYTES}', 'max-file-size-bytes', '{2**40}'"
        if self._merges_on_read():
            # Merged files do not contain replaced rows. A large file is rewritten when it has many lists of them.
            options += f", 'delete-file-threshold', '{MAX_DELETE_FILES}', {_REWRITE_OPTIONS}"
        done = self._call(
            f"rewrite_data_files(table => '{self.plain_path}', strategy => 'sort', options => map({options}))"
            if not self._java().sortOrder().isUnsorted()
            else f"rewrite_data_files(table => '{self.plain_path}', options => map({options}))"
        )
        return int(done["rewritten_data_files_count"])

    def remove_replaced_rows(self) -> None:
        """Rewrite files with rows that are merely marked as replaced: queries do not find these rows, but the files
        still contain them.
        """
        if self._merges_on_read() and not self.spark.table(f"{self.path}.delete_files").isEmpty():
            self._write_without_deleted_rows()

    def _write_without_deleted_rows(self) -> None:
        options = f"map('delete-file-threshold', '1', {_REWRITE_OPTIONS})"
        self._call(f"rewrite_data_files(table => '{self.plain_path}', options => {options})")

    def _merges_on_read(self) -> bool:
        return self.properties().get("write.merge.mode") == "merge-on-read"

    def _has_many_small_files(self) -> bool:
        files = self.spark.table(f"{self.path}.files").where(f"file_size_in_bytes < {SMALL_BYTES}")
        by = [name for name in files.columns if name == "partition"]
        return not files.groupBy(*by).count().where(f"count >= {SMALL_FILES}").isEmpty()

    def _tag_days(self, today: date, keep_days: int) -> None:
        """Tag the last state of each day, unless the day is not over, or too long ago."""
        first, last = (f"{DAY_TAG_PREFIX}{each}" for each in (today - timedelta(days=keep_days), today))
        tags = self.spark.table(f"{self.path}.refs").where(f"name LIKE '{DAY_TAG_PREFIX}%'").collect()
        known = {row["name"] for row in tags}
        states = {}
        if keep_days:
            history = (
                self.spark.table(f"{self.path}.history")
                .where("is_current_ancestor")
                .selectExpr(
                    f"concat('{DAY_TAG_PREFIX}', date(made_current_at)) AS name", "made_current_at", "snapshot_id"
                )
            )
            states = {row["name"]: row["snapshot_id"] for row in history.orderBy("made_current_at").collect()}
        snapshots, changes = self._java().manageSnapshots(), 0
        for name in known:
            if name < first:
                snapshots, changes = snapshots.removeTag(name), changes + 1
        for name, snapshot in states.items():
            if first <= name < last and name not in known:
                snapshots, changes = snapshots.createTag(name, snapshot), changes + 1
        if changes:
            snapshots.commit()

    def _expire_snapshots(self, before: datetime) -> Mapping[str, int]:
        oldest = self.spark.table(f"{self.path}.snapshots").agg({"committed_at": "min"}).first()
        branches = self.spark.table(f"{self.path}.refs").where(f"name LIKE '{BRANCH_PREFIX}%'")
        if oldest is None or oldest[0] is None or (oldest[0] >= before.replace(tzinfo=None) and branches.isEmpty()):
            return {}
        return {"old files removed": self.expire_snapshots_before(before)}

    def expire_snapshots_before(self, moment: datetime) -> int:
        """Expire the snapshots from before a moment, but keep the progress that the last of them stores."""
        self.set(PROGRESS_PROPERTY, self.progress())
        at = f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}'"
        done = self._call(f"expire_snapshots(table => '{self.plain_path}', older_than => {at}, retain_last => 1)")
        return int(done["deleted_data_files_count"])

    def is_tidy(self, now: datetime) -> bool:
        """Whether the table was tidied within the last 24 hours."""
        return not self._is_tidying_due(now)

    def _is_tidying_due(self, now: datetime) -> bool:
        tidied = self.properties().get(TIDIED_PROPERTY)
        return tidied is None or now - datetime.fromisoformat(tidied) > timedelta(days=1)

    def _remove_orphans(self, before: datetime) -> int:
        if self._is_in_table_bucket():
            return 0
        at = f"TIMESTAMP '{before:%Y-%m-%d %H:%M:%S.%f}'"
        statement = f"CALL {CATALOG}.system.remove_orphan_files(table => '{self.plain_path}', older_than => {at})"
        return self.spark.sql(statement).count()

    def remove_lost_files(self, before: datetime) -> int:
        """Remove files in the table's folder that no snapshot uses, and that were written before a moment.

        Iceberg's own procedure rejects files of the last day. This one does not: its caller knows that no other run is
        writing.
        """
        if self._is_in_table_bucket():
            return 0
        action = self._actions().deleteOrphanFiles(self._java())
        found = action.olderThan(int(before.timestamp() * 1000)).execute()
        return sum(1 for _ in found.orphanFileLocations())

    def remove_files_of_attempts(self, change: Change) -> None:
        """Remove the files of attempts whose results the table does not use, if Spark may repeat tasks."""
        if has_tasks_in_driver(str(self.spark.sparkContext.master)) or self._is_in_table_bucket():
            return
        attempts.wait_for_killed_attempts(self.spark)
        java = self._java()
        attempts.remove_files_of_other_attempts(java, java.snapshot(change.branch), change.base)

    def _is_in_table_bucket(self) -> bool:
        """Whether the table's files are in S3 Tables, where nobody can list them, and S3 itself removes lost files."""
        return urlsplit(self.location()).netloc.endswith("--table-s3")

    def location(self) -> str:
        """The URL of the table's folder."""
        return str(self._java().location())

    def visible_files(self) -> frozenset[str]:
        """The names of the data files of the current state. Empty while rows are merely marked as replaced, because the
        files then contain rows that queries do not find.
        """
        found = self.spark.table(f"{self.path}.files").select("content", "file_path").collect()
        if any(row["content"] for row in found):
            return frozenset()
        return frozenset(row["file_path"].rpartition("/")[2] for row in found)

    def manifest_files(self) -> frozenset[str]:
        """The names of the manifests of all snapshots, and of their lists."""
        manifests = self.spark.table(f"{self.path}.all_manifests").select("path")
        lists = self.spark.table(f"{self.path}.snapshots").select("manifest_list")
        return frozenset(row[0].rpartition("/")[2] for row in manifests.union(lists).distinct().collect())

    def bounds(self) -> frozenset[bytes]:
        """The smallest and greatest column values in manifests, and the partition values as texts, including those of
        deleted files.
        """
        entries = self.spark.table(f"{self.path}.all_entries")
        found = ["map_values(data_file.lower_bounds)", "map_values(data_file.upper_bounds)"]
        if "partition" in entries.select("data_file.*").columns:
            names = entries.select("data_file.partition.*").columns
            values = (f"cast(cast(data_file.partition.`{name}` as string) as binary)" for name in names)
            found.append(f"array({', '.join(values)})")
        bounds = entries.selectExpr(f"explode(concat({', '.join(found)})) AS bound")
        return frozenset(bytes(row["bound"]) for row in bounds.where("bound is not null").distinct().collect())

    def forget_deleted_files(self) -> None:
        """Rewrite manifests so that they no longer have the bounds and partition values of deleted files."""
        listed = self.spark.table(f"{self.path}.entries")
        if listed.where("status = 2").isEmpty():
            return
        total = self.spark.table(f"{self.path}.manifests").agg({"length": "sum"}).first()
        # Rewriting a single manifest would change nothing.
        self.set(MANIFEST_BYTES, str(max(1, total[0] // 2 if total else 1)))
        try:
            for spec in self._java().specs().keySet():
                self._actions().rewriteManifests(self._java()).specId(spec).execute()
        finally:
            self._java().updateProperties().remove(MANIFEST_BYTES).commit()

    def _actions(self) -> Any:
        jvm: Any = self.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        return jvm.org.apache.iceberg.spark.actions.SparkActions.get(self.spark._jsparkSession)  # noqa: SLF001

    def _call(self, procedure: str) -> Mapping[str, Any]:
        found = self.spark.sql(f"CALL {CATALOG}.system.{procedure}").first()
        return found.asDict() if found else {}

    def drop(self) -> None:
        self.spark.sql(f"DROP TABLE IF EXISTS {self.path} PURGE")

    def _java(self) -> Any:
        jvm: Any = self.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        loader = jvm.org.apache.iceberg.spark.Spark3Util
        return loader.loadIcebergTable(self.spark._jsparkSession, self.path)  # noqa: SLF001  # as above


def stored_progress(java: Any) -> str:
    """The progress that the last run stored in an Iceberg table; empty if there was none."""
    snapshot = java.currentSnapshot()
    while snapshot is not None:
        if progress := snapshot.summary().get(PROGRESS_PROPERTY):
            return str(progress)
        parent = snapshot.parentId()
        snapshot = None if parent is None else java.snapshot(parent)
    return str(java.properties().get(PROGRESS_PROPERTY) or "")


class Change(msgspec.Struct):
    """The branch of a run, which starts at the snapshot `base`."""

    table: Table
    branch: str
    base: int
    published: bool = False

    @property
    def path(self) -> str:
        return f"{CATALOG}.`{self.table.database}`.`{self.table.name}`.`branch_{self.branch}`"

    def append(self, rows: DataFrame, progress: str | None) -> AddedRows:
        """Append rows, and store the progress of the table, unless that is stored elsewhere."""
        writer = rows.writeTo(self.path).option("fanout-enabled", "true")
        if progress is not None:
            writer = writer.option(f"snapshot-property.{PROGRESS_PROPERTY}", progress)
        writer.append()
        return self._count_added()

    def append_files(self, files: Sequence[NewFile], progress: str) -> AddedRows:
        """Add existing files."""
        jvm: Any = self.table.spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
        append(self.table._java(), jvm, self.branch, files, {PROGRESS_PROPERTY: progress})  # noqa: SLF001  # the two are one
        return self._count_added()

    def _count_added(self) -> AddedRows:
        summary = dict(self.table._java().snapshot(self.branch).summary())  # noqa: SLF001  # the two are one
        return AddedRows(int(summary.get("added-records", "0")), int(summary.get("added-files-size", "0")))

    def delete(self, condition: str) -> None:
        """Delete rows. The condition must be built from trusted values only."""
        self.table.spark.sql(f"DELETE FROM {self.path} WHERE {condition}")  # noqa: S608  # see above

    def publish(self) -> None:
        """Make the branch the state of the table. Raises `ChangedMeanwhile`."""
        self.table.remove_files_of_attempts(self)
        snapshots = self.table._java().manageSnapshots()  # noqa: SLF001  # the two are one
        try:
            snapshots.fastForwardBranch(MAIN_BRANCH, self.branch).removeBranch(self.branch).commit()
        except (Py4JJavaError, PySparkException) as error:
            if _is_conflict(error):
                raise ChangedMeanwhile(self.table.name) from error
            raise
        self.published = True


def _is_conflict(error: Py4JJavaError | PySparkException) -> bool:
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return any(each in text for each in _CONFLICTS)


# New files have their own sequence number, so no lists of replaced rows are searched for them.
_REWRITE_OPTIONS = "'remove-dangling-deletes', 'true', 'use-starting-sequence-number', 'false'"

_CONFLICTS = (
    "not an ancestor",
    "CommitFailed",
    "PendingUpdateFailed",
    "refresh is required",
    # An erasure removes the branches of all runs.
    "Ref does not exist",
    "Found conflicting files",
    "Missing required files",
)


_DEFAULTS = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.distribution-mode": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    # Manifests outlive the files that they name, so they contain no values except places.
    "write.metadata.metrics.default": "counts",
    # A write fails if the data that it has read was changed meanwhile.
    "write.delete.isolation-level": "serializable",
}
