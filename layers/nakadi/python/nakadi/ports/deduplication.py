"""Event logs that store an event once, however often it is appended: they recognize events by their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import chain
from struct import Struct as BytesStruct
from typing import Protocol, runtime_checkable

from msgspec import Struct

from nakadi.model.events import Record
from nakadi.ports.event_log import AppendResultByPartition

EID_BYTES = 16

_TEN_EIDS = BytesStruct(f"{EID_BYTES}s" * 10)


def unpack_eids(packed: bytes) -> list[bytes]:
    """The ids that were packed one after another. Unpacking ten ids at a time takes a third as long as slicing."""
    tens = len(packed) // _TEN_EIDS.size * _TEN_EIDS.size
    eids = list(chain.from_iterable(_TEN_EIDS.iter_unpack(packed[:tens])))
    eids += [packed[start : start + EID_BYTES] for start in range(tens, len(packed), EID_BYTES)]
    return eids


class EventIds(Struct, frozen=True, kw_only=True):
    """The ids of a batch's events, in the order of the batch, and the partition of each.

    An id is a duplicate only within the same `scope`, which is never reused for other events. `timeline` is the order
    of the batch's timeline, and is stored with each id. An id is a duplicate for as long as `window`.

    The ids are packed, because one object is passed to the writing thread faster than many.
    """

    scope: str
    timeline: int
    window: timedelta
    packed_eids: bytes
    partitions: Sequence[int]


@runtime_checkable
class DeduplicatingLog(Protocol):
    """An event log that remembers the ids of events.

    * An event whose id was stored in the same scope less than `window` ago is not stored again, regardless of the
      partition, topic or process of the first one, which may also be earlier in the same batch. Its fate is
      `DuplicateEvent`, with the first one's place.
    * The step that stores the events also remembers their ids. So the log remembers the ids of events that were stored
      before the process died, and no ids of events that are not stored.
    * All promises of `EventLog.append` hold for the other events.
    """

    async def append_once(
        self, topic: str, batches: Mapping[int, Sequence[Record]], ids: EventIds
    ) -> AppendResultByPartition:
        """Store the records whose ids are new, and return each partition's fate.

        Ids of partitions that are missing in `batches` are ignored.
        """


class DeduplicatingLogs(Protocol):
    def find(self, storage_id: str) -> DeduplicatingLog | None:
        """The log that stores the events of a storage once; None if that is not possible there."""
