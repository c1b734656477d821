"""What a sink is sent: a batch as a stream of its subscription would send it, or CloudEvents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


TRIAL = "nakadi.test"
"""What stands for the event type and the partition of a trial."""


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


class DeliveredEvent(Struct, frozen=True):
    """An event for a sink that gets each by itself. A trial is one, too, which has no event type.

    `text` is what is sent. `id` is the event's cursor, `place` the partition that it is in.
    """

    text: str
    id: str
    place: str
    stored_at: datetime
    event_type: str = TRIAL
    key: str | None = None
    eid: str | None = None
    attributes: Mapping[str, str] = {}


def delivered_events(attempt: Attempt) -> Sequence[DeliveredEvent]:
    """The events of a batch, or the one of a trial."""
    if attempt.batch is None:
        trial = _trial_message(SinkFormat.NAKADI).body.decode()
        return [DeliveredEvent(text=trial, id=attempt.message_id, place=TRIAL, stored_at=attempt.now)]
    return list(_events_of_batch(attempt.batch, attempt.sink.format))


def _events_of_batch(batch: DeliveryBatch, sink_format: SinkFormat) -> Iterator[DeliveredEvent]:
    name, partition = batch.partition.event_type, batch.partition.partition
    for run in batch.runs:
        for index, value in enumerate(run.values):
            position = _position(run, index)
            is_plain = sink_format is SinkFormat.NAKADI
            yield DeliveredEvent(
                text=(value if is_plain else orjson.dumps(_cloud_event(batch, run, index, value))).decode(),
                id=f"{name}:{partition}:{position}",
                place=f"{name}:{partition}",
                stored_at=run.stored_at(index),
                event_type=name,
                key=run.chunk.records[run.first + index].key,
                eid=_metadata_of(value).get("eid"),
                attributes={"event_type": name, "partition": partition, "offset": position},
            )


def _cloud_events(batch: DeliveryBatch) -> Iterator[dict[str, Any]]:
    for run in batch.runs:
        for index, value in enumerate(run.values):
            yield _cloud_event(batch, run, index, value)


def _cloud_event(batch: DeliveryBatch, run: EventRun, index: int, value: bytes) -> dict[str, Any]:
    """Members of an event's metadata become attributes where CloudEvents has such; all of it is in `data`, too."""
    known = _metadata_of(value)
    position = _position(run, index)
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


def _metadata_of(value: bytes) -> Mapping[str, Any]:
    event = orjson.loads(value)
    metadata = event.get("metadata") if isinstance(event, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _position(run: EventRun, index: int) -> str:
    return str(Position(run.chunk.order, run.chunk.offset_at(run.first + index)))


def _timestamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
