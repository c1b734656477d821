"""Timelines: the generations of an event type's underlying log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct


class Timeline(Struct, frozen=True, kw_only=True):
    """One generation. `topic` names it in its storage's event log and is never used twice.

    `latest_positions` (partition -> offset of the last event, -1 for none) is known once the timeline is closed.
    `cleaned_up_at` of a closed timeline is when its events may go; `deleted` is set once they are gone.
    One `after_loss` was begun because events were lost behind the one before, which ends where offsets are certain.
    """

    id: str
    order: int
    storage_id: str
    topic: str
    partitions: int
    created_at: datetime
    switched_at: datetime | None = None
    cleaned_up_at: datetime | None = None
    latest_positions: Mapping[int, int] | None = None
    deleted: bool = False
    after_loss: bool = False

    @property
    def closed(self) -> bool:
        return self.latest_positions is not None
