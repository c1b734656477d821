"""The tail of partitions in Kafka, with a scripted consumer."""

import threading
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError, KafkaException

from nakadi.engines.kafka import reading
from nakadi.engines.kafka.client import ClusterAddress
from nakadi.engines.kafka.reading import CatchUpReader, TailReader
from tests.support.patience import PATIENCE, started_threads, until


class Message:
    """A record in the form of Kafka's client library."""

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
    """A consumer that returns the next event of its assigned partition when the test releases it."""

    def __init__(self) -> None:
        self.polling = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self._next = None

    def list_topics(self, _name, **_options):
        pass

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


@contextmanager
def running_tail(consumer, monkeypatch):
    """Yield a tail with this consumer, and close it afterwards."""
    monkeypatch.setattr(reading, "new_consumer", lambda *_, **__: consumer)
    tail = TailReader(ClusterAddress("any"), lambda *_: None)
    try:
        yield tail
    finally:
        tail._closed = True
        consumer.let.release()
        tail.close()


def test_what_was_fetched_for_an_earlier_window_is_no_part_of_a_later_one(monkeypatch):
    """If a partition is no longer followed, and is followed again from an earlier offset, its reader gets every event
    from that offset on.
    """
    consumer = FollowingConsumer()
    with running_tail(consumer, monkeypatch) as tail:
        tail.follow_partition(("t", 0), 100)
        # While the consumer waits for an event after 100, the tail stops following the topic, and then follows it from
        # 90.
        assert consumer.polling.acquire(timeout=PATIENCE)
        tail.stop_following_topic("t")
        tail.follow_partition(("t", 0), 90)
        for _ in range(3):
            consumer.let.release()
            assert consumer.polling.acquire(timeout=PATIENCE)
        found = tail.slice(("t", 0), 90, 10, 1_000_000)

    assert found is not None
    assert [each.offset for each in found.events] == [90, 91]


def test_an_event_is_fetched_once_for_all_readers(monkeypatch):
    """However many readers wait at the end of a partition, one consumer follows it, and the readers share its
    events."""
    consumer, made, fetched = FollowingConsumer(), [], []
    decode = reading.event_from_message

    def count_message(message):
        fetched.append(message.offset())
        return decode(message)

    monkeypatch.setattr(reading, "event_from_message", count_message)
    with running_tail(consumer, monkeypatch) as tail:
        monkeypatch.setattr(reading, "new_consumer", lambda *_, **__: made.append(consumer) or consumer)
        for _ in range(50):
            tail.follow_partition(("t", 0), 100)
        for _ in range(10):
            assert consumer.polling.acquire(timeout=PATIENCE)
            consumer.let.release()
        assert consumer.polling.acquire(timeout=PATIENCE)
        slices = [tail.slice(("t", 0), 100, 1000, 1_000_000) for _ in range(50)]

        assert fetched == list(range(100, 110))
        assert made == [consumer]
        assert all([each.offset for each in found.events] == fetched for found in slices)
        assert len({id(event) for found in slices for event in found.events}) == 10


class UninformedConsumer(FollowingConsumer):
    """Records its calls, and knows no topic while its cluster is unavailable."""

    def __init__(self, *, is_away: bool) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self._is_away = is_away

    def list_topics(self, name, **_options):
        self.calls.append(("look up", name))
        if self._is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def incremental_assign(self, partitions):
        self.calls += [("assign", each.topic) for each in partitions]


@pytest.mark.parametrize(
    ("is_away", "calls"),
    [
        (False, ["look up a", "assign a", "assign a", "look up b", "assign b"]),
        (True, ["look up a", "assign a", "assign a", "assign b"]),
    ],
)
def test_a_topic_is_looked_up_before_it_is_followed(monkeypatch, is_away, calls):
    """The tail looks up a topic before it follows it: the library itself would take up to a second, in which the
    first events wait. It looks up a missing topic once.
    """
    consumer = UninformedConsumer(is_away=is_away)
    with running_tail(consumer, monkeypatch) as tail:
        tail.follow_partition(("z", 0), 0)
        assert consumer.polling.acquire(timeout=PATIENCE)
        del consumer.calls[:]
        for partition in (("a", 0), ("a", 1), ("b", 0)):
            tail.follow_partition(partition, 0)
        consumer.let.release()
        assert consumer.polling.acquire(timeout=PATIENCE)
        assert [" ".join(each) for each in consumer.calls] == calls


class ReadyConsumer(FollowingConsumer):
    """A consumer that has each event of its assigned partition at once."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def assign(self, partitions):
        self.incremental_assign(partitions)

    def poll(self, _seconds):
        self._next += 1
        return Message(self._next - 1)

    def close(self):
        self.is_closed = True


def test_a_consumer_that_nobody_uses_is_closed(monkeypatch):
    """The log closes a consumer that nobody uses, because it would ask for events a hundred times a second. The next
    read gets another consumer, and no thread is left.
    """
    made = []

    def make_consumer(*_, **__):
        made.append(ReadyConsumer())
        return made[-1]

    monkeypatch.setattr(reading, "new_consumer", make_consumer)
    monkeypatch.setattr(reading, "UNUSED_READER_TIMEOUT_SECONDS", 0.01)
    reader = CatchUpReader(ClusterAddress("any"))
    with started_threads() as find_threads:
        for start in (0, 7):
            found = reader.read(("t", 0), start, limit=1, max_bytes=1_000, end=100)
            assert [each.offset for each in found.events] == [start]
            until(lambda: all(each.is_closed for each in made))
            until(lambda: not find_threads())
        assert len(made) == 2
        reader.close()


def test_a_consumer_that_is_used_again_and_again_stays(monkeypatch):
    """Consecutive reads share a consumer, and the events that it has fetched in advance."""
    made = []
    monkeypatch.setattr(reading, "new_consumer", lambda *_, **__: made.append(ReadyConsumer()) or made[-1])
    reader = CatchUpReader(ClusterAddress("any"))
    for offset in range(20):
        assert reader.read(("t", 0), offset, limit=1, max_bytes=1_000, end=100).next_offset == offset + 1
    assert len(made) == 1
    reader.close()
    assert made[0].is_closed
