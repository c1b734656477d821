"""A log with an archive that a test can make unreachable, and a clock that the test moves."""

from math import inf

from nakadi.common.waiting import run_blocking
from nakadi.engines.archive import object_keys
from nakadi.engines.archive.policy import ArchivePolicy
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.archive.tiered_log import TieredLog
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable
from tests.support.clock import HandMovedClock

QUIET = ArchivePolicy(archive_after=inf, hot_retention=0, unreferenced_grace=0, new_share_to_compact=0)
"""The log archives and trims only when a test asks it to."""


class FailingStore(MemoryStore):
    """An archive that a test can make unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.out_of_reach = False

    def put(self, key: str, content: bytes) -> None:
        self.check_in_reach()
        super().put(key, content)

    def read_range(self, location):
        self.check_in_reach()
        return super().read_range(location)

    def check_in_reach(self) -> None:
        if self.out_of_reach:
            raise Unavailable("The archive: on purpose")


class TopicNames:
    def topics(self):
        return [("t", 2)]

    def event_type_name_of(self, topic: str) -> str | None:
        return "order.placed" if topic == "t" else None

    def may_remove_records_from(self, topic: str) -> bool:
        return topic == "t"


class TieredLogFixture:
    def __init__(self, tiers: ArchivePolicy = QUIET) -> None:
        self.clock = HandMovedClock()
        self.hot = MemoryLog(self.clock)
        self.index = MemoryLogIndex()
        self.store = FailingStore()
        self.log = TieredLog(self.hot, self.index, self.store, self.clock, TopicNames(), tiers)
        self.log.create_topic("t", 2)

    def store_hours(self, count: int, *records: Record, partition: int = 0) -> None:
        """Store an event without a key, or the given records, in each of these hours."""
        for number in range(count):
            run_blocking(self.log.append("t", {partition: records or [Record(b"%d" % number)]}))
            self.clock.move(3600)

    def segments(self, partition: int = 0):
        return list(archived_segments_from(self.index, "t", partition))

    def objects(self) -> list[str]:
        return [
            each.key
            for folder in (object_keys.LOG_FOLDER, object_keys.REWRITTEN_FOLDER)
            for each in self.store.list_objects(folder)
        ]

    def offsets(self, partition: int = 0) -> list[int]:
        bounds = self.log.bounds("t", [partition])[partition]
        found, place = [], bounds.oldest
        while place < bounds.next_offset:
            piece = self.log.read("t", partition, place, limit=2)
            found += [event.offset for event in piece.events]
            place = piece.next_offset
        return found
