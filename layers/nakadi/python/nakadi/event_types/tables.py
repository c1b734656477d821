"""The tables that jobs write from the archive: their annotations, their progress, and the events that wait for them.

    datalake.zalando.org/materialize-events: "on"
    nakadi.io/table-partition-by: "day(metadata.occurred_at), bucket(16, customer.id)"
    nakadi.io/table-sort-by: "customer.id, nakadi_time desc"

The broker reads annotations without a table: only the job that writes the table knows whether it has such columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec import Struct, field

from nakadi.event_types.documents import TABLE_STATES_KIND, TableState, table_state_from_body
from nakadi.event_types.repository import EventTypes
from nakadi.model.annotations import (
    MATERIALIZE_ANNOTATION,
    PARTITION_BY_ANNOTATION,
    RETENTION_ANNOTATION,
    RETENTION_REASON_ANNOTATION,
    SORT_BY_ANNOTATION,
)
from nakadi.model.event_type import CleanupPolicy, EventType
from nakadi.model.events import TopicPartition, datetime_from_microseconds
from nakadi.model.log_index import IndexSegment
from nakadi.model.outcomes import Invalid
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog
from nakadi.ports.log_index import LogIndex
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, PutDocument, Registry

# How tables are partitioned and sorted --------------------------------------------------------------------------------


TIME_TRANSFORMS = ("year", "month", "day", "hour")
BUCKET_TRANSFORM, TRUNCATE_TRANSFORM, IDENTITY_TRANSFORM = "bucket", "truncate", "identity"

MAX_TABLE_LAYOUT_COLUMNS = 8
"""Of each kind. Files become small, and queries slow to plan, long before that."""

MAX_TABLE_PARTITION_BUCKETS = 4096
MAX_TABLE_TRUNCATE_WIDTH = 1000

_COLUMN_PATTERN = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*"
_PARTITION_PATTERN = re.compile(
    rf"(?:(?P<unit>{'|'.join(TIME_TRANSFORMS)})\s*\(\s*(?P<moment>{_COLUMN_PATTERN})\s*\)"
    rf"|(?P<sized>{BUCKET_TRANSFORM}|{TRUNCATE_TRANSFORM})"
    rf"\s*\(\s*(?P<size>[0-9]{{1,9}})\s*,\s*(?P<inner>{_COLUMN_PATTERN})\s*\)"
    rf"|(?P<plain>{_COLUMN_PATTERN}))",
    re.IGNORECASE,
)
_SORT_PATTERN = re.compile(rf"(?P<column>{_COLUMN_PATTERN})(?:\s+(?P<direction>asc|desc))?", re.IGNORECASE)
_COMMA_PATTERN = re.compile(r",(?![^()]*\))")
"""Between fields, and not within the parentheses of one."""


class BadTableLayout(Exception):
    """Raised for an annotation that says nothing a table could be partitioned or sorted by; the message says why."""


class TablePartitionColumn(Struct, frozen=True):
    """A column by whose value, or by a part of it, rows are kept apart.

    `bucket_count_or_width` is the number that `bucket` and `truncate` have.
    """

    column: str
    transform_name: str = IDENTITY_TRANSFORM
    bucket_count_or_width: int = 0


class TableSortColumn(Struct, frozen=True):
    column: str
    descending: bool = False


Columns = TypeVar("Columns")


class TableLayout(Struct, frozen=True):
    """None where the annotations say nothing."""

    partition_by: tuple[TablePartitionColumn, ...] | None = None
    sort_by: tuple[TableSortColumn, ...] | None = None


def table_layout_from_annotations(annotations: Mapping[str, str | None]) -> TableLayout:
    return TableLayout(
        _parse_annotation(annotations, PARTITION_BY_ANNOTATION, _parse_partition_columns),
        _parse_annotation(annotations, SORT_BY_ANNOTATION, _parse_sort_columns),
    )


def _parse_annotation(
    annotations: Mapping[str, str | None], name: str, read: Callable[[str], Columns]
) -> Columns | None:
    text = annotations.get(name)
    if text is None:
        return None
    try:
        return read(text)
    except BadTableLayout as reason:
        raise BadTableLayout(f'Annotation {name} is not valid: {reason}. Provided value: "{text}".') from None


def _parse_partition_columns(text: str) -> tuple[TablePartitionColumn, ...]:
    found = tuple(map(_parse_partition_column, _split_at_commas(text)))
    # Hours are parts of days: one of them is enough.
    _check_distinct_columns(
        (each.column, "time" if each.transform_name in TIME_TRANSFORMS else each.transform_name) for each in found
    )
    return found


def _parse_sort_columns(text: str) -> tuple[TableSortColumn, ...]:
    found = tuple(map(_parse_sort_column, _split_at_commas(text)))
    _check_distinct_columns((each.column, "") for each in found)
    return found


def _split_at_commas(text: str) -> Iterator[str]:
    fields = _COMMA_PATTERN.split(text)
    if len(fields) > MAX_TABLE_LAYOUT_COLUMNS:
        raise BadTableLayout(f"it has {len(fields)} fields, and {MAX_TABLE_LAYOUT_COLUMNS} are possible")
    return (each.strip() for each in fields)


def _parse_partition_column(text: str) -> TablePartitionColumn:
    found = _PARTITION_PATTERN.fullmatch(text)
    if found is None:
        raise BadTableLayout(
            f'"{text}" is not a column, nor one of year, month, day and hour(column), bucket(16, column) '
            "and truncate(4, column)"
        )
    if found["unit"]:
        return TablePartitionColumn(found["moment"], found["unit"].lower())
    if not found["sized"]:
        return TablePartitionColumn(found["plain"])
    transform, size = found["sized"].lower(), int(found["size"])
    most = MAX_TABLE_PARTITION_BUCKETS if transform == BUCKET_TRANSFORM else MAX_TABLE_TRUNCATE_WIDTH
    if not 1 <= size <= most:
        raise BadTableLayout(f"the number in {transform} is from 1 to {most}, and not {size}")
    return TablePartitionColumn(found["inner"], transform, size)


def _parse_sort_column(text: str) -> TableSortColumn:
    found = _SORT_PATTERN.fullmatch(text)
    if found is None:
        raise BadTableLayout(f'"{text}" is not a column, optionally followed by asc or desc')
    return TableSortColumn(found["column"], (found["direction"] or "").lower() == "desc")


def _check_distinct_columns(found: Iterable[tuple[str, str]]) -> None:
    seen: set[tuple[str, str]] = set()
    for column, transform in found:
        if (column.lower(), transform) in seen:
            raise BadTableLayout(f"{column} is there twice")
        seen.add((column.lower(), transform))


# Whether there is a table, and how long events are kept ---------------------------------------------------------------


_RETENTION_PERIOD_PATTERN = re.compile(r"([1-9][0-9]{0,3})(?: (day|week|month|year)s?|([dwmy]))")
_DAYS_BY_RETENTION_UNIT = {"d": 1, "w": 7, "m": 31, "y": 366}
_RETENTION_PERIOD_LIMITS = {"d": (7, 3650), "w": (1, 521), "m": (1, 120), "y": (1, 10)}


def check_data_lake_annotations(annotations: Mapping[str, str | None], *, mandatory: bool = False) -> None:
    materialize, period = annotations.get(MATERIALIZE_ANNOTATION), annotations.get(RETENTION_ANNOTATION)
    if materialize not in (None, "on", "off"):
        raise Invalid(
            f'Annotation {MATERIALIZE_ANNOTATION} is not valid. Provided value: "{materialize}". '
            'Possible values are: "on" or "off".'
        )
    if materialize == "on" and period is None:
        raise Invalid(f'Annotation {RETENTION_ANNOTATION} is required, when {MATERIALIZE_ANNOTATION} is "on".')
    if period is not None:
        _check_retention_period(period, annotations.get(RETENTION_REASON_ANNOTATION))
    try:
        table_layout_from_annotations(annotations)
    except BadTableLayout as reason:
        raise Invalid(str(reason)) from None
    if mandatory and materialize is None:
        raise Invalid(f"Annotation {MATERIALIZE_ANNOTATION} is required")


def data_lake_retention(event_type: EventType) -> timedelta | None:
    """How long a data lake keeps events: the annotated period, else the retention time; None means forever."""
    period = event_type.annotations.get(RETENTION_ANNOTATION)
    if period == "unlimited":
        return None
    found = _RETENTION_PERIOD_PATTERN.fullmatch(period or "")
    if found is not None:
        return timedelta(days=int(found[1]) * _DAYS_BY_RETENTION_UNIT[(found[2] or found[3])[0]])
    if event_type.cleanup_policy is CleanupPolicy.COMPACT:
        return None
    return timedelta(milliseconds=event_type.retention_time)


def _check_retention_period(period: str, reason: str | None) -> None:
    if not reason:
        raise Invalid(
            f"Annotation {RETENTION_REASON_ANNOTATION} is required, when {RETENTION_ANNOTATION} is specified."
        )
    if period != "unlimited" and not _is_valid_retention_period(period):
        raise Invalid(
            f"Annotation {RETENTION_ANNOTATION} does not comply with regex. "
            "See documentation (docs/analytics.md, Retention periods) "
            "for more details."
        )


def _is_valid_retention_period(text: str) -> bool:
    period = _RETENTION_PERIOD_PATTERN.fullmatch(text)
    if period is None:
        return False
    fewest, most = _RETENTION_PERIOD_LIMITS[(period[2] or period[3])[0]]
    return fewest <= int(period[1]) <= most


# How far tables are behind --------------------------------------------------------------------------------------------


TABLE_JOB_STARTS_KIND = "table-jobs"
"""Documents that say when housekeeping started a job."""


class TableLagMonitor(Struct, frozen=True, kw_only=True):
    """Measures the lags of all tables now and then.

    `lag_seconds_by_event_type` and `table_states_by_event_type` are what it found the last time.

    The lag of a table is the age of the oldest archived event that it does not have. It also grows where no job runs
    any more, which the latency that jobs measure does not.
    """

    event_types: EventTypes
    registry: Registry
    log_index: LogIndex
    clock: Clock
    measures_without_tables: bool = False
    """Whether there may be tables to make where no job has made one yet."""
    lag_seconds_by_event_type: dict[str, float] = field(default_factory=dict)
    table_states_by_event_type: dict[str, TableState] = field(default_factory=dict)

    def measure(self) -> None:
        """Measure the lag of each table. It costs little where nothing is in the archive that is in no table."""
        states = {each.key: table_state_from_body(each.body) for each in self.registry.list(TABLE_STATES_KIND)}
        found: dict[str, float] = {}
        known: dict[str, TableState] = {}
        if states or self.measures_without_tables:
            event_types = [
                each for each in self.event_types.all() if each.annotations.get(MATERIALIZE_ANNOTATION) != "off"
            ]
            now = self.clock.now().timestamp()
            for event_type, oldest in self._oldest_unread_times(event_types, states):
                found[event_type.name] = 0.0 if oldest is None else max(0.0, now - oldest / 1e6)
            known = {each.name: states[each.id] for each in event_types if each.id in states}
        # In one step each, for the threads that read metrics.
        self.lag_seconds_by_event_type.update(found)
        self.table_states_by_event_type.update(known)
        for gone in self.lag_seconds_by_event_type.keys() - found.keys():
            del self.lag_seconds_by_event_type[gone]
        for gone in self.table_states_by_event_type.keys() - known.keys():
            del self.table_states_by_event_type[gone]

    @property
    def greatest_lag_seconds(self) -> float:
        return max(self.lag_seconds_by_event_type.values(), default=0.0)

    def greatest_latency_seconds(self, within: timedelta) -> float:
        """The greatest latency of the tables that changed lately, in seconds: events of others did not have to wait."""
        since = self.clock.now() - within
        changed = (each for each in self.table_states_by_event_type.copy().values() if each.updated_at >= since)
        return max((each.latency_seconds for each in changed if each.latency_seconds is not None), default=0.0)

    def claim_job_start(self, job: str, after_seconds: float) -> bool:
        """Whether a job is to be started now: an event waits for so long, and no process started it lately.

        What a run did not mend is not tried again at once: the pause grows with the lag, so that a table that cannot be
        written costs a few runs a day and not hundreds.
        """
        lag = self.greatest_lag_seconds
        if lag < after_seconds:
            return False
        now = self.clock.now()
        document = self.registry.get(TABLE_JOB_STARTS_KIND, job)
        if document is not None:
            since = now - datetime.fromisoformat(document.body["started_at"])
            if since.total_seconds() < max(after_seconds, lag / 4):
                return False
        put = PutDocument(
            TABLE_JOB_STARTS_KIND,
            job,
            {"started_at": now.isoformat()},
            document.revision if document else ABSENT_REVISION,
        )
        try:
            self.registry.write(put)
        except ChangedMeanwhile:
            # Another process has started it.
            return False
        return True

    def _oldest_unread_times(
        self, event_types: Sequence[EventType], states: Mapping[str, TableState]
    ) -> Iterator[tuple[EventType, int | None]]:
        """When the oldest event was stored that the table of an event type does not have, in microseconds."""
        places = {
            each.id: [(one.topic, number) for one in each.timelines for number in range(one.partitions)]
            for each in event_types
        }
        heads = self.log_index.index_heads([place for found in places.values() for place in found])
        for event_type in event_types:
            state = states.get(event_type.id)
            following = state.next_offsets if state else {}
            unread = [
                self._stored_at_of_first_archived(place, following.get(place, 0))
                for place in places[event_type.id]
                if heads[place].state.next_offset > following.get(place, 0)
            ]
            yield event_type, min((since for since in unread if since is not None), default=None)

    def _stored_at_of_first_archived(self, topic_partition: TopicPartition, offset: int) -> int | None:
        """When the first archived event from an offset on was stored; None if there is none any more."""
        segment = next(_segments_from(self.log_index, topic_partition, offset), None)
        return None if segment is None or segment.location is None else segment.first_stored_at


# What compaction waits for --------------------------------------------------------------------------------------------


class CompactionGuard(Struct, frozen=True, kw_only=True):
    """Says which events compaction has to leave alone, so that tables get every event that was published.

    It waits for `longest_delay` at the most: where no job runs any more, or none ever did, events are compacted then.
    """

    event_types: EventTypes
    log_index: LogIndex
    longest_delay: timedelta

    def compactable_until(
        self, event_type: EventType, topic_partition: TopicPartition, event_log: EventLog, now: datetime
    ) -> datetime:
        """Every event of a partition that was stored before is in its table, or has waited for too long.

        A job stores how far a table is after its commit, so that what is found here is never too late. Events of one
        partition are stored in the order of their offsets.
        """
        no_table = event_type.annotations.get(MATERIALIZE_ANNOTATION) == "off"
        if no_table or not self.longest_delay or self.log_index.topic(topic_partition[0]) is None:
            return now
        state = self.event_types.table_state(event_type)
        following = state.next_offsets.get(topic_partition, 0) if state else 0
        topic, partition = topic_partition
        if following >= event_log.bounds(topic, [partition])[partition].next_offset:
            return now
        head = self.log_index.index_heads([topic_partition])[topic_partition].state
        unread = (
            next(_segments_from(self.log_index, topic_partition, following), None)
            if following < head.next_offset
            else None
        )
        # What is not archived yet comes behind the latest that is.
        since = head.latest_stored_at if unread is None else unread.first_stored_at
        return max(datetime_from_microseconds(since), now - self.longest_delay)


def _segments_from(log_index: LogIndex, topic_partition: TopicPartition, offset: int) -> Iterator[IndexSegment]:
    """The segment that an offset is in, if there is one, and the first one behind it."""
    segment = log_index.segment_at_or_before(*topic_partition, offset)
    if segment is not None and segment.end_offset > offset:
        yield segment
    yield from log_index.segments_from(*topic_partition, offset, 1)
