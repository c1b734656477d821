"""Producers of a log in Kafka, with the test cluster inside the client library."""

from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaError

from nakadi.engines.kafka import client, writing
from nakadi.engines.kafka.client import ClusterAddress
from nakadi.engines.kafka.writing import PRODUCER_THREADS, RecordWriter
from nakadi.model.events import Record, RecordLines

TOPIC = "t"
PARTITIONS = range(4)
"""The topics that the library's test cluster creates by itself have this number of partitions."""


def a_writer(**properties):
    """A writer with a test cluster of its own: the library gives each producer a separate one."""
    address = ClusterAddress("", timeout_seconds=2, properties={"test.mock.num.brokers": "3", **properties})
    return RecordWriter(address, lambda: datetime(2026, 11, 23, tzinfo=UTC), lambda topic: topic, lambda *_: 0)


@pytest.fixture
def producer_calls(monkeypatch):
    """The calls of each new producer, in order."""
    producers = []

    class Producer:
        def __init__(self, *arguments, **settings):
            self._producer = client.new_producer(*arguments, **settings)
            self._asked = []
            producers.append(self._asked)

        def __len__(self):
            return len(self._producer)

        def __getattr__(self, name):
            self._asked.append(name)
            return getattr(self._producer, name)

    monkeypatch.setattr(writing, "new_producer", Producer)
    return producers


def test_a_producer_asks_twice_where_its_topic_is_and_then_never_again(producer_calls):
    """A producer looks up its topic twice before its first event, because it would otherwise get the topic's id half a
    second late. It does not look it up again, because every request costs a round trip to the cluster.
    """
    writer = a_writer()
    for number in range(10):
        records = {partition: [Record(b"%d" % number)] for partition in PARTITIONS}
        assert writer.write(TOPIC, records) == dict.fromkeys(PARTITIONS)
    writer.close()

    assert 1 <= len(producer_calls) <= PRODUCER_THREADS
    for each in producer_calls:
        assert each[:3] == ["list_topics", "list_topics", "produce"]
        assert each.count("list_topics") == 2


def test_a_producer_whose_servers_do_not_answer_asks_once(producer_calls):
    """A producer whose first look-up is not answered makes no second one; its appends are refused when their time is
    up.
    """
    writer = a_writer(**{"test.mock.broker.rtt": "600000"})
    (outcome,) = writer.write(TOPIC, {0: [Record(b"1")]}).values()
    writer.close()

    assert outcome.code() == KafkaError._MSG_TIMED_OUT
    assert [each.count("list_topics") for each in producer_calls] == [1]


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("has_keys", [True, False])
def test_lines_become_the_same_records_as_events_do(monkeypatch, number, has_keys):
    """Each line is a record with its key, and the first and the last record report the outcome of the batch."""
    seen = []

    class Producer:
        def __init__(self, *arguments, **settings):
            self._producer = client.new_producer(*arguments, **settings)

        def __len__(self):
            return len(self._producer)

        def __getattr__(self, name):
            return getattr(self._producer, name)

        def produce(self, topic, value, key=None, partition=-1, on_delivery=None, partitioner=None, timestamp=0):
            seen.append((value, key, partition, on_delivery is not None, timestamp))
            self._producer.produce(topic, value, key, partition, on_delivery, partitioner, timestamp)

    monkeypatch.setattr(writing, "new_producer", Producer)
    values = [b"%d" % each for each in range(number)]
    lines = RecordLines(b"\n".join(values), number, [f"é{each}" for each in range(number)] if has_keys else None)
    writer = a_writer()
    assert writer.write(TOPIC, {3: lines}) == {3: None}
    assert writer.write(TOPIC, {3: list(lines)}) == {3: None}
    writer.close()

    assert seen[:number] == seen[number:]
    assert [value for value, *_ in seen[:number]] == values
    assert [reports for *_, reports, _ in seen[:number]] == [each in (0, number - 1) for each in range(number)]
