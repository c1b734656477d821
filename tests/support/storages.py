"""Descriptions of storages, by their type, and what happens in a storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from infra.laptop.synthesis import STAGE
from nakadi.ports.event_log import EventLog

STORAGES = {
    "embedded": {"storage_type": "embedded", "embedded_configuration": {}},
    "kinesis": {"storage_type": "kinesis", "kinesis_configuration": {"stream": f"nakadi-{STAGE}"}},
    "kafka": {"storage_type": "kafka", "kafka_configuration": {"bootstrap_servers": "kafka.example:9092"}},
}


@contextmanager
def recorded_topics(log: EventLog) -> Iterator[list[str]]:
    """The topics that are created in a log meanwhile."""
    topics: list[str] = []
    create = log.create_topic

    def record_and_create(topic: str, partitions: int) -> None:
        topics.append(topic)
        create(topic, partitions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "create_topic", record_and_create)
        yield topics
