"""Event types whose events are in Kafka, or move there and back."""

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from nakadi.local import Broker
from tests.e2e.conftest import open_laptop_broker
from tests.support import kafka
from tests.support.api import a_business_definition, create_event_type, problem
from tests.support.laptop import OPEN
from tests.support.patience import PATIENCE

pytestmark = kafka.NOT_IN_EVERY_RUN


@pytest.fixture(params=["memory", "sqlite", "aws-local"])
def api(request, tmp_path):
    """A client of a broker whose own events are in memory, in a file, or in Kinesis."""
    if request.param == "aws-local":
        for broker in open_laptop_broker(request.getfixturevalue("laptop"), authorizes=False, settings=OPEN):
            with httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
                yield client
        return
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'nakadi.db'}"
    archive = {} if request.param == "memory" else {"archive": str(tmp_path / "archive"), "archive_after_seconds": 0}
    with (
        Broker(registry=url, event_log=url, **archive) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as client,
    ):
        yield client


@pytest.fixture
def storage(api):
    """The id of a storage in Kafka with its own topics."""
    storage_id, prefix = uuid.uuid4().hex, uuid.uuid4().hex[:12]
    configuration = {"bootstrap_servers": kafka.servers(), "topic_prefix": f"{prefix}-"}
    described = {"id": storage_id, "storage_type": "kafka", "kafka_configuration": configuration}
    assert api.post("/storages", json=described).status_code == 201
    return storage_id


def test_a_storage_whose_servers_do_not_answer_is_not_added(api):
    """A storage in an unreachable Kafka soon gets 422. (R239)"""
    configuration = {"bootstrap_servers": "127.0.0.1:9"}
    described = {"id": "nowhere", "storage_type": "kafka", "kafka_configuration": configuration}
    assert problem(api.post("/storages", json=described), 422) == (
        "The Kafka cluster of the storage nowhere cannot be reached"
    )


def test_an_event_type_moves_to_kafka_and_back_under_load(api, storage):
    """While an event type moves, publishers and a subscription continue, and the subscription receives every published
    event in order.
    """
    name = f"moving.{uuid.uuid4().hex}"
    create_event_type(api, a_business_definition(name=name, partition_strategy="hash", partition_key_fields=["foo"]))
    subscription = api.post(
        "/subscriptions",
        json={"owning_application": "tests", "event_types": [name], "read_from": "begin", "consumer_group": name},
    ).json()["id"]
    published: dict[str, list[int]] = {}
    refusals: list[str] = []
    ending = threading.Event()

    def publish(writer: int) -> None:
        key, number = f"w{writer}", 0
        published[key] = []
        while not ending.is_set():
            event = {"metadata": {"eid": str(uuid.uuid4()), "occurred_at": "2026-11-21T12:00:00Z"}}
            answer = api.post(f"/event-types/{name}/events", json=[event | {"foo": f"{key}/{number}"}])
            if answer.status_code == 200:
                published[key].append(number)
            else:
                refusals.append(answer.text)
            number += 1

    def publishing_goes_on() -> None:
        before, begin = count_published(published), time.monotonic()
        while count_published(published) <= before + 50:
            assert time.monotonic() < begin + 2 * PATIENCE, (count_published(published) - before, refusals[-3:])
            time.sleep(0.005)

    with ThreadPoolExecutor(3) as writers:
        publishing = [writers.submit(publish, writer) for writer in range(3)]
        try:
            for place in (storage, "default", storage):
                publishing_goes_on()
                answer = api.post(f"/event-types/{name}/timelines", json={"storage_id": place})
                assert answer.status_code == 201, answer.text
            publishing_goes_on()
        finally:
            ending.set()
        for each in publishing:
            each.result(PATIENCE)

    places = [each["storage_id"] for each in api.get(f"/event-types/{name}/timelines").json()]
    assert places[-3:] == [storage, "default", storage]
    found = consume_numbers(api, subscription, published)
    assert found == published


def count_published(published) -> int:
    return sum(len(each) for each in published.values())


def consume_numbers(api, subscription: str, published: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The numbers of each publisher, in the order in which a stream of the subscription delivers them."""
    found: dict[str, list[int]] = {}
    # The stream ends by itself, with or without the last event; the caller then notices missing events.
    parameters = {
        "stream_limit": count_published(published),
        "stream_timeout": 2 * int(PATIENCE),
        "batch_limit": 100,
        "batch_flush_timeout": 1,
        "max_uncommitted_events": 100_000,
        "commit_timeout": 60,
    }
    path = f"/subscriptions/{subscription}/events"
    with api.stream("GET", path, params=parameters) as stream:
        for line in stream.iter_lines():
            for event in httpx.Response(200, content=line).json().get("events", ()):
                writer, _, number = event["foo"].partition("/")
                found.setdefault(writer, []).append(int(number))
            if count_published(found) >= count_published(published):
                break
    return found
