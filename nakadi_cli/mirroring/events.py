"""Copies the events of an event type, partition by partition in their order.

The position of a partition advances when the target has acknowledged a batch. After a mirror is killed, the next one
republishes the unacknowledged events with the same eids, so an event type with `deduplication` stores each event once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from nakadi_cli.api import path
from nakadi_cli.failures import Failed
from nakadi_cli.mirroring.state import Progress

if TYPE_CHECKING:
    from nakadi_cli.api import Api
    from nakadi_client import Batch

BATCH_EVENTS = 500
BEGIN = "BEGIN"
MAX_EMPTY_READS, EMPTY_READS_OF_COMPACTED = 20, 5
_NOTHING_YET = "--1"
_BEFORE_FIRST = "001-0001--1"
RETRIES = 20
_SECONDS_BETWEEN_SAVES = 1.0

# Publishers may set these; the target sets all others itself.
_METADATA_OF_PUBLISHERS = frozenset(
    {
        *("eid", "occurred_at", "event_type", "parent_eids", "flow_id", "span_ctx"),
        *("partition_compaction_key", "cloudevent"),
    }
)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Metadata(msgspec.Struct):
    eid: str = ""
    occurred_at: str = ""


class _WithMetadata(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_identities = msgspec.json.Decoder(_WithMetadata)


def event_for_target(event: bytes, definition: Mapping[str, Any]) -> bytes:
    """An event as a publisher would send it. Its numbers keep every digit."""
    if definition["category"] == "undefined":
        return event
    members = _members.decode(event)
    given = _members.decode(members["metadata"])
    chooses_partition = definition.get("partition_strategy") == "user_defined"
    members["metadata"] = msgspec.Raw(
        msgspec.json.encode(
            {
                name: value
                for name, value in given.items()
                if name in _METADATA_OF_PUBLISHERS or (name == "partition" and chooses_partition)
            }
        )
    )
    return msgspec.json.encode(members)


def identity(event: bytes) -> tuple[bytes, str]:
    """The identity of an event in both brokers, and the minute in which it occurred."""
    try:
        metadata = _identities.decode(event).metadata
    except msgspec.MsgspecError:
        metadata = _Metadata()
    return hashlib.blake2b(metadata.eid.lower().encode() or event, digest_size=12).digest(), metadata.occurred_at[:16]


def is_compacted(definition: Mapping[str, Any]) -> bool:
    return definition.get("cleanup_policy") in ("compact", "compact_and_delete")


def is_reached(offset: str, copied: str) -> bool:
    """Whether a copy up to one offset includes another offset. Offsets sort like their strings."""
    return offset in (BEGIN, _BEFORE_FIRST) or (copied != BEGIN and offset <= copied)


def read_batches(
    broker: Api, name: str, offsets: Mapping[str, str], batch_events: int | None = None
) -> Iterator[Batch[Any]]:
    """The events after these offsets that exist now, as they are stored, and perhaps some that arrive meanwhile. The
    original Nakadi reports that a partition has no more events while it is still fetching some. So the newest offsets
    decide when everything is read. Raises `Failed` if they are not reached, unless the last events may be tombstones,
    or a new timeline has no events yet.
    """
    at = dict(offsets)
    ends = {
        each["partition"]: each["newest_available_offset"]
        for each in broker.get(path("event-types", name, "partitions"))
        if each["partition"] in at and each["oldest_available_offset"] <= each["newest_available_offset"]
    }
    attempts = 0
    while left := [each for each, end in ends.items() if not is_reached(end, at[each])]:
        attempts += 1
        if attempts == EMPTY_READS_OF_COMPACTED + 1 and is_compacted(broker.get(path("event-types", name))):
            return  # The partition may end with tombstones, which no stream delivers.
        if attempts > MAX_EMPTY_READS:
            if all(ends[each].endswith(_NOTHING_YET) for each in left):
                return  # A new timeline has begun and has no events yet.
            raise Failed(f"Partition {left[0]} of {name} has events up to {ends[left[0]]}, which do not arrive.")
        for batch in _read_once(broker, name, {each: at[each] for each in left}, batch_events or BATCH_EVENTS):
            attempts = 0
            at[batch.partition] = batch.offset
            yield batch


def _read_once(broker: Api, name: str, offsets: Mapping[str, str], batch_events: int) -> Iterator[Batch[Any]]:
    from nakadi_client import Patience, Reader

    yield from Reader[Any](
        broker.connection.of_client,
        name,
        model=msgspec.Raw,
        start=offsets,
        follow=False,
        batch_limit=batch_events,
        patience=Patience(without_answer=60),
    )


def copy_events(
    source: Api,
    target: Api,
    definition: Mapping[str, Any],
    partitions: Sequence[str],
    progress: Progress,
    save: Callable[[], None],
) -> None:
    """Copy the events that the source has now and that the target lacks. Raises `Failed` at an event that it cannot
    publish.
    """
    for partition in partitions:
        progress.offsets.setdefault(partition, BEGIN)
    saved_at = time.monotonic()
    with closing(_destination(source, target, definition)) as destination:
        try:
            for batch in read_batches(source, definition["name"], progress.offsets):
                if problem := destination.publish([bytes(each) for each in batch.events]):
                    number, reason = problem
                    raise Failed(
                        f"The target refuses event {number + 1} of the {len(batch.events)} up to offset {batch.offset} "
                        f"in partition {batch.partition} of {definition['name']}: {reason}"
                    )
                progress.copied += len(batch.events)
                progress.offsets[batch.partition] = batch.offset
                if time.monotonic() - saved_at > _SECONDS_BETWEEN_SAVES:
                    save()
                    saved_at = time.monotonic()
        finally:
            save()


Problem = tuple[int, str]
"""The number of an event in its batch, and why it is refused."""


class _Destination(Protocol):
    def publish(self, events: Sequence[bytes]) -> Problem | None:
        """Publish events in their order. Returns the first rejected event, after which no event is stored, or None."""

    def close(self) -> None: ...


def _destination(source: Api, target: Api, definition: Mapping[str, Any]) -> _Destination:
    if definition["schema"]["type"] == "avro_schema":
        from nakadi_cli.mirroring.avro_publishing import AvroDestination

        return AvroDestination(source, target, definition)
    return _JsonDestination(target, definition)


class _JsonDestination:
    def __init__(self, target: Api, definition: Mapping[str, Any]) -> None:
        from nakadi_cli.publishing import Publisher

        self._definition = definition
        self._publisher = Publisher(
            target.connection.of_client, definition["name"], batch_size=BATCH_EVENTS, retries=RETRIES, keep_going=False
        )

    def publish(self, events: Sequence[bytes]) -> Problem | None:
        from nakadi_cli.reading_events import Event

        batch = [Event(number, event_for_target(each, self._definition)) for number, each in enumerate(events)]
        self._publisher.publish([batch], lambda _: None)
        problems = [*self._publisher.outcome.refused, *self._publisher.outcome.failed]
        return (problems[0]["event"], problems[0]["reason"]) if problems else None

    def close(self) -> None:
        self._publisher.close()
