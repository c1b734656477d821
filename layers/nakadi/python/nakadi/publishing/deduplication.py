"""The ids of events. Batches of an event type that deduplicates are appended together with the ids of their events."""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Sequence
from itertools import chain

import msgspec
from msgspec import Struct

from nakadi.model.event_type import EventType
from nakadi.model.events import Record
from nakadi.ports.deduplication import EventIds
from nakadi.publishing.batch import EID_PATH, Batch


class _Metadata(Struct, gc=False):
    eid: str


class _EventWithId(Struct, gc=False):
    metadata: _Metadata


_DECODER = msgspec.json.Decoder(_EventWithId)


def eids_of_events(event_type: EventType, batch: Batch) -> Sequence[str] | None:
    """The eid of each event; None for an event type that does not deduplicate."""
    return None if event_type.deduplication_window is None else list(chain.from_iterable(batch.rows_at((EID_PATH,))))


def ids_for_append(
    event_type: EventType, partitions: Sequence[int], eids: Sequence[str] | None, directed_to: str | None
) -> EventIds | None:
    """The ids by which the events of a batch are recognized; None for an event type that does not deduplicate.

    Deletions have no ids, because another tombstone changes nothing. Batches that are directed to a subscription have a
    separate scope: they repeat events that other subscriptions have already received.
    """
    window = event_type.deduplication_window
    if window is None or eids is None:
        return None
    return EventIds(
        scope=event_type.id if directed_to is None else f"{event_type.id}/{directed_to}",
        timeline=event_type.timeline.order,
        window=window,
        # Ids that differ only in letter case are the same id.
        packed_eids=unhexlify("".join(eids).encode().translate(None, b"-")),
        partitions=partitions,
    )


def eid_of_record(record: Record) -> bytes | None:
    """The id of a stored event; None for a tombstone, and for an event without one."""
    try:
        return bytes.fromhex(_DECODER.decode(record.value or b"").metadata.eid.replace("-", ""))
    except (msgspec.MsgspecError, ValueError):
        return None
