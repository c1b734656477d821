"""A broker in this process, and a table that a job has made of its first events."""

from __future__ import annotations

import json
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO

import httpx
import pytest

from nakadi.app.engines import open_log_index
from nakadi_jobs import compaction
from nakadi_spark import Broker
from tests.support.api import a_business_definition, create_event_type
from tests.support.jobs import open_reading_session
from tests.support.patience import PATIENCE, until
from tests.support.served import ServedBroker
from tests.support.spark import quick_spark

__all__ = ["quick_spark"]  # the fixture for all tests of this folder

TWO = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}

ORDER_SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "price": {"type": "number", "multipleOf": 0.01},
        "customer": {"type": "object", "properties": {"id": {"type": "string"}}},
        "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "texts": {"type": "object", "additionalProperties": {"type": "string"}},
        "open": {"type": "object"},
        "at": {"type": "string", "format": "date-time"},
    },
}

MEMBERS = (
    '"price":12345678901234567890.10,"customer":{"id":"c\\u00f8"},"items":[{"sku":"a"},{"sku":"b"}]',
    '"texts":{"a":"b"},"open":{"x":[1.5,{"y":"z"}]},"at":"2026-11-20T12:00:00.123456+02:00"',
    '"unknown":{"deep":[1]},"customer":{}',
    '"items":[],"price":1.50',
)


def an_order(number):
    metadata = {"eid": f"00000000-0000-4000-8000-{number:012d}", "occurred_at": "2026-11-20T10:00:00Z"}
    return f'{{"n":{number},{MEMBERS[number % len(MEMBERS)]},"metadata":{json.dumps(metadata)}}}'


class Orders:
    """An event type. A job has put its `first` events into a table, and the others are only in the log."""

    first = 12

    def __init__(self, api, broker, spark, folder):
        definition = a_business_definition(name="order.placed", schema=ORDER_SCHEMA, default_statistic=TWO)
        self.name = create_event_type(api, definition)["name"]
        self.api, self.url, self.spark, self.folder, self.served = api, broker.url, spark, folder, broker
        self.broker = Broker(broker.url, tables="nakadi.nakadi")
        self.count = 0

    def publish(self, count):
        body = f"[{','.join(map(an_order, range(self.count, self.count + count)))}]"
        self.count += count
        headers = {"Content-Type": "application/json"}
        answer = self.api.post(f"/event-types/{self.name}/events", content=body, headers=headers)
        assert answer.status_code == 200, answer.text

    def put_into_table(self, name, count):
        """Let a job put this many events into a table, once they are archived."""
        topic = self.served.services.event_types.get(name).timeline.topic
        with closing(open_log_index(f"sqlite:///{self.folder / 'nakadi.db'}")) as index:
            heads = [(topic, number) for number in range(2)]
            until(lambda: sum(head.state.next_offset for head in index.index_heads(heads).values()) >= count)
        said = StringIO()
        with redirect_stderr(said), redirect_stdout(said):
            arguments = [
                "--data",
                str(self.folder),
                "--master",
                "local[2]",
                "--memory",
                "1g",
                "--no-tidying",
                "--no-quality",
            ]
            assert compaction.main([*arguments, "--event-types", name]) == 0, said.getvalue()


@pytest.fixture(scope="session")
def orders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    file = f"sqlite:///{folder / 'nakadi.db'}"
    places = {"registry": file, "event_log": file, "log_index": file}
    spark = open_reading_session(f"file://{folder}/tables")
    with (
        ServedBroker(**places, archive=str(folder / "archive"), archive_after_seconds=0) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        orders = Orders(api, broker, spark, folder)
        orders.publish(orders.first)
        orders.put_into_table(orders.name, orders.first)
        orders.publish(8)
        yield orders
