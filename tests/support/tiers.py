"""Logs with an archive, whose hot half keeps little."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from nakadi.app.engines import open_event_log, open_log_index
from nakadi.engines.archive.policy import ArchivePolicy, TopicCatalog
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.archive.tiered_log import TieredLog
from nakadi.model.events import AppendResult, Record
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.log_index import LogIndex
from tests.support import kafka

ARCHIVE_IMMEDIATELY = ArchivePolicy(archive_after=0, hot_retention=0, unreferenced_grace=3600, new_share_to_compact=0)
"""Events reach the archive and leave the hot half as soon as possible, and compaction rewrites every object that it
can.
"""

ARCHIVE_MANUALLY = ArchivePolicy(archive_after=inf, hot_retention=0, unreferenced_grace=0, new_share_to_compact=0)
"""The log archives only when a test asks it to."""


def open_tiered_log(
    hot: str,
    folder: Path,
    clock: Clock,
    tiers: ArchivePolicy = ARCHIVE_IMMEDIATELY,
    *,
    index: LogIndex | None = None,
    store: ArchiveStore | None = None,
    directory: TopicCatalog | None = None,
) -> TieredLog:
    """Open a log whose hot half is in memory, in Kafka, or in a file in this folder, with its archive beside the
    file.
    """
    return TieredLogParts(hot, folder, clock, index=index, store=store).log(tiers, directory)


class TieredLogParts:
    """The hot half, the index and the archive of a log, for tests that look at them separately."""

    def __init__(
        self,
        hot: str,
        folder: Path,
        clock: Clock,
        *,
        index: LogIndex | None = None,
        store: ArchiveStore | None = None,
    ) -> None:
        url = f"sqlite:///{folder}/nakadi.db" if hot == "sqlite" else "memory:"
        self.hot = open_event_log(kafka.url() if hot == "kafka" else url, clock)
        self.index = index or open_log_index(url)
        self.store = store or open_archive(f"{folder}/archive" if hot == "sqlite" else "memory:")
        self._clock = clock

    def log(self, tiers: ArchivePolicy, directory: TopicCatalog | None = None) -> TieredLog:
        """A log of these parts; closing it closes the parts."""
        return TieredLog(self.hot, self.index, self.store, self._clock, directory, tiers)


class ColdLog:
    """Archives every append before it returns, so the hot half keeps as little as possible."""

    def __init__(self, log: TieredLog) -> None:
        self._log = log

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        fates = await self._log.append(topic, batches)
        self._log.archive()
        return fates

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)
