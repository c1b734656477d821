"""What deleted event types leave behind: topics with events, and old schema versions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from nakadi.catalog.event_types import LEFTOVERS, SCHEMAS
from nakadi.chores import attempted
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import Registry, Remove

# Well below what one write of a registry takes.
AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Leftovers:
    registry: Registry
    logs: EventLogs

    def clear_all(self) -> None:
        for note in self.registry.list(LEFTOVERS):
            attempted("removal of leftovers", f"the event type {note.key}", partial(self.clear, note.key))

    def clear(self, event_type_id: str) -> None:
        """Clear up after one event type. Can be repeated; the note goes last, so that nothing is forgotten."""
        note = self.registry.get(LEFTOVERS, event_type_id)
        if note is None:
            return
        for storage_id, topic in note.body["topics"]:
            self.logs.of(storage_id).delete_topic(topic)
        while schemas := self.registry.list(SCHEMAS, prefix=f"{event_type_id}/", limit=AT_ONCE):
            self.registry.write(*(Remove(SCHEMAS, schema.key) for schema in schemas))
        self.registry.write(Remove(LEFTOVERS, event_type_id))
