"""Event types to stream from, and streams that close when a test ends."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from tests.support.api import create_event_type
from tests.support.expected_lines import event
from tests.support.metrics import sample_value, scrape
from tests.support.open_stream import OpenStream

THREE_PARTITIONS = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 3, "write_parallelism": 3}


@pytest.fixture
def event_type(api):
    """The name of a new event type with three partitions."""
    schema = {"properties": {"to": {"type": "string"}}}
    by_key = {"partition_strategy": "hash", "partition_key_fields": ["to"]}
    return create_event_type(api, schema=schema, **by_key, default_statistic=THREE_PARTITIONS)["name"]


@pytest.fixture
def publish(api, event_type):
    """`publish("0", "a", "b")` publishes two events to partition 0; `event("0", "a")` is how the first is delivered."""

    def publish_values(partition: str, *values: str) -> None:
        batch = [json.loads(event(partition, value)) for value in values]
        assert api.post(f"/event-types/{event_type}/events", json=batch).status_code == 200

    return publish_values


@pytest.fixture
def open_stream(running_broker, event_type):
    """`stream("batch_limit=2", cursors)` opens a stream on the event type."""
    with ExitStack() as streams:

        def open_low_level_stream(
            query: str = "", cursors: str | None = None, *, name: str = event_type, **options
        ) -> OpenStream:
            headers = {**options.pop("headers", {}), **({"X-nakadi-cursors": cursors} if cursors is not None else {})}
            target = f"/event-types/{name}/events?{query}"
            return streams.enter_context(OpenStream(running_broker.url, target, headers, **options))

        yield open_low_level_stream


@pytest.fixture
def count_open_streams(api):
    """A function that returns how many low-level streams the broker serves."""
    return lambda: sample_value(scrape(api), "nakadi_open_streams", api="low-level")
