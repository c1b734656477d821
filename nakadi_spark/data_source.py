"""`format("nakadi")`: events as a source of Spark 4, for DataFrames and for streams, and as a target of both.

    spark.dataSource.register(NakadiDataSource)
    stream = spark.readStream.format("nakadi").option("url", URL).option("event_type", "order.placed").load()

Spark uses the classes of this module in separate Python processes, beside the driver and in tasks. So each object opens
its own connections, and has only members that can be pickled. A stream's offsets are cursors, which Spark keeps in its
checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyspark
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from nakadi_spark.batch_bounds import Offsets, end_of_batch
from nakadi_spark.data_options import Options
from nakadi_spark.errors import BadRead, BadWrite
from nakadi_spark.shares import Wanted, read_log, want_log
from nakadi_spark.sources import Source
from nakadi_spark.writing import Target, partition_number, plan_writing, publish_rows
from nakadi_sql.http_source import LogRange, ranges_between

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2
    SupportsTriggerAvailableNow = object

LIMITS_BATCHES = SupportsTriggerAvailableNow is not object
"""Whether this Spark lets a source limit the batches of a stream."""

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
"""The local properties in which Spark tells a task the id of its stream and the number of its batch."""


class NakadiDataSource(DataSource):
    """The events of one event type: as a source, those in the log of a broker; as a target, those to publish."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = Options.read(options)
        self._wanted: Wanted | None = None

    @classmethod
    def name(cls) -> str:
        return "nakadi"

    def schema(self) -> str:
        return self._describe().ddl()

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # it is the one from above
        return _BatchReader(self._options.source, self._describe())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # as Spark calls it
        max_events = self._options.max_events
        if max_events is not None and not LIMITS_BATCHES:
            raise BadRead(f"The option max_events needs Spark 4.2; this is {pyspark.__version__}.")
        return _StreamReader(self._options.source, self._describe(), max_events)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002  # Spark's own
        return _Writer(self._target(overwrite=overwrite))

    def streamWriter(  # noqa: N802  # as Spark calls it
        self,
        schema: StructType,  # noqa: ARG002  # rows have it too
        overwrite: bool,  # as Spark calls it
    ) -> DataSourceStreamWriter:
        return _StreamWriter(self._target(overwrite=overwrite))

    def _target(self, *, overwrite: bool) -> Target:
        if overwrite:
            raise BadWrite("Events are added to the others: write in the mode append.")
        options = self._options
        return plan_writing(options.source, options.event_type, options.key, str(uuid4()))

    def _describe(self) -> Wanted:
        """What to read of the event type, looked up once, so that the columns stay as Spark knows them."""
        if self._wanted is None:
            options = self._options
            with options.source.open() as opened:
                self._wanted = want_log(opened, options.event_type, options.columns, options.since, options.until)
        return self._wanted


class _Share(InputPartition):
    """The range of the log that one task reads."""

    def __init__(self, wanted: LogRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class _BatchReader(DataSourceReader):
    def __init__(self, source: Source, wanted: Wanted) -> None:
        self._source, self._wanted = source, wanted

    def partitions(self) -> Sequence[InputPartition]:
        with self._source.open() as opened:
            ranges = opened.plan(self._wanted.event_type, self._wanted.since, self._wanted.until)
            return [_Share(each) for each in opened.pin(self._wanted.event_type, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _record_batches(self._source, self._wanted, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of events. An offset of Spark's has the offset of the last read event for each partition."""

    def __init__(self, source: Source, wanted: Wanted, max_events: int | None) -> None:
        self._source, self._wanted, self._max_events = source, wanted, max_events
        self._goal: Offsets | None = None

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  # as Spark calls it
        with self._source.open() as opened:
            return dict(opened.first_offsets(self._wanted.event_type, self._wanted.since))

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # as Spark calls it
        return ReadAllAvailable() if self._max_events is None else ReadMaxRows(self._max_events)

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> dict[str, str]:  # noqa: N802  # as above
        """Where the next batch ends. Before Spark 4.2, there are no arguments, and a batch has all new events."""
        with self._source.open() as opened:
            event_type = self._wanted.event_type
            end = opened.last_offsets(event_type) if self._goal is None else {**(start or {}), **self._goal}
            # Spark may want all events, whatever the option says.
            max_events = getattr(limit, "max_rows", None)
            return dict(end_of_batch(opened, event_type, start or {}, end, max_events))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # as Spark calls it
        """Remember where the stream ends, so that it ends although there are always new events."""
        with self._source.open() as opened:
            self._goal = opened.last_offsets(self._wanted.event_type)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        return [_Share(each) for each in ranges_between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _record_batches(self._source, self._wanted, partition)


class _Writer(DataSourceWriter):
    """Publishes rows. They stay published if the job fails later, because the broker has no transactions."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        publish_rows(self._target, partition_number(), iterator)
        return WriterCommitMessage()


class _StreamWriter(DataSourceStreamWriter):
    """Publishes the rows of a stream. If Spark repeats a batch, even after a restart, its events have the same eids."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query, batch = (context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        publish_rows(replace(self._target, run=f"{query} {batch}"), context.partitionId(), iterator)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's own
        """Do nothing: the tasks have published the events already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's own
        """Do nothing: published events cannot be taken back."""


def _record_batches(source: Source, wanted: Wanted, share: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of a share. Without any share, Spark still runs a task, which gets None and has no rows."""
    if isinstance(share, _Share):
        for table in read_log(source, wanted, [share.wanted]):
            yield from table.to_batches()
