"""What a sink is sent: a batch as a stream of its subscription would send it, or CloudEvents."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import orjson
from msgspec import Struct

from nakadi.delivery.lanes import DeliveryBatch
from nakadi.delivery.senders import Attempt
from nakadi.model.event_type import Position
from nakadi.model.sink import SinkFormat
from nakadi.streaming.chunks import EventRun
from nakadi.subscriptions.stream.actions import SendBatch
from nakadi.subscriptions.stream.driver import JsonSubscriptionFormat

JSON = "application/json"
CLOUDEVENTS = "application/cloudevents-batch+json"


class Message(Struct, frozen=True):
    content_type: str
    body: bytes


def message_of(attempt: Attempt) -> Message:
    batch, message_id, sink_format = attempt.batch, attempt.message_id, attempt.sink.format
    if batch is None:
        return _trial_message(sink_format)
    if sink_format is SinkFormat.CLOUDEVENTS:
        return Message(CLOUDEVENTS, orjson.dumps(list(_cloud_events(batch))))
    line = JsonSubscriptionFormat(lambda: message_id).encode_line(SendBatch(batch.partition, batch.last, batch.runs))
    return Message(JSON, line)


def _trial_message(sink_format: SinkFormat) -> Message:
    """A delivery without events, which shows whether a sink answers, and understands its signature."""
    if sink_format is SinkFormat.CLOUDEVENTS:
        return Message(CLOUDEVENTS, b"[]")
    return Message(JSON, b'{"events":[],"info":{"debug":"A test delivery"}}')


def _cloud_events(batch: DeliveryBatch) -> Iterator[dict[str, Any]]:
    for run in batch.runs:
        for index, value in enumerate(run.values):
            yield _cloud_event(batch, run, index, value)


def _cloud_event(batch: DeliveryBatch, run: EventRun, index: int, value: bytes) -> dict[str, Any]:
    """Members of an event's metadata become attributes where CloudEvents has such; all of it is in `data`, too."""
    event = orjson.loads(value)
    metadata = event.get("metadata") if isinstance(event, dict) else None
    known = metadata if isinstance(metadata, dict) else {}
    position = str(Position(run.chunk.order, run.chunk.offset_at(run.first + index)))
    name, partition = batch.partition.event_type, batch.partition.partition
    return {
        "specversion": "1.0",
        "id": known.get("eid") or f"{partition}:{position}",
        "source": f"/event-types/{name}",
        "type": name,
        "time": known.get("occurred_at") or _timestamp(run.stored_at(index)),
        "datacontenttype": JSON,
        "partition": partition,
        "offset": position,
        "data": orjson.Fragment(value),
    }


def _timestamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
