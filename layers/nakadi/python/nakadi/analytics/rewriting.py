"""Writing parts of the archive anew without what has to go. Offsets stay as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from nakadi.analytics.erasing import How, Wanted, erased
from nakadi.analytics.stretches import Stretch
from nakadi.archive import keys, members
from nakadi.archive.members import BadArchive
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import Location, Segment
from nakadi.model.outcomes import Unavailable
from nakadi.ports import ArchiveGone, ArchiveStore, LogIndex

CLAIMED_FOR = 600.0
PATIENCE = 60.0
"""How long compaction of the same partition is waited for."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A stretch whose object was replaced, and the offsets that were meant."""

    stretch: Stretch
    offsets: Sequence[int]
    old: str
    new: str


class Unreadable(Exception):
    """Raised for a part of the archive of which nobody can say what it holds."""


@dataclass(frozen=True, slots=True)
class Rewriter:
    index: LogIndex
    store: ArchiveStore
    wanted: Wanted
    how: How
    compacted: Callable[[str, int, int], None]
    """Told topic, partition and end of what was replaced, so that readers turn to the archive for it."""

    def meant(self, stretch: Stretch) -> Sequence[int]:
        """The offsets of the events in a stretch that have to go."""
        return erased(self._events(stretch.location), self.wanted, How.REMOVE)[1]

    def rewrite(self, stretch: Stretch) -> Rewritten | None:
        """Replace the object of a stretch, if it holds anything that has to go."""
        with self._alone(stretch):
            segment = self.index.segment(stretch.topic, stretch.partition, stretch.first)
            if segment is None or segment.archived is None:
                return None
            kept, meant = erased(self._events(segment.archived), self.wanted, self.how)
            if not meant:
                return None
            written = self._written(stretch, segment, kept)
            self.index.replace(stretch.topic, stretch.partition, [written], segment.end)
            self.compacted(stretch.topic, stretch.partition, segment.end)
            assert written.archived is not None
            return Rewritten(stretch, meant, segment.archived.key, written.archived.key)

    def _written(self, stretch: Stretch, segment: Segment, kept: Sequence[StoredEvent]) -> Segment:
        assert segment.archived is not None
        content = members.member(stretch.topic, stretch.partition, kept)
        key = keys.rewritten(segment.archived.key, stretch.topic, stretch.partition, segment.first)
        self.store.put(key, content)
        return replace(segment, archived=Location(key, 0, len(content)), events=len(kept))

    def _events(self, location: Location) -> Sequence[StoredEvent]:
        try:
            return members.events_in(self.store.get(location))
        except (BadArchive, ArchiveGone) as error:
            raise Unreadable(f"{location.key} cannot be read: {error}") from error

    @contextmanager
    def _alone(self, stretch: Stretch) -> Iterator[None]:
        """Be the only one who rewrites a partition; the broker's own compaction asks in the same way."""
        claim, owner = f"compaction/{stretch.topic}/{stretch.partition}", uuid4().hex
        give_up = time.monotonic() + PATIENCE
        while not self.index.claim(claim, owner, CLAIMED_FOR):
            if time.monotonic() > give_up:
                raise Unavailable(f"Somebody else compacts partition {stretch.partition} of {stretch.topic}")
            time.sleep(0.5)
        try:
            yield
        finally:
            self.index.release(claim, owner)


def by_place(rewritten: Sequence[Rewritten]) -> Mapping[tuple[int, int], Sequence[int]]:
    """Timeline and partition -> offsets."""
    found: dict[tuple[int, int], list[int]] = {}
    for each in rewritten:
        found.setdefault((each.stretch.timeline, each.stretch.partition), []).extend(each.offsets)
    return found
