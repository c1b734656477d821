"""Letting go of archive objects that nobody refers to: what a crash left behind, and what was replaced or deleted."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from nakadi.archive import keys
from nakadi.chores import attempted
from nakadi.ports import ArchiveStore, Kept, LogIndex

REMOVED_AT_ONCE = 500

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found that was older than the grace time, and what it let go of."""

    looked_at: int = 0
    removed: int = 0
    bytes_freed: int = 0


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sweeps an archive that one log index tells of.

    Whoever writes an object refers to it within moments, under a name that was never used before: what is old and not
    referred to will never be. `namespaces` are those in which everything belongs to the index; without them they are
    those that the index refers to.
    """

    index: LogIndex
    store: ArchiveStore
    namespaces: Collection[str] | None = None

    def run(self, older_than: datetime) -> Swept:
        """Let go of every object that was written before, and is not referred to."""
        found = self._written_before(older_than, self._namespaces())
        # The references after the objects: what began to be referred to in between is seen.
        referred_to = self.index.referred_to()
        unused = [each for each in found if each.key not in referred_to]
        gone: list[Kept] = []
        for start in range(0, len(unused), REMOVED_AT_ONCE):
            some = unused[start : start + REMOVED_AT_ONCE]
            keys_of_some = [each.key for each in some]
            if attempted(
                "removal of archive objects", f"{some[0].key} and on", partial(self.store.remove, keys_of_some)
            ):
                gone += some
        if gone:
            log.info("%s archive objects that are not needed any more are gone", len(gone))
        return Swept(len(found), len(gone), sum(each.size for each in gone))

    def _namespaces(self) -> Collection[str]:
        if self.namespaces is not None:
            return self.namespaces
        return {keys.namespace_of(key) for key in self.index.referred_to()}

    def _written_before(self, moment: datetime, namespaces: Collection[str]) -> list[Kept]:
        return [each for namespace in sorted(namespaces) for each in self._in(namespace) if each.written_at < moment]

    def _in(self, namespace: str) -> Iterator[Kept]:
        for folder in (keys.LOG, keys.REWRITTEN):
            yield from self.store.listed(f"{folder}{namespace}/")
