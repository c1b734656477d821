"""Reading archive objects, the ones read last without asking again."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence

from nakadi.archive import members
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import Location
from nakadi.ports import ArchiveGone, ArchiveStore

MOST_BYTES = 16_000_000
"""Compressed, as they are in the store."""

log = logging.getLogger(__name__)


class Library:
    def __init__(self, store: ArchiveStore, most_bytes: int = MOST_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._members: OrderedDict[Location, Sequence[StoredEvent]] = OrderedDict()
        self._bytes = 0

    def events(self, location: Location) -> Sequence[StoredEvent]:
        """The events of a member. Raises `ArchiveGone`, also for one that cannot be read."""
        with self._lock:
            known = self._members.get(location)
        if known is None:
            known = self._read(location)
            self._remember(location, known)
        return known

    def _read(self, location: Location) -> Sequence[StoredEvent]:
        try:
            return members.events_in(self._store.get(location))
        except members.BadArchive as error:
            log.exception("The archive object %s is damaged", location.key)
            raise ArchiveGone(location.key) from error

    def _remember(self, location: Location, events: Sequence[StoredEvent]) -> None:
        with self._lock:
            if location not in self._members:
                self._members[location] = events
                self._bytes += location.length
            while self._bytes > self._most_bytes and len(self._members) > 1:
                gone, _ = self._members.popitem(last=False)
                self._bytes -= gone.length
