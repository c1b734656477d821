"""Event types that take over topics in which another broker with the Nakadi API keeps its events."""

import json
import uuid

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from nakadi.local import Broker
from tests.support import kafka
from tests.support.api import a_business_definition, create_event_type, problem
from tests.support.patience import PATIENCE

pytestmark = kafka.NOT_IN_EVERY_RUN


class OtherBroker:
    """Another broker, represented only by its topics, with records in its format."""

    def __init__(self) -> None:
        # The Kafka library is installed wherever these tests run.
        where = {"bootstrap.servers": kafka.servers()}
        self._producer, self._admin, self._new = Producer({**where, "acks": "all"}), AdminClient(where), NewTopic

    def topic(self, partitions: int = 2) -> str:
        name = str(uuid.uuid4())
        made = self._admin.create_topics([self._new(name, partitions, 1, config={"max.message.bytes": "1048588"})])
        made[name].result(PATIENCE)
        return name

    def publish(self, topic: str, *values: bytes | None, partition: int = 0, **more) -> None:
        headers = [("DEBUG_PUBLISHER_TOPIC_ID", topic.encode()), *more.pop("headers", ())]
        for value in values:
            self._producer.produce(topic, value, partition=partition, headers=headers, **more)
        assert self._producer.flush(PATIENCE) == 0

    def has(self, topic: str) -> bool:
        return topic in self._admin.list_topics(timeout=PATIENCE).topics


def an_event(foo: str) -> bytes:
    """An event as the original writes it: compact JSON with the metadata that it adds."""
    metadata = {
        "occurred_at": "2026-11-22T16:00:00Z",
        "published_by": "unauthenticated",
        "eid": str(uuid.uuid4()),
        "event_type": "order.placed",
        "partition": "0",
        "received_at": "2026-11-22T16:59:40.816Z",
        "flow_id": "i3MTmxHeC0x2S7iBCWak95bQ",
        "version": "1.0.0",
    }
    return json.dumps({"foo": foo, "metadata": metadata}, separators=(",", ":")).encode()


@pytest.fixture
def api():
    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        described = {"storage_type": "kafka", "kafka_configuration": {"bootstrap_servers": kafka.servers()}}
        assert client.post("/storages", json={"id": "home", **described}).status_code == 201
        yield client


@pytest.fixture(scope="module")
def other_broker():
    return OtherBroker()


def adopt(api, name, *timelines):
    return api.post(f"/event-types/{name}/timelines", json={"storage_id": "home", "adopt": timelines})


def events(api, name, begin="BEGIN", count=1):
    """The events of partition 0 after an offset, with their cursors."""
    found, parameters = [], {"stream_limit": count, "batch_limit": 1, "batch_flush_timeout": 1}
    cursors = json.dumps([{"partition": "0", "offset": begin}])
    path = f"/event-types/{name}/events"
    with api.stream("GET", path, params=parameters, headers={"X-Nakadi-Cursors": cursors}) as stream:
        for line in stream.iter_lines():
            batch = json.loads(line)
            found += [(batch["cursor"]["offset"], each) for each in batch.get("events", ())]
            if len(found) >= count:
                break
    return found


def test_events_of_another_broker_are_read_as_they_are(api, other_broker):
    """All timelines can be read with the other broker's cursors, and newly published events follow in its topic.
    (R281)"""
    old, new = other_broker.topic(), other_broker.topic()
    written = [an_event(f"{number}") for number in range(4)]
    other_broker.publish(
        old, *written[:2], key=b"k", headers=[("X-AuthParam-Name", b"team"), ("X-AuthParam-Value", b"a")]
    )
    other_broker.publish(new, *written[2:], key=b"k")
    name = create_event_type(api, a_business_definition(partition_strategy="user_defined"))["name"]

    closed = {"order": 2, "topic": old, "latest_position": {"offsets": [1, -1]}}
    answer = adopt(api, name, closed, {"order": 3, "topic": new, "latest_position": None})
    assert answer.status_code == 201, answer.text

    found = events(api, name, count=4)
    assert [json.dumps(event, separators=(",", ":")).encode() for _, event in found] == written
    assert [offset for offset, _ in found] == [f"001-000{order}-{number:018d}" for order in (2, 3) for number in (0, 1)]
    assert [event for _, event in events(api, name, "001-0002-000000000000000000")] == [json.loads(written[1])]
    shown = api.get(f"/event-types/{name}/timelines").json()
    assert [(each["order"], each["topic"], each["adopted"]) for each in shown] == [(2, old, True), (3, new, True)]

    metadata = {"eid": str(uuid.uuid4()), "occurred_at": "2026-11-22T16:00:00Z", "partition": "0"}
    assert api.post(f"/event-types/{name}/events", json=[{"foo": "here", "metadata": metadata}]).status_code == 200
    other_broker.publish(new, an_event("there"))
    behind = events(api, name, "001-0003-000000000000000001", 2)
    assert [(offset[-1], event["foo"]) for offset, event in behind] == [("2", "here"), ("3", "there")]


