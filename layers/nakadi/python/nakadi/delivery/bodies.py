"""Makes the bodies of deliveries: a batch as a stream of its subscription would send it, or CloudEvents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from nakadi.delivery.lanes import DeliveryBatch
from nakadi.delivery.senders import Attempt
from nakadi.model.cloud_events import BATCH_MEDIA_TYPE
from nakadi.model.sink import Sink, SinkFormat
from nakadi.streaming.cloud_events import CloudEventPlace, cloud_event_json, cloud_events_json, read_metadata
from nakadi.subscriptions.stream.actions import SendBatch
from nakadi.subscriptions.stream.driver import JsonSubscriptionFormat

JSON = "application/json"


TRIAL = "nakadi.test"
"""The name in a trial's delivery, in place of an event type and a partition."""


class Message(Struct, frozen=True):
    content_type: str
    body: bytes


def message_of(attempt: Attempt) -> Message:
    batch, message_id, sink_format = attempt.batch, attempt.message_id, attempt.sink.format
    if batch is None:
        return _trial_message(sink_format)
    if sink_format is SinkFormat.CLOUDEVENTS:
        return Message(BATCH_MEDIA_TYPE, cloud_events_json(_cloud_event_place(batch), batch.runs))
    line = JsonSubscriptionFormat(lambda: message_id).encode_line(SendBatch(batch.partition, batch.last, batch.runs))
    return Message(JSON, line)


def _trial_message(sink_format: SinkFormat) -> Message:
    """A delivery without events, which shows whether a sink answers, and whether it understands the signature."""
    if sink_format is SinkFormat.CLOUDEVENTS:
        return Message(BATCH_MEDIA_TYPE, b"[]")
    return Message(JSON, b'{"events":[],"info":{"debug":"A test delivery"}}')


class DeliveredEvent(Struct, frozen=True):
    """An event for a sink that receives each event by itself. For a trial, one such event without an event type is
    sent.

    `text` is the body to send. `id` is the subscription with the event's cursor, `place` the event's partition.
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
    """The events of a batch, or the event of a trial."""
    if attempt.batch is None:
        trial = _trial_message(SinkFormat.NAKADI).body.decode()
        return [DeliveredEvent(text=trial, id=attempt.message_id, place=TRIAL, stored_at=attempt.now)]
    return list(_events_of_batch(attempt.batch, attempt.sink))


def _events_of_batch(batch: DeliveryBatch, sink: Sink) -> Iterator[DeliveredEvent]:
    name, partition = batch.partition.event_type, batch.partition.partition
    for run in batch.runs:
        for index, value in enumerate(run.values):
            position = str(run.position_at(index))
            is_plain = sink.format is SinkFormat.NAKADI
            yield DeliveredEvent(
                text=(value if is_plain else cloud_event_json(_cloud_event_place(batch), run, index)).decode(),
                id=f"{sink.subscription_id}:{name}:{partition}:{position}",
                place=f"{name}:{partition}",
                stored_at=run.stored_at(index),
                event_type=name,
                key=run.chunk.records[run.first + index].key,
                eid=_eid_of_event(value),
                attributes={"event_type": name, "partition": partition, "offset": position},
            )


def _eid_of_event(value: bytes) -> str | None:
    """The event's id, as a sink may name it. In the category `undefined`, an id may be any JSON value; of these, texts
    and numbers are used.
    """
    eid = read_metadata(value).get("eid")
    return str(eid) if isinstance(eid, str | int) else None


def _cloud_event_place(batch: DeliveryBatch) -> CloudEventPlace:
    return CloudEventPlace(batch.partition.event_type, batch.partition.partition)
