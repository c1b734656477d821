"""Information of the index about topics, as fresh as each caller needs it.

A publisher does not ask the index before every append. For a while, its *lease*, it relies on what it has read; a
process that seals a topic announces this first, waits until every lease has run out, and only then writes the seal into
the log. So a publisher whose lease still holds when its records are acknowledged knows that they lie before the seal.

Sealing, continuing and deleting are counted in the step that makes them. So if the number of changes for a topic is the
same as before the topic was read, a new lease begins at the time at which that number was requested, and one request
renews the leases of all topics. Changes of the oldest offset are frequent and not counted: readers read the topic
itself.
"""

from __future__ import annotations

import threading
import time

from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.caching import ChangeWatch
from nakadi.model.log_index import Topic
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import TOPICS_KIND, LogIndex
from nakadi.ports.registry import change_bucket

MAX_KNOWN_TOPICS = 10_000


class KnownTopic(Struct, frozen=True):
    """A topic at a certain moment, by two clocks: one may be set back, the other stops while the machine is suspended.

    `change_count` is its bucket's count before it was read, if known.
    """

    topic: Topic
    known_at_monotonic: float
    known_at_wall: float
    change_count: int | None = None

    def is_younger_than(self, seconds: float) -> bool:
        return time.monotonic() - self.known_at_monotonic < seconds and 0 <= time.time() - self.known_at_wall < seconds


class TopicCache:
    def __init__(self, index: LogIndex, lease: float, watch: ChangeWatch) -> None:
        self._index = index
        self._lease = lease
        self._watch = watch
        self._lock = threading.Lock()
        self._known: dict[str, KnownTopic] = {}

    def get(self, topic: str) -> KnownTopic:
        """The topic as it was at most a lease ago. Raises `UnknownTopic`."""
        known = self._known.get(topic)
        return known if known is not None and self.is_valid(known) else self.read_again(topic)

    def get_for_append(self, topic: str) -> KnownTopic:
        """The topic as it was at most a lease ago, in everything that matters to an append. Raises `UnknownTopic`."""
        known = self._known.get(topic)
        if known is not None and self.is_valid(known):
            return known
        look = self._watch.read_counters(self._lease)
        if known is not None and known.change_count == look.changes.count_of_bucket(change_bucket(TOPICS_KIND, topic)):
            renewed = replace(known, known_at_monotonic=look.machine_uptime, known_at_wall=look.wall_clock_time)
            # The machine may have been suspended since the numbers were read, and its monotonic clock with it.
            if self.is_valid(renewed):
                return renewed
        return self.read_again(topic)

    def read_again(self, topic: str) -> KnownTopic:
        look = self._watch.valid_snapshot
        number = look.changes.count_of_bucket(change_bucket(TOPICS_KIND, topic)) if look is not None else None
        monotonic, wall = time.monotonic(), time.time()
        found = self._index.topic(topic)
        if found is None:
            self.forget_topic(topic)
            raise UnknownTopic(topic)
        known = KnownTopic(found, monotonic, wall, number)
        with self._lock:
            if len(self._known) >= MAX_KNOWN_TOPICS:
                self._known.clear()
            self._known[topic] = known
        return known

    def latest_continuation(self, topic: str) -> tuple[str, KnownTopic]:
        """The topic in which a topic's records are numbered, as far as known. Raises `UnknownTopic`.

        A publisher may still use the name of a continued, or even a deleted topic: its records then belong to the
        continuation.
        """
        known = self.get_for_append(topic)
        while known.topic.continued_in is not None:
            topic = known.topic.continued_in
            known = self.get_for_append(topic)
        return topic, known

    def get_with_partition(self, topic: str, partition: int) -> Topic:
        if partition >= self.get(topic).topic.partitions:
            self.read_again(topic)
        found = self.get(topic).topic
        if not 0 <= partition < found.partitions:
            raise UnknownTopic(f"{topic} has no partition {partition}")
        return found

    def is_valid(self, known_topic: KnownTopic) -> bool:
        return known_topic.is_younger_than(self._lease)

    def forget_topic(self, topic: str) -> None:
        with self._lock:
            self._known.pop(topic, None)

    def wait_until_leases_expire(self) -> None:
        """Return when no process relies any longer on what the index had before this call."""
        # A clock may run a little faster than another.
        time.sleep(1.05 * self._lease)
