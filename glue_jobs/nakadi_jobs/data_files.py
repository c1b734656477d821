"""Lists the data files of Iceberg tables, and changes a few rows without a Spark job, whose start would take longer
than the change. It uses Iceberg's Java API directly.

`java` is an Iceberg table in the state in which it was loaded. `jvm` gives access to the Java classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from msgspec import Struct

PARQUET = "PARQUET"
PARQUET_MAGIC = b"PAR1"

FieldIds = Mapping[str, int]
"""The name of each column, and the number by which Iceberg knows it in files."""

FileContents = Sequence[bytes]
"""The rows of files."""

RewriteRows = Callable[[FieldIds, FileContents], Mapping[str, bytes]]
"""Returns the rows that replace the rows of the given files, each under the path of its partition:
`window_start_day=2026-11-20`."""


class DataFile(Struct, frozen=True):
    """A data file. `is_plain` means that it is Parquet, and that none of its rows is merely marked as deleted."""

    path: str
    size: int
    is_plain: bool


class TimeRange(Struct, frozen=True):
    """The range of values in a column."""

    column: str
    since: datetime
    until: datetime


class FilePlan(Struct, frozen=True):
    """The files with rows of a period: their snapshot, the progress that it stores, the columns, and the files."""

    snapshot: int
    progress: str
    columns: frozenset[str]
    files: Sequence[DataFile]


class FileForm(Struct, frozen=True):
    """The form of new files of a table: the schema as JSON, the folder, and the only partition field, a day."""

    schema: str
    location: str
    partition: str


class NewFile(Struct, frozen=True):
    """A new file of a table, with the path of its partition: `nakadi_time_day=2026-11-20`. The writer of the file
    already has its footer, so nothing needs to read the file again.
    """

    path: str
    partition: str
    size: int
    footer: bytes


class UnsupportedForm(Exception):
    """Raised for a table whose files this module cannot write."""


class HasDeletedRows(Exception):
    """Raised for files with rows that are merely marked as deleted."""


class Rewrite(Struct, frozen=True):
    """New files, and the change that replaces old ones with them."""

    java: Any
    change: Any
    written: Sequence[Any]

    def commit(self) -> None:
        self.change.commit()

    def discard(self) -> None:
        """Remove the new files after a failed commit."""
        for file in self.written:
            self.java.io().deleteFile(file.location())


def plan_files(java: Any, jvm: Any, times: TimeRange) -> Sequence[DataFile]:
    """The files that may have rows of a period."""
    return [_data_file(task, task.file()) for task in _tasks(java, _condition(jvm, times))]


def _data_file(task: Any, file: Any) -> DataFile:
    return DataFile(
        path=str(file.location()),
        size=file.fileSizeInBytes(),
        is_plain=task.deletes().isEmpty() and file.format().toString() == PARQUET,
    )


def has_files_with(java: Any, condition: Any) -> bool:
    """Whether any file may have rows that meet a condition, which is an expression of Iceberg: the statistics of the
    file allow it, or are missing.
    """
    return next(_tasks(java, condition), None) is not None


def java_elements(iterable: Any) -> Iterator[Any]:
    """The elements of an iterable of Java. A Python loop over the iterable itself would end with a Java exception,
    which takes as long as dozens of calls.
    """
    each = iterable.iterator()
    while each.hasNext():
        yield each.next()


def field_ids(java: Any) -> FieldIds:
    return {column.name(): column.fieldId() for column in java.schema().columns()}


def read_contents(java: Any, jvm: Any, times: TimeRange) -> FileContents:
    """Read the files that may have rows of a period. Raises `HasDeletedRows`."""
    return [_read(java, task) for task in _tasks(java, _condition(jvm, times))]


def prepare_rewrite(java: Any, jvm: Any, times: TimeRange, changed: RewriteRows) -> Rewrite:
    """Write new files to replace those with rows of a period. The commit fails if others have changed such rows
    meanwhile.

    Raises `HasDeletedRows`.
    """
    tasks = list(_tasks(java, _condition(jvm, times)))
    change = (
        java.newOverwrite()
        .validateFromSnapshot(java.currentSnapshot().snapshotId())
        .conflictDetectionFilter(_condition(jvm, times))
        .validateNoConflictingData()
        .validateNoConflictingDeletes()
    )
    found = changed(field_ids(java), [_read(java, task) for task in tasks])
    written = [_write_file(java, jvm, partition, content) for partition, content in found.items()]
    for task in tasks:
        change.deleteFile(task.file())
    for file in written:
        change.addFile(file)
    return Rewrite(java, change, written)


def file_form(java: Any, jvm: Any, time: str) -> FileForm:
    """The form of a table's files. Raises `UnsupportedForm` for a table that is not partitioned by the day of this
    column, or has another compression."""
    fields = [(java.schema().findColumnName(each.sourceId()), each) for each in java.spec().fields()]
    if [(name, str(each.transform().toString())) for name, each in fields] != [(time, "day")]:
        raise UnsupportedForm("it is not by day")
    properties = dict(java.properties())
    if any(properties.get(name, value) != value for name, value in _REQUIRED_PROPERTIES.items()):
        raise UnsupportedForm("its properties say so")
    schema = jvm.org.apache.iceberg.SchemaParser.toJson(java.schema())
    return FileForm(str(schema), str(java.location()), str(fields[0][1].name()))


def column_comments(java: Any, jvm: Any) -> Mapping[str, str]:
    """The comment of each column, by its path; empty if it has none. Elements of an array are called `element`."""
    return dict(_comments(json.loads(str(jvm.org.apache.iceberg.SchemaParser.toJson(java.schema()))), ""))


def _comments(kind: Any, path: str) -> Iterator[tuple[str, str]]:
    match kind:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                inner = f"{path}.{field['name']}".removeprefix(".")
                yield inner, field.get("doc", "")
                yield from _comments(field["type"], inner)
        case {"type": "list", "element": element}:
            yield from _comments(element, f"{path}.element")


_REQUIRED_PROPERTIES = {
    "write.format.default": "parquet",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "3",
}


def append(java: Any, jvm: Any, branch: str, files: Sequence[NewFile], summary_entries: Mapping[str, str]) -> None:
    """Add files to a branch in one commit, with entries in its summary."""
    change = java.newAppend().toBranch(branch)
    for file in files:
        change.appendFile(_describe_file(java, jvm, file))
    for name, value in summary_entries.items():
        change.set(name, value)
    change.commit()


def _tasks(java: Any, condition: Any) -> Iterator[Any]:
    found = java.newScan().filter(condition).planFiles()
    try:
        yield from java_elements(found)
    finally:
        found.close()


def _condition(jvm: Any, times: TimeRange) -> Any:
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    both = getattr(expressions, "and")
    return both(
        expressions.greaterThanOrEqual(times.column, times.since.astimezone(UTC).isoformat()),
        expressions.lessThan(times.column, times.until.astimezone(UTC).isoformat()),
    )


def _read(java: Any, task: Any) -> bytes:
    if not task.deletes().isEmpty():
        raise HasDeletedRows(str(task.file().location()))
    stream = java.io().newInputFile(task.file().location()).newStream()
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


def _write_file(java: Any, jvm: Any, partition: str, content: bytes) -> Any:
    path = java.locationProvider().newDataLocation(f"{partition}/{uuid4()}.parquet")
    stream = java.io().newOutputFile(path).create()
    try:
        stream.write(content)
    finally:
        stream.close()
    return _describe_file(java, jvm, NewFile(path, partition, len(content), parquet_footer(content)))


def parquet_footer(content: bytes) -> bytes:
    """The footer of a Parquet file, as a file without rows."""
    length = int.from_bytes(content[-8:-4], "little")
    return PARQUET_MAGIC + content[-8 - length :]


def _describe_file(java: Any, jvm: Any, file: NewFile) -> Any:
    iceberg = jvm.org.apache.iceberg
    footer = iceberg.inmemory.InMemoryInputFile(file.path, file.footer)
    metrics = iceberg.parquet.ParquetUtil.fileMetrics(footer, iceberg.MetricsConfig.forTable(java))
    return (
        iceberg.DataFiles.builder(java.spec())
        .withPath(file.path)
        .withFileSizeInBytes(file.size)
        .withPartitionPath(file.partition)
        .withFormat(PARQUET)
        .withMetrics(metrics)
        .withSortOrder(java.sortOrder())
        .build()
    )
