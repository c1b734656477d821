"""Events that are published more than once: their ids, and what clients are told of them.

An event type that deduplicates has its batches appended together with the ids of their events. Ids are taken from the
records, which have them however they were made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from nakadi.model.event_type import EventType
from nakadi.model.events import Record, RecordLines
from nakadi.ports.deduplication import EventIds

EID_BYTES = 16


class _Metadata(Struct, gc=False):
    eid: str


class _EventWithId(Struct, gc=False):
    metadata: _Metadata


_DECODER = msgspec.json.Decoder(_EventWithId)


def ids_for_append(
    event_type: EventType,
    partitions: Sequence[int],
    records_by_partition: Mapping[int, Sequence[Record]],
    directed_to: str | None,
) -> EventIds | None:
    """The ids by which the events of a batch are known again; None for an event type that does not deduplicate.

    Deletions have none: a tombstone more changes nothing. Batches that are directed to a subscription have a scope of
    their own: they are sent to have it see once more what all others have seen before.
    """
    window = event_type.deduplication_window
    if window is None or any(map(_are_tombstones, records_by_partition.values())):
        return None
    eids = {partition: _eids_of(records) for partition, records in records_by_partition.items()}
    return EventIds(
        scope=event_type.id if directed_to is None else f"{event_type.id}/{directed_to}",
        timeline=event_type.timeline.order,
        window=window,
        eids=next(iter(eids.values())) if len(eids) == 1 else _sort_by_batch_order(eids, partitions),
        partitions=partitions,
    )


def _are_tombstones(records: Sequence[Record]) -> bool:
    return not isinstance(records, RecordLines) and records[0].value is None


def eid_of_record(record: Record) -> bytes | None:
    """The id of a stored event; None for a tombstone, and for an event without one."""
    try:
        return bytes.fromhex(_DECODER.decode(record.value or b"").metadata.eid.replace("-", ""))
    except (msgspec.MsgspecError, ValueError):
        return None


def _eids_of(records: Sequence[Record]) -> list[bytes]:
    """The 16 bytes of each id: two that differ in the case of their letters are one."""
    text = records.text if isinstance(records, RecordLines) else b"\n".join([each.value or b"{}" for each in records])
    digits = "".join([each.metadata.eid for each in _DECODER.decode_lines(text)]).replace("-", "")
    packed = bytes.fromhex(digits)
    return [packed[start : start + EID_BYTES] for start in range(0, len(packed), EID_BYTES)]


def _sort_by_batch_order(eids: Mapping[int, Sequence[bytes]], partitions: Sequence[int]) -> list[bytes]:
    left = {partition: iter(each) for partition, each in eids.items()}
    return [next(left[partition]) for partition in partitions]