def test_cursors_of_subscriptions_come_along(api, other_broker):
    """A subscription continues after the cursors of the other broker; its topics outlive the event type. (R281)"""
    topic = other_broker.topic(1)
    other_broker.publish(topic, *(an_event(f"{number}") for number in range(10)))
    name = create_event_type(api)["name"]
    assert adopt(api, name, {"order": 1, "topic": topic, "latest_position": None}).status_code == 201
    assert adopt(api, name, {"order": 2, "topic": other_broker.topic(1)}).status_code == 409
    draft = {"owning_application": "tests", "event_types": [name], "read_from": "begin"}
    subscription = api.post("/subscriptions", json=draft).json()["id"]

    cursor = {"event_type": name, "partition": "0", "offset": "001-0001-000000000000000006", "cursor_token": "t"}
    moved = api.patch(f"/subscriptions/{subscription}/cursors", json={"items": [cursor]})
    assert moved.status_code == 204, moved.text
    found, limits = [], {"batch_limit": 1, "batch_flush_timeout": 1}
    with api.stream("GET", f"/subscriptions/{subscription}/events", params=limits) as stream:
        for line in stream.iter_lines():
            found += [event["foo"] for event in json.loads(line).get("events", ())]
            if len(found) >= 3:  # all events after the cursor
                break
    assert found == ["7", "8", "9"]

    api.delete(f"/subscriptions/{subscription}")
    assert api.delete(f"/event-types/{name}").status_code == 200
    assert other_broker.has(topic)


def test_an_event_type_with_subscriptions_cannot_adopt(api, other_broker):
    """An event type with subscriptions cannot adopt topics, because the subscriptions' cursors would refer to
    another log. (R281)
    """
    name = create_event_type(api)["name"]
    api.post("/subscriptions", json={"owning_application": "tests", "event_types": [name]})

    answer = adopt(api, name, {"order": 1, "topic": other_broker.topic()})

    assert problem(answer, 409) == f"The event type {name} has subscriptions"


@pytest.mark.parametrize(
    ("written", "detail"), [(None, "There is no topic {topic}"), (b"\x00\x01a", "Event 0 in partition 0 of the topic ")]
)
def test_topics_that_cannot_be_read_are_refused(api, other_broker, written, detail):
    """A topic that does not exist, or has events in Avro, gets 422, and the event type stays unchanged. (R281)"""
    topic = str(uuid.uuid4())
    if written is not None:
        other_broker.publish(topic := other_broker.topic(1), written)
    name = create_event_type(api)["name"]

    answer = adopt(api, name, {"order": 1, "topic": topic})

    assert problem(answer, 422).startswith(detail.format(topic=topic))
    assert [each["storage_id"] for each in api.get(f"/event-types/{name}/timelines").json()] == ["default"]


def test_large_batches_fit_into_an_adopted_topic(api, other_broker):
    """The other broker's topics accept a megabyte at once; a batch here may be larger. (R281)"""
    topic = other_broker.topic(1)
    name = create_event_type(api)["name"]
    assert adopt(api, name, {"order": 1, "topic": topic}).status_code == 201

    batch = [{"a": uuid.uuid4().hex * 10_000} for _ in range(5)]

    assert api.post(f"/event-types/{name}/events", json=batch).status_code == 200
    assert len(events(api, name, count=5)) == 5
