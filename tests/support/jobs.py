"""A data folder with event types and an archive, and a runner of jobs on it, with one Spark for all tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from nakadi.app.engines import open_log_index, open_registry
from nakadi.common.caching import Cache
from nakadi.engines.archive import member_format, object_keys
from nakadi.engines.archive.stores import open_archive
from nakadi.event_types.repository import EventTypes
from nakadi.model.event_type import EventType, Version
from nakadi.model.events import Record, StoredEvent
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment
from nakadi.ports.clock import SystemClock
from nakadi_jobs import compaction, retention, statistics
from nakadi_jobs.session import open_spark
from tests.support.builders import a_schema, a_timeline, an_event_type

STORED_AT = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)

ORDERS = {
    "type": "object",
    "properties": {
        "order_number": {"type": "string"},
        "total": {"type": "number"},
        "customer": {"type": "object", "properties": {"id": {"type": "string"}}},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "quantity": {"type": "integer"}},
            },
        },
    },
}


def order(number: int, **more: Any) -> dict[str, Any]:
    event = {
        "order_number": f"o-{number}",
        "total": number / 4,
        "customer": {"id": f"c-{number % 7}"},
        "items": [{"sku": f"s-{number}", "quantity": 1 + number % 3}],
    }
    return event | more


class DataFolder:
    """The files that a broker would have left in its data folder."""

    def __init__(self, folder: Path, archive: str = "") -> None:
        """`archive` is the URL of an archive outside the folder."""
        self.folder = folder
        self.archive = archive or f"file://{folder / 'archive'}"
        folder.mkdir(parents=True, exist_ok=True)
        self._open = ExitStack()
        clock = SystemClock()
        file = f"sqlite:///{folder / 'nakadi.db'}"
        self.registry = self._open.enter_context(closing(open_registry(file)))
        self.index = self._open.enter_context(closing(open_log_index(file)))
        self.store = self._open.enter_context(closing(open_archive(self.archive)))
        self.event_types = EventTypes(self.registry, Cache(clock, 1))

    def close(self) -> None:
        self._open.close()

    # Event types

    def event_type(self, name: str, schema: Mapping[str, Any] | None = None, **changes: Any) -> EventType:
        partitions = changes.pop("partitions", 1)
        identity = str(uuid4())
        wanted = an_event_type(
            name=name,
            id=identity,
            schema=a_schema(json.dumps(ORDERS if schema is None else schema)),
            timelines=(a_timeline(topic=uuid4().hex, partitions=partitions),),
            **changes,
        )
        self.event_types.add(wanted)
        self.index.create_topic(wanted.timeline.topic, partitions)
        return self.event_types.get(name)

    def new_schema(self, name: str, schema: Mapping[str, Any]) -> EventType:
        old = self.event_types.get(name)
        version = Version(old.schema.version.major, old.schema.version.minor + 1, 0)
        new = replace(old, schema=replace(old.schema, text=json.dumps(schema), version=version))
        return self.event_types.replace(old, new)

    def annotate(self, event_type: EventType, annotations: Mapping[str, str]) -> EventType:
        """Give the event type these annotations, and no others."""
        old = self.event_types.get(event_type.name)
        return self.event_types.replace(old, replace(old, annotations=annotations))

    def delete(self, name: str) -> None:
        gone = self.event_types.get(name)
        self.event_types.remove(gone)
        for timeline in gone.timelines:
            self.index.delete_topic(timeline.topic)

    # Events

    def archive_events(
        self,
        event_type: EventType,
        events: Sequence[Any],
        *,
        partition: int = 0,
        keys: Sequence[str | None] | None = None,
        at: datetime = STORED_AT,
        apart: timedelta = timedelta(seconds=1),
        other_topics: Iterable[EventType] = (),
    ) -> IndexSegment:
        """Archive events after the existing ones, as one member of an object. None means a tombstone, and bytes are an
        event's exact text. The object also gets a member for each of `other_topics`.
        """
        first = self._head(event_type, partition).state.next_offset
        stored = _make_stored_events(events, first, keys, at, apart)
        before = b"".join(member_format.pack_member(other.timeline.topic, 0, stored) for other in other_topics)
        content = member_format.pack_member(event_type.timeline.topic, partition, stored)
        key = object_keys.new_log_key(self.index.identity(), event_type.name, event_type.timeline.topic, at)
        self.store.put(key, before + content)
        return self._index_events(event_type, partition, stored, ArchiveLocation(key, len(before), len(content)))

    def archive_together(
        self, events: Sequence[tuple[EventType, Sequence[Any]]], *, at: datetime = STORED_AT
    ) -> Sequence[IndexSegment]:
        """Archive events of several event types after the existing ones, in one object."""
        content = b""
        key = f"log/{self.index.identity()}/together/{at:%Y-%m-%d}/{uuid4().hex}.json.gz"
        members = []
        for event_type, some in events:
            stored = _make_stored_events(
                some, self._head(event_type, 0).state.next_offset, None, at, timedelta(seconds=1)
            )
            packed = member_format.pack_member(event_type.timeline.topic, 0, stored)
            members.append((event_type, stored, ArchiveLocation(key, len(content), len(packed))))
            content += packed
        self.store.put(key, content)
        return [self._index_events(event_type, 0, stored, location) for event_type, stored, location in members]

    def _head(self, event_type: EventType, partition: int) -> IndexHead:
        place = (event_type.timeline.topic, partition)
        return self.index.index_heads([place])[place]

    def _index_events(
        self, event_type: EventType, partition: int, stored: Sequence[StoredEvent], location: ArchiveLocation
    ) -> IndexSegment:
        head = self._head(event_type, partition)
        segment = IndexSegment(
            state_before=head.state,
            offset_count=len(stored),
            first_stored_at=_microseconds(stored[0].stored_at),
            last_stored_at=_microseconds(stored[-1].stored_at),
            location=location,
        )
        counted = IndexingState(
            next_offset=segment.end_offset, latest_stored_at=max(head.state.latest_stored_at, segment.last_stored_at)
        )
        assert self.index.advance_head(event_type.timeline.topic, partition, head.revision, IndexHead(counted), segment)
        return segment

    def path(self, segment: IndexSegment) -> Path:
        assert segment.location is not None
        return self.folder / "archive" / segment.location.key


@dataclass(frozen=True)
class JobResult:
    """The exit code and the reports of a job's run."""

    code: int
    told: str
    shown: str


