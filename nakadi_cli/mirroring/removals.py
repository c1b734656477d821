"""Deletes the keys of a compacted event type that the source has removed. No stream delivers tombstones, so a mirror
cannot copy them. But after compaction, the source has no event with a deleted key. The mirror publishes a tombstone for
each key that only the target has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from nakadi_cli.failures import Failed
from nakadi_cli.mirroring.events import BATCH_EVENTS, BEGIN, RETRIES, event_for_target, read_batches

if TYPE_CHECKING:
    from nakadi_cli.api import Api


class _Key(msgspec.Struct):
    partition_compaction_key: str = ""


class _WithKey(msgspec.Struct):
    metadata: _Key = msgspec.field(default_factory=_Key)


_keys = msgspec.json.Decoder(_WithKey)
_events = msgspec.json.Decoder(dict[str, Any])


def compaction_key(event: bytes) -> str:
    return _keys.decode(event).metadata.partition_compaction_key


def delete_removed(source: Api, target: Api, definition: Mapping[str, Any], partitions: Sequence[str]) -> int:
    """Delete the keys that only the target has, and return their number. Raises `Failed` if the target rejects a
    deletion. The target is read before the source, so a key that is copied meanwhile is not mistaken for a deleted
    one.
    """
    name = definition["name"]
    newest = dict(_events_by_key(target, name, partitions))
    for key, _ in _events_by_key(source, name, partitions):
        newest.pop(key, None)
    if newest:
        _publish_tombstones(target, name, [_tombstone(event, definition) for event in newest.values()])
    return len(newest)


def _events_by_key(broker: Api, name: str, partitions: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for batch in read_batches(broker, name, dict.fromkeys(partitions, BEGIN)):
        for event in batch.events:
            yield compaction_key(bytes(event)), bytes(event)


def _tombstone(event: bytes, definition: Mapping[str, Any]) -> bytes:
    """A copy of the deleted event with a new id; its members choose the partition."""
    found = _events.decode(event_for_target(event, definition))
    found["metadata"]["eid"] = str(uuid4())
    return msgspec.json.encode(found)


def _publish_tombstones(target: Api, name: str, tombstones: Sequence[bytes]) -> None:
    from nakadi_cli.publishing import Publisher
    from nakadi_cli.reading_events import Event

    def batches() -> Iterator[Sequence[Event]]:
        for start in range(0, len(tombstones), BATCH_EVENTS):
            yield [Event(start + n, each) for n, each in enumerate(tombstones[start : start + BATCH_EVENTS])]

    publisher = Publisher(
        target.connection.of_client,
        name,
        batch_size=BATCH_EVENTS,
        retries=RETRIES,
        keep_going=False,
        form="tombstones",
    )
    try:
        publisher.publish(batches(), lambda _: None)
    finally:
        publisher.close()
    if problems := [*publisher.outcome.refused, *publisher.outcome.failed]:
        raise Failed(f"The target refuses to delete an event of {name}: {problems[0]['reason']}")
