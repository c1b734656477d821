"""Makes CloudEvents of events: lists for streams and sinks, and the lines of a stream.

The stream delivers an event that was published as a CloudEvent as the same CloudEvent, and adds its place in the
stream. Any other event is `data` as a whole, and its metadata provides the attributes that `model/cloud_events.py`
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from nakadi.model.cloud_events import (
    ATTRIBUTES_MEMBER,
    BATCH_MEDIA_TYPE,
    PARTITION_KEY_ATTRIBUTE,
    SPECIFICATION_VERSION,
    TRACE_ATTRIBUTES,
    TRACE_MEMBER,
    find_control_character,
    is_attribute_name,
)
from nakadi.schemas.document import COMPACTION_KEY
from nakadi.schemas.formats import timestamp_problem
from nakadi.streaming.chunks import EventRun, escape_line_separators
from nakadi.streaming.session import SendEvents, SendStreamKeepAlive

JSON_MEDIA_TYPE = "application/json"


class _Event(Struct):
    metadata: msgspec.Raw = msgspec.Raw(b"null")


_EVENT_DECODER = msgspec.json.Decoder(_Event)
_MEMBERS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


class CloudEventPlace(Struct, frozen=True):
    """Where the attributes of a CloudEvent come from: the partition and, in a stream of a subscription, the `token` of
    the batch's cursor.
    """

    event_type: str
    partition: str
    token: str | None = None


def cloud_events_json(place: CloudEventPlace, runs: Sequence[EventRun]) -> bytes:
    """The events of runs as a JSON array of CloudEvents."""
    return orjson.dumps([_cloud_event(place, run, index) for run in runs for index in range(run.count)])


def cloud_event_json(place: CloudEventPlace, run: EventRun, index: int) -> bytes:
    """An event of a run as a CloudEvent."""
    return orjson.dumps(_cloud_event(place, run, index))


def cloud_events_line(parts: Sequence[bytes]) -> bytes:
    """A line of a stream, made of parts of its array without brackets."""
    return escape_line_separators(b"[%b]\n" % b",".join(parts))


# A batch without CloudEvents, which keeps a stream alive.
EMPTY_LINE = b"[]\n"


class CloudEventStreamFormat:
    """One batch of CloudEvents per line, in a stream of an event type."""

    content_type = BATCH_MEDIA_TYPE

    def __init__(self, event_type: str) -> None:
        self._event_type = event_type

    def stream_opening(self) -> bytes:
        return b""

    def encode_batch(self, batch: SendEvents) -> bytes:
        return cloud_events_line(
            [cloud_events_json(CloudEventPlace(self._event_type, batch.partition), batch.runs)[1:-1]]
        )

    def encode_keep_alive(self, keep_alive: SendStreamKeepAlive) -> bytes:  # noqa: ARG002  # no event has its cursor
        return EMPTY_LINE

    def encode_problem(self, problem: bytes) -> bytes:
        return escape_line_separators(problem) + b"\n"


def _cloud_event(place: CloudEventPlace, run: EventRun, index: int) -> dict[str, Any]:
    value, position = run.chunk.values[run.first + index], str(run.position_at(index))
    metadata = read_metadata(value)
    attributes = dict(_texts(metadata.get(ATTRIBUTES_MEMBER)))
    came_as_cloud_event = "source" in attributes
    occurred_at, trace = metadata.get("occurred_at"), metadata.get(TRACE_MEMBER)
    event: dict[str, Any] = {
        "specversion": SPECIFICATION_VERSION,
        "id": _text(metadata.get("eid")) or f"{place.partition}:{position}",
        "source": f"/event-types/{place.event_type}",
        "type": place.event_type,
        "datacontenttype": JSON_MEDIA_TYPE,
        **attributes,
        "time": occurred_at if _is_moment(occurred_at) else run.stored_at(index).isoformat().replace("+00:00", "Z"),
    }
    if key := _text(metadata.get(COMPACTION_KEY)):
        event[PARTITION_KEY_ATTRIBUTE] = key
    event.update((name, text) for name, text in _texts(trace) if name in TRACE_ATTRIBUTES)
    event.update(eventtype=place.event_type, partition=place.partition, offset=position)
    if place.token is not None:
        event["cursortoken"] = place.token
    event["data"] = orjson.Fragment(_without_metadata(value) if came_as_cloud_event else value)
    return event


def read_metadata(value: bytes) -> Mapping[str, Any]:
    """The metadata of an event, empty if it has none. Nothing else in the event is parsed."""
    try:
        metadata = orjson.loads(bytes(_EVENT_DECODER.decode(value).metadata))
    except (msgspec.MsgspecError, orjson.JSONDecodeError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _texts(members: Any) -> Iterator[tuple[str, str]]:
    """The members that can be attributes. A client that publishes events in JSON may have added other members."""
    if isinstance(members, dict):
        for name, value in members.items():
            if is_attribute_name(name) and name not in _NO_TEXTS_OF_CLIENTS and _text(value):
                yield name, value


_NO_TEXTS_OF_CLIENTS = frozenset(("specversion", "time", "data", "partition", "offset", "eventtype", "cursortoken"))


def _text(value: Any) -> str | None:
    """The text of an attribute with this value; None if it cannot be one."""
    return value if isinstance(value, str) and value and not find_control_character(value) else None


def _is_moment(value: Any) -> bool:
    return isinstance(value, str) and timestamp_problem(value) is None


def _without_metadata(value: bytes) -> bytes:
    members = _MEMBERS_DECODER.decode(value)
    rest = [b"%b:%b" % (orjson.dumps(name), bytes(raw)) for name, raw in members.items() if name != "metadata"]
    return b"{%b}" % b",".join(rest)
