"""The format of events in Kafka: one record each, as brokers with the Nakadi API have always written them.

The record's value is the event's JSON, and its key is the event's key. A record with the value null is a tombstone.
Headers say who may read the event, and to which subscription it is directed. A topic that the original Nakadi wrote is
therefore readable here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any

from nakadi.model.authorization import Attribute
from nakadi.model.events import EventTextBlock, LazyEvents, Record, StoredEvent

OWNER_TYPE_HEADER = "X-AuthParam-Name"
OWNER_VALUE_HEADER = "X-AuthParam-Value"
DIRECTED_TO_HEADER = "CONSUMER_SUBSCRIPTION_ID"

RECORD_OVERHEAD_BYTES = 80
"""An upper bound for the bytes of a record besides its value, key and headers, including its share of the batch's
head.
"""

SEAL_MARKER = Record(None, directed_to="\0")
"""The record that a sealed topic may have after its last event. The marker is not an event, and no client can publish
such a record.
"""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def max_record_bytes(record: Record) -> int:
    """An upper bound of the record's size in a batch, before compression."""
    size = RECORD_OVERHEAD_BYTES + len(record.value or b"") + 4 * len(record.key or "")
    if record.owner is not None or record.directed_to is not None:
        size += sum(len(name) + len(value) for name, value in record_headers(record))
    return size


def record_headers(record: Record) -> list[tuple[str, bytes]]:
    headers = []
    if record.owner is not None:
        headers.append((OWNER_TYPE_HEADER, record.owner.data_type.encode()))
        headers.append((OWNER_VALUE_HEADER, record.owner.value.encode()))
    if record.directed_to is not None:
        headers.append((DIRECTED_TO_HEADER, record.directed_to.encode()))
    return headers


def events_from_messages(messages: Sequence[Any]) -> Sequence[StoredEvent]:
    """The events of messages of one partition, in order, without seal markers. There must be at least one message.

    Plain events are returned as text, because streams send it unchanged, and creating an object for each event would
    take longer than all other work.
    """
    values = [message.value() for message in messages]
    keys = [message.key() for message in messages]
    headers = [message.headers() for message in messages]
    # Other programs may have written the topic. Only events in the form in which brokers store them, without line
    # breaks, are passed on as text.
    if None not in values and keys.count(None) == len(keys) and not any(headers) and b"\n" not in b"".join(values):
        return LazyEvents(list(_text_blocks(messages, values)))
    return tuple(event for event in map(event_from_message, messages) if event.record != SEAL_MARKER)


def _text_blocks(messages: Sequence[Any], values: Sequence[bytes]) -> Iterator[EventTextBlock]:
    """Blocks of messages that have the same time and no gap between their offsets."""
    times = [message.timestamp() for message in messages]
    offsets = [message.offset() for message in messages]
    begins = {index for index, (time, following) in enumerate(pairwise(times), 1) if time != following}
    begins |= {index for index, (offset, following) in enumerate(pairwise(offsets), 1) if offset + 1 != following}
    for first, last in pairwise([0, *sorted(begins), len(messages)]):
        yield EventTextBlock.join(offsets[first], _event_time(times[first][1]), values[first:last])


def event_from_message(message: Any) -> StoredEvent:
    key = message.key()
    headers = message.headers()
    owner, directed_to = _owner_and_addressee(headers) if headers else (None, None)
    record = Record(message.value(), None if key is None else key.decode(errors="replace"), owner, directed_to)
    return StoredEvent(message.offset(), record, _event_time(message.timestamp()[1]))


@lru_cache(maxsize=1024)
def _event_time(milliseconds: int) -> datetime:
    """The time of a record. It is cached, because events that were stored together have the same time."""
    return EPOCH + milliseconds * MILLISECOND


def to_milliseconds(moment: datetime) -> int:
    """The first whole millisecond that is not before the moment.

    Kafka counts milliseconds. Rounding up both the times of events and the times searched for keeps their order.
    """
    return -((EPOCH - moment) // MILLISECOND)


def _owner_and_addressee(headers: Sequence[tuple[str, bytes | None]]) -> tuple[Attribute | None, str | None]:
    # Of several headers with the same name, the last one is used, as in Kafka itself.
    found = {name: value.decode(errors="replace") for name, value in headers if value is not None}
    owner = None
    if OWNER_TYPE_HEADER in found and OWNER_VALUE_HEADER in found:
        owner = Attribute(found[OWNER_TYPE_HEADER], found[OWNER_VALUE_HEADER])
    return owner, found.get(DIRECTED_TO_HEADER)
