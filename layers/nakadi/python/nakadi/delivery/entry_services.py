"""SQS, SNS and EventBridge: the form in which each of them takes an event, and the meaning of its answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from nakadi.delivery.bodies import DeliveredEvent
from nakadi.delivery.entries import Entry, EntryFailure, RequestLimits
from nakadi.delivery.targets import Target
from nakadi.model.sink import SinkType

LIMITS = RequestLimits(entries=10, bytes=256 * 1024)
"""Some services now accept more. A larger event goes in its own request, so that the service decides."""

SOURCE = "nakadi"
"""The source of each event in EventBridge. Its detail type is the event type."""
MAX_DETAIL_TYPE_CHARACTERS = 128
TIME_BYTES = 14
"""The bytes that EventBridge counts for the time of an event."""
REFUSED_CODES = frozenset({"InvalidArgument", "MalformedDetail", "ValidationException"})
"""The codes that blame the event. With all other codes, EventBridge is busy, or the bus is missing or forbidden."""

CALLER_FAULTS = re.compile("kms|denied|throttl|nonexistent|notfound|token|overlimit", re.IGNORECASE)
"""If the code of a failure that the service calls the sender's fault contains one of these texts, the broker or its
permissions are to blame, not the event.
"""

IDENTIFIER_PATTERN = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)


class EntryService(Protocol):
    """`name` is the service's name in the SDK."""

    name: str

    def make_entry(self, target: Target, index: int, event: DeliveredEvent) -> Entry:
        """An event in the form in which the service takes it."""

    def send(self, client: Any, target: Target, entries: Sequence[Entry]) -> Mapping[int, EntryFailure]:
        """Send a request, and return the failures by index. Raises the SDK's exceptions."""


class SqsService:
    name = "sqs"

    def make_entry(self, target: Target, index: int, event: DeliveredEvent) -> Entry:
        return _message_entry(target, index, event, "MessageBody")

    def send(self, client: Any, target: Target, entries: Sequence[Entry]) -> Mapping[int, EntryFailure]:
        url = f"{client.meta.endpoint_url.rstrip('/')}/{target.account}/{target.name}"
        return _failed_messages(entries, client.send_message_batch(QueueUrl=url, Entries=_members(entries)))


class SnsService:
    name = "sns"

    def make_entry(self, target: Target, index: int, event: DeliveredEvent) -> Entry:
        return _message_entry(target, index, event, "Message")

    def send(self, client: Any, target: Target, entries: Sequence[Entry]) -> Mapping[int, EntryFailure]:
        request = _members(entries)
        return _failed_messages(entries, client.publish_batch(TopicArn=target.arn, PublishBatchRequestEntries=request))


class EventBridgeService:
    """An event bus of EventBridge, which does not keep the order of events."""

    name = "events"

    def make_entry(self, target: Target, index: int, event: DeliveredEvent) -> Entry:
        detail_type = event.event_type[:MAX_DETAIL_TYPE_CHARACTERS]
        members = {
            "EventBusName": target.arn,
            "Source": SOURCE,
            "DetailType": detail_type,
            "Detail": event.text,
            "Time": event.stored_at,
        }
        return Entry(index, members, TIME_BYTES + _size_bytes(SOURCE, detail_type, event.text))

    def send(
        self,
        client: Any,
        target: Target,  # noqa: ARG002  # each entry names its bus
        entries: Sequence[Entry],
    ) -> Mapping[int, EntryFailure]:
        results = client.put_events(Entries=_members(entries)).get("Entries", ())
        failures = {
            entry.index: EntryFailure(f"{code}: {result.get('ErrorMessage', '')}", code in REFUSED_CODES)
            for entry, result in zip(entries, results, strict=False)
            if (code := result.get("ErrorCode"))
        }
        accepted = {entry.index for entry, result in zip(entries, results, strict=False) if result.get("EventId")}
        return _with_unconfirmed(entries, accepted, failures)


ENTRY_SERVICES: Mapping[SinkType, EntryService] = {
    SinkType.SQS: SqsService(),
    SinkType.SNS: SnsService(),
    SinkType.EVENTBRIDGE: EventBridgeService(),
}


def _message_entry(target: Target, index: int, event: DeliveredEvent, body_member: str) -> Entry:
    attributes = event.attributes
    members = {
        "Id": str(index),
        body_member: event.text,
        "MessageAttributes": {name: {"DataType": "String", "StringValue": text} for name, text in attributes.items()},
    }
    size = _size_bytes(event.text, *attributes, *attributes.values()) + len("String") * len(attributes)
    if not target.is_fifo:
        return Entry(index, members, size)
    group = valid_identifier(event.key or event.place)
    return Entry(
        index, {**members, "MessageGroupId": group, "MessageDeduplicationId": valid_identifier(event.id)}, size, group
    )


def _failed_messages(entries: Sequence[Entry], answer: Mapping[str, Any]) -> Mapping[int, EntryFailure]:
    index_by_id = {each.members["Id"]: each.index for each in entries}
    failures = {
        index_by_id[each["Id"]]: EntryFailure(f"{each.get('Code')}: {each.get('Message', '')}", _is_event_blamed(each))
        for each in answer.get("Failed", ())
        if each.get("Id") in index_by_id
    }
    accepted = {index_by_id[each["Id"]] for each in answer.get("Successful", ()) if each.get("Id") in index_by_id}
    return _with_unconfirmed(entries, accepted, failures)


def _is_event_blamed(failure: Mapping[str, Any]) -> bool:
    """Whether the event is to blame: services call both bad events and missing permissions or high rates sender
    faults."""
    return bool(failure.get("SenderFault")) and CALLER_FAULTS.search(failure.get("Code", "")) is None


def _with_unconfirmed(
    entries: Sequence[Entry], accepted: Collection[int], failures: Mapping[int, EntryFailure]
) -> Mapping[int, EntryFailure]:
    """Add a failure for each entry that the answer does not mention: it may not have been accepted."""
    unconfirmed = EntryFailure("The answer does not say what became of it", is_blamed=False)
    return {**{each.index: unconfirmed for each in entries if each.index not in accepted}, **failures}


def valid_identifier(text: str) -> str:
    """The text, if a service accepts it as the name of a group or for deduplication; otherwise its hash."""
    return text if IDENTIFIER_PATTERN.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _members(entries: Sequence[Entry]) -> list[Mapping[str, Any]]:
    return [each.members for each in entries]


def _size_bytes(*texts: str) -> int:
    return sum(len(each.encode()) for each in texts)
