"""Publishes the rows of a DataFrame as events: each task publishes its rows, in batches.

The event of a row has a member for each column. If a task runs again, its events have the same `eid` as before, so an
event type with deduplication stores each of them once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import msgspec
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row

from nakadi.model.event_type import Category
from nakadi.publishing.enrichment import WRITTEN_BY_BROKER
from nakadi_client import Closed, Connection, Delivery, Metadata, NakadiError, Producer, key_at
from nakadi_jobs.columns import RESERVED_PREFIX
from nakadi_spark.errors import BadWrite
from nakadi_spark.sources import Broker, Source

_ENCODER = msgspec.json.Encoder()


class Target(msgspec.Struct, frozen=True):
    """Where and how to publish rows. `run` is the same whenever the same rows are written again.

    Events with the same values at the paths of `key` stay in their order; without paths, all events of a task do.
    """

    broker: Broker
    event_type: str
    has_metadata: bool
    key: Sequence[str]
    run: str


def write(
    frame: DataFrame,
    broker: str | Broker,
    event_type: str,
    *,
    key: str | Sequence[str] = (),
    run: str | None = None,
) -> None:
    """Publish each row as an event, and return when all are stored. Raises `BadWrite`, and Spark's error if a task
    fails.

    Each column becomes a member of the event, unless its value is null or its name begins with `nakadi_`. The column
    `metadata` may have metadata; missing members of it are generated, and those that the broker itself writes are left
    out, so rows that were read can be written.

    key    A column, or the path to a member such as `customer.id`, or several: the `partition_key_fields` of the event
           type. Rows of one key and one partition of the DataFrame are published in their order.
    run    A text that stays the same if the same rows are written again, such as the number of the batch of a stream:
           then their events have the same `eid`. Without it, this holds only for tasks that Spark repeats.
    """
    found = Broker(broker) if isinstance(broker, str) else broker
    target = plan_writing(found, event_type, key, run or str(uuid4()))
    frame.foreachPartition(partial(_write_partition, target))


def plan_writing(broker: Source, event_type: str, key: str | Sequence[str], run: str) -> Target:
    """Look up how the events of an event type must be written. Raises `BadWrite`."""
    if not isinstance(broker, Broker):
        raise BadWrite("Only a broker publishes events: name its URL.")
    with broker.open() as source:
        found = source.find(event_type)
    if found is None:
        raise BadWrite(f"There is no event type {event_type}.")
    paths = [key] if isinstance(key, str) else [*key]
    return Target(broker, event_type, found.category is not Category.UNDEFINED, paths, run)


def publish_rows(target: Target, partition: int, rows: Iterable[Row]) -> int:
    """Publish the rows of a partition, and return their number. Raises the error of the first row that failed."""
    failures: list[NakadiError] = []

    def note_failure(delivery: Delivery) -> None:
        if isinstance(delivery.outcome, NakadiError):
            failures.append(delivery.outcome)

    count = 0
    with (
        suppress(Closed),
        Producer[Mapping[str, Any]](
            Connection(target.broker.url, token=target.broker.token),
            target.event_type,
            key=key_at(*target.key) if target.key else None,
            metadata=Metadata() if target.has_metadata else None,
            on_failure="stop",
            on_delivery=note_failure,
            stop_on_signals=False,
        ) as producer,
    ):
        for event in events_of_rows(target, partition, rows):
            producer.send(event)
            count += 1
    if failures:
        raise failures[0]
    return count


def events_of_rows(target: Target, partition: int, rows: Iterable[Row]) -> Iterator[Mapping[str, Any]]:
    """The events of rows. With metadata, an event's `eid` is derived from the run, the partition, the row, and the
    number of equal rows before it.
    """
    seen: Counter[bytes] = Counter()
    for row in rows:
        event = {
            name: value for name, value in _members(row.asDict(recursive=True)) if not name.startswith(RESERVED_PREFIX)
        }
        if target.has_metadata:
            digest = sha256(f"{target.run}\n{partition}\n".encode() + _ENCODER.encode(event)).digest()
            eid = UUID(bytes=sha256(digest + str(seen[digest]).encode()).digest()[:16], version=5)
            seen[digest] += 1
            given = event.get("metadata", {}).items()
            event["metadata"] = {
                "eid": str(eid),
                **{name: each for name, each in given if name not in WRITTEN_BY_BROKER},
            }
        yield event


def _write_partition(target: Target, rows: Iterable[Row]) -> None:
    publish_rows(target, partition_number(), rows)


def partition_number() -> int:
    """The number of the partition of the DataFrame that this task processes."""
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def _members(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, _plain(value)) for name, value in values.items() if value is not None)


def _plain(value: Any) -> Any:
    """The value in a form that JSON has. Spark passes times to Python in the machine's time zone, without naming it."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case Decimal():
            return msgspec.Raw(f"{value:f}".encode())
        case Mapping():
            return dict(_members(value))
        case list():
            return [_plain(each) for each in value]
    return value
