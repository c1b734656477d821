"""Rows of an outbox, and the events that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

RowKey = tuple[str, str | int]
"""Rows with the same key are published in order. A row without a key gets a key of its own."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


# The name of the member `metadata`, and an empty object, as PostgreSQL writes them.
_METADATA_NAME, _EMPTY = b'"metadata"', b"{}"


class Row(msgspec.Struct, frozen=True):
    """A row that waits to be published. `event` is JSON."""

    id: int
    event_type: str
    key: str | None
    event: str
    eid: UUID
    written_at: datetime

    @property
    def order_key(self) -> RowKey:
        return self.event_type, self.id if self.key is None else self.key


def event_text(row: Row, *, has_metadata: bool) -> bytes:
    """The event to publish; numbers and names stay as the application wrote them.

    An event type with metadata gets `eid` and `occurred_at` from the row, unless the event has them.
    """
    text = row.event.encode()
    if not has_metadata:
        return text
    # Parsing would take half of the time of a relay. Most events have no metadata, and need not be parsed.
    if _METADATA_NAME not in text and text != _EMPTY:
        return b'%b, "metadata": {"eid": "%b", "occurred_at": "%b"}}' % (
            text[:-1],
            str(row.eid).encode(),
            row.written_at.isoformat().encode(),
        )
    members = _MEMBERS.decode(text)
    metadata = _metadata_members(members)
    if metadata is None:
        return text  # the broker reports the fault
    given = {name: value for name, value in metadata.items() if bytes(value) != b"null"}
    made = {
        "eid": msgspec.Raw(_encode(str(row.eid))),
        "occurred_at": msgspec.Raw(_encode(row.written_at.isoformat())),
    }
    return _encode(members | {"metadata": msgspec.Raw(_encode(made | given))})


def _metadata_members(members: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw] | None:
    """The members of an event's metadata; None if its metadata is no object."""
    try:
        return _MEMBERS.decode(members.get("metadata", b"{}"))
    except msgspec.DecodeError:
        return None


def batch_body(events: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(events) + b"]"
