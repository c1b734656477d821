"""The tail of partitions in Kafka, with a consumer that does as it is told."""

import threading
from contextlib import closing

import pytest

pytest.importorskip("confluent_kafka", reason="the library of Kafka is not there")

from nakadi.engines.kafka import reading
from nakadi.engines.kafka.client import Address
from nakadi.engines.kafka.reading import TailReader
from tests.support.patience import PATIENCE


class Message:
    """A record as the library has it."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def topic(self):
        return "t"

    def partition(self):
        return 0

    def offset(self):
        return self._offset

    def error(self):
        return None

    def key(self):
        return None

    def value(self):
        return b"%d" % self._offset

    def headers(self):
        return None

    def timestamp(self):
        return 1, 0


class FollowingConsumer:
    """Has the next event of the partition that it is assigned, once it is let."""

    def __init__(self) -> None:
        self.polling = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self._next = None

    def incremental_assign(self, partitions):
        self._next = partitions[0].offset

    def incremental_unassign(self, _partitions):
        self._next = None

    def poll(self, _seconds):
        self.polling.release()
        self.let.acquire()
        if self._next is None:
            return None
        self._next += 1
        return Message(self._next - 1)

    def consume(self, _number, _seconds):
        return []

    def close(self):
        pass


def test_what_was_fetched_for_an_earlier_window_is_no_part_of_a_later_one(monkeypatch):
    """A partition that is given up, and followed again from an earlier offset, has every event from there on."""
    consumer = FollowingConsumer()
    monkeypatch.setattr(reading, "new_consumer", lambda *_, **__: consumer)
    tail = TailReader(Address("any"), lambda *_: None)
    with closing(tail):
        tail.follow(("t", 0), 100)
        # While the consumer waits for an event behind 100, the window is dropped, and another one begins at 90.
        assert consumer.polling.acquire(timeout=PATIENCE)
        tail.forget_topic("t")
        tail.follow(("t", 0), 90)
        for _ in range(3):
            consumer.let.release()
            assert consumer.polling.acquire(timeout=PATIENCE)
        found = tail.slice(("t", 0), 90, 10, 1_000_000)
        tail._closed = True
        consumer.let.release()

    assert found is not None
    assert [each.offset for each in found.events] == [90, 91]
