"""Answers a query: a database in memory with the event types that the query names, and nothing else.

The order matters. First the source says up to which offsets the tables have the events. Only then does `ask` choose a
state of each table, which has at least these events. Later events come from the log, and never from the table. So no
event is missing or read twice, even if jobs write meanwhile.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from nakadi.model.event_type import Category
from nakadi_jobs.columns import Field, derive_columns
from nakadi_jobs.columns import Struct as Columns
from nakadi_jobs.places import LATEST_SUFFIX
from nakadi_sql.buckets import bucket_secret
from nakadi_sql.columns import PLACE_COLUMNS, database_type, kind_of_database, quoted, quoted_text
from nakadi_sql.errors import BadQuery, NoTable, PackageMissing, QueryStopped, TablesUnreadable
from nakadi_sql.rows import RowMaker
from nakadi_sql.sources import EventSource, EventTypeInfo, find_event_type, seam_condition
from nakadi_sql.statements import TableNames, table_names
from nakadi_sql.tables import TableFiles, Tables

ROWS_IN_BATCH = 1000

INTERRUPTION_SECONDS = 0.05

UNUSUAL_TYPE = re.compile(r"\b(?:BIT|INTERVAL|TIME WITH TIME ZONE|TIMESTAMP_(?:NS|MS|S)|UHUGEINT)\b")
"""The DuckDB types whose values Arrow or Python cannot represent, or represents differently."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of a query. `seconds` limits the whole query, `megabytes` its memory, and `rows` its result's length.

    `disk_megabytes` limits what the query writes to disk because it does not fit into memory; None means ten times
    `megabytes`.
    """

    seconds: float = 60.0
    megabytes: int = 1024
    disk_megabytes: int | None = None
    rows: int = 100_000
    threads: int = os.cpu_count() or 1


class Answer:
    """The result of a query, which can be read only once. `is_cut` says whether rows beyond the limit were left out.

    `names` are the names of the columns; a repeated name gets a number at its end. `types` are the names of their types
    in DuckDB.
    """

    def __init__(self, database: _Database, types: list[str], reader: pa.RecordBatchReader, max_rows: int) -> None:
        self._database, self._reader, self._left = database, reader, max_rows
        self.types = types
        self.schema: pa.Schema = reader.schema
        self.names: list[str] = _unique_names(reader.schema.names)
        self.is_cut = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow. Raises `QueryStopped` and `BadQuery`."""
        with self._database.errors():
            for batch in self._reader:
                if len(batch) > self._left:
                    self.is_cut = True
                    batch = batch.slice(0, self._left)  # noqa: PLW2901  # what is left of it
                self._left -= len(batch)
                if len(batch):
                    yield batch
                if self.is_cut:
                    return

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows as Python values. Raises `BadQuery` for a time that Python cannot represent."""
        for batch in self.batches():
            try:
                rows = [*zip(*(column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns), strict=True)]
            except (ValueError, OverflowError) as error:
                raise BadQuery(f"A value cannot be shown, and has to be cast to varchar: {error}") from None
            yield from rows


def ask(query: str, source: EventSource, tables: Tables | None, limits: Limits) -> Answer:
    """Run a query over event types. Raises `BadQuery`, `QueryStopped`, and the errors of the source."""
    database = _Database(limits)
    try:
        names = database.names_in(query)
        wanted = {name: _find(source, name) for name in sorted(names.needed)}
        for name in sorted(names.shadowed):
            with suppress(BadQuery):
                wanted[name] = _find(source, name)
        folders = [folder for name, each in wanted.items() for folder in database.add(name, each, source, tables)]
        return Answer(database, *database.run(query, folders), limits.rows)
    except BaseException:
        database.close()
        raise


class _Wanted(Struct, frozen=True):
    """An event type that a query reads: all of its events, or only the newest one of each key."""

    event_type: EventTypeInfo
    only_newest: bool = False


def _find(source: EventSource, name: str) -> _Wanted:
    """The event type that a query means by the name of a table, and whether the name has the suffix for its newest
    events. Raises `BadQuery`.
    """
    base = name.removesuffix(LATEST_SUFFIX)
    try:
        return _Wanted(find_event_type(source, name))
    except BadQuery:
        if base == name:
            raise
        event_type = find_event_type(source, base)
    if not event_type.has_current_state:
        raise BadQuery(f"{event_type.name} is neither compacted nor data by key, so no event is the newest of its key.")
    return _Wanted(event_type, only_newest=True)


class _Database:
    """A database in memory. A thread interrupts its queries when the time limit has passed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open = ExitStack()
        spilled = self._open.enter_context(TemporaryDirectory(prefix="nakadi-sql-"))
        self._connection = duckdb.connect(
            config={
                "allow_community_extensions": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "max_temp_directory_size": f"{limits.disk_megabytes or 10 * limits.megabytes}MB",
                "memory_limit": f"{limits.megabytes}MB",
                "python_enable_replacements": False,
                "temp_directory": spilled,
                "threads": limits.threads,
            }
        )
        self._open.callback(self._connection.close)
        self._connection.execute("SET TimeZone = 'UTC'")
        self._ends_at = time.monotonic() + limits.seconds
        self._closed = threading.Event()
        watch = threading.Thread(target=self._interrupt_when_due, name="nakadi-sql", daemon=True)
        watch.start()
        self._open.callback(watch.join)
        self._open.callback(self._closed.set)
        self._extensions: set[str] = set()

    def close(self) -> None:
        self._open.close()

    def _interrupt_when_due(self) -> None:
        """Interrupt the query when its time limit has passed. An interruption has no effect while nothing runs, so this
        repeats it until the database is closed. It runs in a thread.
        """
        if not self._closed.wait(self._limits.seconds):
            while not self._closed.wait(INTERRUPTION_SECONDS):
                self._connection.interrupt()

    def names_in(self, query: str) -> TableNames:
        with self.errors():
            return table_names(self._connection, query)

    def add(self, name: str, wanted: _Wanted, source: EventSource, tables: Tables | None) -> Sequence[str]:
        """Add a view of an event type under the name that the query uses. Returns the folders of its tables."""
        event_type = wanted.event_type
        # Only the broker decides whether the caller may read single events.
        has_table = event_type.table and not event_type.has_owners
        table = tables.find(event_type.table) if has_table and tables else None
        folders: list[str] = []
        with self.errors():
            existing = None if table is None else self._columns_of_table(table)
            columns = derive_columns(event_type, event_type.schemas, existing)
            log = f"{name} (log)"
            self._add_log(log, columns, event_type if table else replace(event_type, seam={}), source)
            selected = [f"SELECT *, false AS nakadi_tombstone FROM {quoted(log)}"]  # noqa: S608  # the name is quoted
            if table is not None and existing is not None and tables is not None:
                folders.append(table.folder)
                where = seam_condition(event_type.seam, _pick_end)
                selected.append(_select_from_table(table, existing, columns, where))
                if wanted.only_newest and (newest := _find_newest(tables, event_type)):
                    folders.append(newest.folder)
                    selected.append(_select_from_table(newest, self._columns_of_table(newest), columns, where))
            rows = " UNION ALL BY NAME ".join(selected)
            if wanted.only_newest:
                rows = _select_newest(rows, has_operations=event_type.category is Category.DATA)
            view = f"SELECT * EXCLUDE (nakadi_tombstone) FROM ({rows}) WHERE NOT nakadi_tombstone"  # noqa: S608  # as above
            self._connection.execute(f"CREATE VIEW {quoted(name)} AS {view}")
        return folders

    def run(self, query: str, folders: Sequence[str]) -> tuple[list[str], pa.RecordBatchReader]:
        """Lock the database, and run the query, which can then read only files in these folders.

        Returns the types of the columns, and the rows.
        """
        with self.errors():
            listed = ", ".join(quoted_text(f"{folder}/") for folder in folders)
            self._connection.execute(f"SET allowed_directories = [{listed}]")
            self._connection.execute("SET enable_external_access = false")
            self._connection.execute("SET lock_configuration = true")
            result = _with_usual_types(self._connection.sql(query))
            return [*map(str, result.types)], result.to_arrow_reader(ROWS_IN_BATCH)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of DuckDB into sentences."""
        try:
            yield
        except duckdb.InterruptException:
            raise QueryStopped(f"The query took more than {self._limits.seconds:g} seconds.") from None
        except duckdb.OutOfMemoryException as error:
            raise self._memory_error(error) from None
        except duckdb.HTTPException as error:
            raise TablesUnreadable(f"A file of a table cannot be read: {error}") from None
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            # While Arrow reads the result, DuckDB's errors appear as errors of Arrow with DuckDB's text.
            if "INTERRUPT" in str(error):
                raise QueryStopped(f"The query took more than {self._limits.seconds:g} seconds.") from None
            if "Out of Memory" in str(error):
                raise self._memory_error(error) from None
            raise BadQuery(str(error)) from None

    def _memory_error(self, error: Exception) -> QueryStopped:
        """The error for a lack of memory, with DuckDB's message but without its advice to change settings."""
        reason = str(error).partition("Possible solutions")[0]
        return QueryStopped(f"The query takes more than {self._limits.megabytes} MB: {reason.strip()}")

    def _columns_of_table(self, table: TableFiles) -> Columns:
        if table.folder.startswith("s3://"):
            self._open_bucket()
        self._load("avro", "iceberg")
        found = self._connection.sql(f"SELECT * FROM {_scan(table)} LIMIT 0")  # noqa: S608  # the path is quoted
        return Columns(
            tuple(Field(name, kind_of_database(kind)) for name, kind in zip(found.columns, found.types, strict=True))
        )

    def _load(self, *names: str) -> None:
        """Load extensions of DuckDB from their Python packages."""
        for name in names:
            if name not in self._extensions:
                [file] = Path(str(files(f"duckdb_extension_{name}"))).glob(f"extensions/*/{name}.duckdb_extension*")
                self._connection.load_extension(str(file))
                self._extensions.add(name)

    def _open_bucket(self) -> None:
        """Let the database read from S3, with the credentials and the region of the environment."""
        if "httpfs" not in self._extensions:
            try:
                self._load("httpfs")
            except ModuleNotFoundError:
                wanted = f"duckdb-extension-httpfs=={duckdb.__version__}"
                raise PackageMissing(f"The tables are in a bucket, and one more package is needed: {wanted}") from None
            self._connection.execute(bucket_secret())

    def _add_log(self, table: str, columns: Columns, event_type: EventTypeInfo, source: EventSource) -> None:
        """Put the events of the log into a table."""
        maker = RowMaker(columns)
        listed = ", ".join(
            f"{quoted(each.name)} {database_type(each.kind)}" for each in (*PLACE_COLUMNS.fields, *columns.fields)
        )
        self._connection.execute(f"CREATE TABLE {quoted(table)} ({listed})")
        for piece in source.events(event_type):
            if time.monotonic() > self._ends_at:
                raise QueryStopped(f"Reading the log took more than {self._limits.seconds:g} seconds.")
            if piece:
                self._connection.register("piece", maker.make_rows(piece))
                self._connection.execute(f"INSERT INTO {quoted(table)} SELECT * FROM piece")  # noqa: S608  # quoted
                self._connection.unregister("piece")


