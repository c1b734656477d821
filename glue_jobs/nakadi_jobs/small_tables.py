"""Tables with few rows, which jobs write without a Spark job. Each day has a file, which every change rewrites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from operator import itemgetter
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyarrow import parquet
from pyspark.sql import SparkSession

from nakadi_jobs.data_files import FieldIds, FileContents, TimeRange
from nakadi_jobs.measuring import window_start
from nakadi_jobs.tables import DAY, ChangedMeanwhile, Table

ATTEMPTS = 5

SMALLEST_TIME = timedelta(microseconds=1)

END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)

ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

Row = Mapping[str, Any]


class SmallTable(Struct, frozen=True, kw_only=True):
    """A table with few rows: its columns with type and meaning, the timestamp column whose day is the partition, and
    the sort columns.
    """

    name: str
    columns: Sequence[tuple[str, str, str]]
    time: str
    order: Sequence[str]

    def replace(
        self,
        spark: SparkSession,
        database: str,
        rows: Sequence[Row],
        between: tuple[datetime, datetime],
        is_replaced: Callable[[Row], bool],
    ) -> None:
        """Add rows whose times lie `between` two times, and remove those to which `is_replaced` applies. This
        rewrites the days between the two times.
        """
        since, until = between

        def rewrite_days(fields: FieldIds, contents: FileContents) -> Mapping[str, bytes]:
            by_day: defaultdict[datetime, list[Row]] = defaultdict(list)
            for row in (*(row for row in _read_rows(contents) if not is_replaced(row)), *rows):
                by_day[window_start(row[self.time], DAY)].append(row)
            return {f"{self.time}_day={day:%Y-%m-%d}": self._write_rows(some, fields) for day, some in by_day.items()}

        table = self._open(spark, database)
        days = TimeRange(self.time, window_start(since, DAY), window_start(until - SMALLEST_TIME, DAY) + DAY)
        for _ in range(ATTEMPTS):
            try:
                table.rewrite(days, rewrite_days)
            except ChangedMeanwhile:
                continue
            return
        raise ChangedMeanwhile(f"table {table.name}: changed by other runs during {ATTEMPTS} attempts")

    def rows_since(self, spark: SparkSession, database: str, since: datetime) -> Sequence[Row]:
        """Return the rows since a moment, in the order of the table."""
        found = _read_rows(self._open(spark, database).contents(TimeRange(self.time, since, END_OF_TIME)))
        return sorted((row for row in found if row[self.time] >= since), key=itemgetter(*self.order))

    def _open(self, spark: SparkSession, database: str) -> Table:
        table = Table(spark, database, self.name)
        if not table.exists():
            table.create(self.columns, {}, f"PARTITIONED BY (days({self.time}))")
            table.set_order(*self.order)
        return table

    def _write_rows(self, rows: Iterable[Row], fields: FieldIds) -> bytes:
        """Write rows as Parquet, with the table's own column numbers."""
        schema = pa.schema(
            pa.field(name, ARROW_TYPES[kind], metadata={"PARQUET:field_id": str(fields[name])})
            for name, kind, _ in self.columns
        )
        content = BytesIO()
        written = pa.Table.from_pylist(sorted(rows, key=itemgetter(*self.order)), schema)
        parquet.write_table(written, content, compression="zstd", store_schema=False)
        return content.getvalue()


def _read_rows(contents: FileContents) -> Iterator[Row]:
    for content in contents:
        yield from parquet.read_table(BytesIO(content)).to_pylist()
