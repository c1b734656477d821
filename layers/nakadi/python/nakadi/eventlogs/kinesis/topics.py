"""What the index says of topics, as fresh as it has to be.

A publisher does not ask the index about every append. It relies for a while, its *lease*, on what it knows; whoever
seals a topic says so first, waits until every lease has run out, and only then writes the seal into the log. So a
publisher whose lease still holds when its records are acknowledged knows that they lie in front of the seal.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from nakadi.model.log_index import Topic
from nakadi.ports import LogIndex, UnknownTopic

MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class Known:
    """A topic as it was at a moment, by two clocks: one may be put back, the other stop with the machine."""

    topic: Topic
    monotonic: float
    wall: float

    def holds(self, seconds: float) -> bool:
        return time.monotonic() - self.monotonic < seconds and 0 <= time.time() - self.wall < seconds


class Topics:
    def __init__(self, index: LogIndex, lease: float) -> None:
        self._index = index
        self._lease = lease
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}

    def known(self, topic: str) -> Known:
        """The topic as it was less than a lease ago. Raises `UnknownTopic`."""
        known = self._known.get(topic)
        return known if known is not None and self.holds(known) else self.fresh(topic)

    def fresh(self, topic: str) -> Known:
        """The topic as it is now. Raises `UnknownTopic`."""
        monotonic, wall = time.monotonic(), time.time()
        found = self._index.topic(topic)
        if found is None:
            self.forget(topic)
            raise UnknownTopic(topic)
        known = Known(found, monotonic, wall)
        with self._lock:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[topic] = known
        return known

    def with_partition(self, topic: str, partition: int) -> Topic:
        """The topic, which has this partition. Raises `UnknownTopic`."""
        if partition >= self.known(topic).topic.partitions:
            self.fresh(topic)
        found = self.known(topic).topic
        if not 0 <= partition < found.partitions:
            raise UnknownTopic(f"{topic} has no partition {partition}")
        return found

    def holds(self, known: Known) -> bool:
        return known.holds(self._lease)

    def forget(self, topic: str) -> None:
        with self._lock:
            self._known.pop(topic, None)

    def wait_for_leases(self) -> None:
        """Return when nobody relies any more on what was so before this was called."""
        # A clock may run a little faster than another.
        time.sleep(1.05 * self._lease)
