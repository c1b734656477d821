"""Writing parts of the archive anew without what has to go. Offsets stay as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from nakadi.analytics.erasing import How, Wanted, erased
from nakadi.analytics.stretches import Stretch
from nakadi.engines.archive import manifest, objects
from nakadi.engines.archive.maintenance import Busy, alone
from nakadi.engines.archive.objects import BadArchive
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import Location, Segment
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveGone, ArchiveStore
from nakadi.ports.log_index import LogIndex

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
        with self._alone(stretch) as make_sure:
            segment = self.index.segment(stretch.topic, stretch.partition, stretch.first)
            if segment is None or segment.archived is None:
                return None
            kept, meant = erased(self._events(segment.archived), self.wanted, self.how)
            if not meant:
                return None
            written = self._written(stretch, segment, kept)
            make_sure()
            self.index.replace(stretch.topic, stretch.partition, [written], segment.end)
            self.compacted(stretch.topic, stretch.partition, segment.end)
            assert written.archived is not None
            return Rewritten(stretch, meant, segment.archived.key, written.archived.key)

    def _written(self, stretch: Stretch, segment: Segment, kept: Sequence[StoredEvent]) -> Segment:
        assert segment.archived is not None
        content = objects.member(stretch.topic, stretch.partition, kept)
        key = manifest.rewritten(segment.archived.key, stretch.topic, stretch.partition, segment.first)
        self.store.put(key, content)
        return replace(segment, archived=Location(key, 0, len(content)), events=len(kept))

    def _events(self, location: Location) -> Sequence[StoredEvent]:
        try:
            return objects.events_in(self.store.get(location))
        except (BadArchive, ArchiveGone) as error:
            raise Unreadable(f"{location.key} cannot be read: {error}") from error

    @contextmanager
    def _alone(self, stretch: Stretch) -> Iterator[Callable[[], None]]:
        """Be the only one who rewrites a partition; the broker's own compaction asks in the same way."""
        give_up = time.monotonic() + PATIENCE
        with ExitStack() as claimed:
            while True:
                try:
                    make_sure = claimed.enter_context(alone(self.index, stretch.topic, stretch.partition))
                    break
                except Busy:
                    if time.monotonic() > give_up:
                        raise self._not_alone(stretch) from None
                time.sleep(0.5)
            try:
                yield make_sure
            except Busy as busy:
                raise self._not_alone(stretch) from busy

    def _not_alone(self, stretch: Stretch) -> Unavailable:
        return Unavailable(f"Somebody else compacts partition {stretch.partition} of {stretch.topic}")


def by_place(rewritten: Sequence[Rewritten]) -> Mapping[tuple[int, int], Sequence[int]]:
    """Timeline and partition -> offsets."""
    found: dict[tuple[int, int], list[int]] = {}
    for each in rewritten:
        found.setdefault((each.stretch.timeline, each.stretch.partition), []).extend(each.offsets)
    return found
