"""The parts of an archive that reads have found damaged or missing, for operators who repair them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from nakadi.common.counting import MetricRows
from nakadi.engines.archive.policy import TopicCatalog, event_type_name_or_topic
from nakadi.model.log_index import ArchiveLocation, IndexSegment

FORGET_AFTER_SECONDS = 900.0
"""How long a part is remembered after the last attempt to read it: retention or a merge may have removed it
meanwhile.
"""

MAX_DAMAGED_PARTS = 20


class DamagedPart(Struct, frozen=True):
    topic: str
    partition: int
    segment: IndexSegment
    found_at: float


class ArchiveDamage:
    """Remembers damaged parts until they can be read.

    Each call of `rows` calls `check_again` for each part: it begins a read, and calls `remove` if that succeeds. So the
    next call of `rows` no longer returns a repaired part, even if no stream reads it.
    """

    def __init__(
        self,
        catalog: TopicCatalog,
        check_again: Callable[[DamagedPart], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._check_again = check_again
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._parts: OrderedDict[ArchiveLocation | None, DamagedPart] = OrderedDict()

    def add(self, topic: str, partition: int, segment: IndexSegment) -> None:
        with self._lock:
            self._parts[segment.location] = DamagedPart(topic, partition, segment, self._monotonic())
            if len(self._parts) > MAX_DAMAGED_PARTS:
                self._parts.popitem(last=False)

    def remove(self, location: ArchiveLocation | None) -> None:
        with self._lock:
            self._parts.pop(location, None)

    def rows(self) -> MetricRows:
        """The number of offsets in each part, by event type, partition, offsets and object."""
        oldest = self._monotonic() - FORGET_AFTER_SECONDS
        with self._lock:
            parts = [each for each in self._parts.values() if each.found_at >= oldest]
        for each in parts:
            self._check_again(each)
        return {self._labels(each): each.segment.offset_count for each in parts}

    def _labels(self, part: DamagedPart) -> tuple[str, ...]:
        segment = part.segment
        return (
            event_type_name_or_topic(self._catalog, part.topic),
            str(part.partition),
            f"{segment.first_offset}-{segment.end_offset - 1}",
            segment.location.key if segment.location else "",
        )
