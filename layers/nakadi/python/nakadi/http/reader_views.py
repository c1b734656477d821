"""Readers of event types as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nakadi.model.reads import AffectedReader, ReadChange, Reader

if TYPE_CHECKING:
    from nakadi.event_types.readers import EventTypeReaders

View = dict[str, Any]


MAX_SHOWN_CHANGES = 1_000
"""The number of changes shown for all readers together; each reader has at least one."""


def affected_readers_view(readers: Sequence[AffectedReader]) -> list[View]:
    shown = max(1, MAX_SHOWN_CHANGES // max(1, len(readers)))
    return [
        {**_reader_view(each.reader), "changes": list(map(read_change_view, each.changes[:shown]))} for each in readers
    ]


def event_type_readers_view(found: EventTypeReaders) -> View:
    return {
        "readers": [{**_reader_view(each), "reads": each.reads} for each in found.readers],
        "unread": found.unread,
    }


def _reader_view(reader: Reader) -> View:
    return {
        "subscription_id": reader.subscription_id,
        "owning_application": reader.owning_application,
        "consumer_group": reader.consumer_group,
    }


def read_change_view(change: ReadChange) -> View:
    return {
        "path": change.path,
        "member": change.member,
        "change": change.kind,
        "explanation": change.explanation,
    }