@cache
def open_reading_session(tables: str) -> SparkSession:
    """A session in which tests look at tables. All tests share this session, because a new session would have to load
    all metadata again.
    """
    return open_spark("look", tables, "hadoop", "local[2]", "1g")


class Jobs:
    """Runs jobs on a data folder, with tables in a separate database."""

    def __init__(self, data: DataFolder, tables: Path) -> None:
        self.data = data
        self.places = ["--data", str(data.folder), "--tables", str(tables), "--database", f"t{uuid4().hex}"]
        self.places += ["--archive", data.archive, "--master", "local[2]", "--memory", "1g"]

    @property
    def database(self) -> str:
        return self.places[5]

    def run(self, main: Callable[[Sequence[str]], int], *arguments: str) -> JobResult:
        told, shown = StringIO(), StringIO()
        with redirect_stderr(told), redirect_stdout(shown):
            code = main([*self.places, *arguments])
        return JobResult(code, told.getvalue(), shown.getvalue())

    def compact(self, *arguments: str) -> JobResult:
        """Run `compaction` without its tidying, which takes a second and matters to few tests."""
        return self.run(compaction.main, "--no-tidying", "--no-quality", *arguments)

    def measured(self, *arguments: str) -> JobResult:
        return self.run(statistics.main, *arguments)

    def drop_before(self, *arguments: str) -> JobResult:
        return self.run(retention.main, *arguments)

    def spark(self) -> SparkSession:
        return open_reading_session(self.places[3])

    def table(self, name: str) -> DataFrame:
        return self.spark().table(f"nakadi.{self.database}.{name}")

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Some columns of a table, in the order of its events."""
        wanted = columns or ("nakadi_partition", "nakadi_offset")
        found = self.table(name).orderBy("nakadi_timeline", "nakadi_partition", "nakadi_offset").selectExpr(*wanted)
        return [tuple(row) for row in found.collect()]

    def spark_jobs(self, run: Callable[[], object]) -> int:
        """How many Spark jobs `run` takes."""
        tracker = self.spark().sparkContext.statusTracker()
        before = set(tracker.getJobIdsForGroup())
        run()
        return len(set(tracker.getJobIdsForGroup()) - before)

    def names(self) -> list[str]:
        """The names of the tables."""
        return [row["tableName"] for row in self.spark().sql(f"SHOW TABLES IN nakadi.{self.database}").collect()]

    def snapshots(self, name: str) -> int:
        return self.spark().table(f"nakadi.{self.database}.{name}.snapshots").count()


def _make_stored_events(
    events: Sequence[Any], first: int, keys: Sequence[str | None] | None, at: datetime, apart: timedelta
) -> list[StoredEvent]:
    return [
        StoredEvent(first + number, Record(_text(event), keys[number] if keys else None), at + number * apart)
        for number, event in enumerate(events)
    ]


def _text(event: Any) -> bytes | None:
    if event is None or isinstance(event, bytes):
        return event
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()


def _microseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)
