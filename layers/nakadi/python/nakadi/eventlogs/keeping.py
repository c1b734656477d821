"""What compaction keeps of the half of a log that lies in the archive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nakadi.model.events import StoredEvent
from nakadi.model.moments import microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What stays: see `EventLog.compact`. `end` is the first offset that is too new to be looked at."""

    oldest: int
    end: int
    last: int
    newest: Mapping[str | None, int]
    tombstones_before: int

    def keeps(self, event: StoredEvent) -> bool:
        if event.offset < self.oldest:
            return False
        key = event.record.key
        if event.offset >= self.end or key is None or event.offset == self.last:
            return True
        return self.newest[key] == event.offset and not self._expired(event)

    def _expired(self, event: StoredEvent) -> bool:
        return event.record.value is None and microseconds(event.stored_at) < self.tombstones_before