def _with_usual_types(result: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The result with columns of unusual types as texts, because Arrow or Python would change their values."""
    types = [*map(str, result.types)]
    if not any(UNUSUAL_TYPE.search(each) for each in types):
        return result
    if len({*map(str.lower, result.columns)}) < len(types):
        raise BadQuery("Columns with the same name cannot be written as texts, which their types need: name them.")
    columns = (
        f"CAST({quoted(name)} AS VARCHAR) AS {quoted(name)}" if UNUSUAL_TYPE.search(each) else quoted(name)
        for name, each in zip(result.columns, types, strict=True)
    )
    return result.project(", ".join(columns))


def _unique_names(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        free = (f"{name}_{number}" for number in count(1))
        found.append(name if name not in found else next(each for each in free if each not in found))
    return found


def _find_newest(tables: Tables, event_type: EventTypeInfo) -> TableFiles | None:
    """The table of the newest event of each key. The job creates it after the table of all events; until then, the
    result is None, and the newest events come from the table of all events."""
    with suppress(NoTable):
        return tables.find(event_type.table + LATEST_SUFFIX)
    return None


def _select_newest(rows: str, *, has_operations: bool) -> str:
    """The SQL query for the newest of these rows for each key. It may be a tombstone."""
    place = ("nakadi_timeline", "nakadi_time", "nakadi_partition", "nakadi_offset")
    newness = ", ".join(f"{each} DESC" for each in place)
    gone = "nakadi_tombstone OR coalesce(data_op = 'D', false)" if has_operations else "nakadi_tombstone"
    return (
        f"SELECT * REPLACE ({gone} AS nakadi_tombstone) FROM ({rows}) WHERE nakadi_key IS NOT NULL "  # noqa: S608  # quoted
        f"QUALIFY row_number() OVER (PARTITION BY nakadi_key ORDER BY {newness}) = 1"
    )


def _select_from_table(table: TableFiles, existing: Columns, columns: Columns, where: str) -> str:
    """The SQL query for the rows of a table, with the columns that all parts of the view share."""
    known = {field.name.lower(): database_type(field.kind) for field in existing.fields}
    selected = ", ".join(
        _column(field, known.get(field.name.lower())) for field in (*PLACE_COLUMNS.fields, *columns.fields)
    )
    tombstone = "coalesce(nakadi_tombstone, false) AS nakadi_tombstone"
    return f"SELECT {selected}, {tombstone} FROM {_scan(table)} WHERE nakadi_directed_to IS NULL AND {where}"  # noqa: S608  # quoted


def _column(field: Field, existing: str | None) -> str:
    name, wanted = quoted(field.name), database_type(field.kind)
    if existing == wanted:
        return name
    value = "NULL" if existing is None else name
    return f"CAST({value} AS {wanted}) AS {name}"


def _pick_end(ends: str) -> str:
    return f"[{ends}][nakadi_partition + 1]"


def _scan(table: TableFiles) -> str:
    return f"iceberg_scan({quoted_text(table.metadata)})"
