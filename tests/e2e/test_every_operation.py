"""Every operation of a running broker answers as described, and every described success occurs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from nakadi import openapi
from nakadi.http.message import JSON_MEDIA_TYPE
from nakadi.local import Broker
from tests.support.api import a_business_definition, a_definition, create_event_type
from tests.support.builders import a_name
from tests.support.consumer import Consumer
from tests.support.http import check_against_description
from tests.support.openapi import assert_answer_matches
from tests.support.parking import PARKING, a_keyed_definition, give_up_on_the_next, parked_ids, publish_events
from tests.support.patience import PATIENCE, until
from tests.support.receiver import ON_LOOPBACK, Receiver, a_sink
from tests.support.subscriptions import a_cursor, change_request, create_subscription

STREAM = "application/x-json-stream"

# Status, content type and body of an answer.
Answer = tuple[int, str | None, bytes]


# Operations that answer in JSON whatever the client accepts: without the items of its batch, a publisher would publish
# all events again.
IGNORE_ACCEPT = ("publish_events", "delete_events", "get_metrics", "get_request_metrics", "get_stream_metrics")


# Described answers that occur only if an operation takes longer than any operation here.
TAKE_LONG = {("start_rehearsal", "202")}


class OperationsTour:
    """Calls every operation with one `Accept` header, and keeps the answers.

    Through `api`, a client that accepts everything, it reads the values that further requests need.
    """

    def __init__(self, broker: Broker, api: httpx.Client, accept: str) -> None:
        self.broker = broker
        self.api = api
        self.accept = accept
        self.answers: list[tuple[str, Answer]] = []

    def call_and_keep_answer(
        self, operation: str, *path: str, headers: dict[str, str] | None = None, **options: Any
    ) -> None:
        there = openapi.operations()[operation]
        target = "/".join(_fill_template(there.path, iter(path)))
        answer = self.api.request(there.method, target, headers={"Accept": self.accept, **(headers or {})}, **options)
        self.answers.append((operation, (answer.status_code, answer.headers.get("content-type"), answer.content)))

    def open(self, operation: str, stream: Consumer) -> None:
        assert_answer_matches(operation, stream.status, stream.headers)
        self.answers.append((operation, (stream.status, stream.headers["content-type"], stream.line())))

    def call_every_operation(self) -> None:
        for part in (
            self.monitor,
            self.administer,
            self.define,
            self.publish,
            self.subscribe,
            self.consume,
            self.park,
        ):
            part()

    def monitor(self) -> None:
        for operation in ("health", "readiness", "metrics", "request_metrics", "stream_metrics", "version"):
            self.call_and_keep_answer(f"get_{operation}")
        for operation in ("get_openapi", "get_docs"):
            self.call_and_keep_answer(operation)
        for kind in ("partition", "enrichment", "validation"):
            self.call_and_keep_answer(f"list_{kind}_strategies")
        self.call_and_keep_answer("run_query", json={"sql": "select 1"})

    def administer(self) -> None:
        self.call_and_keep_answer("get_admins")
        self.call_and_keep_answer("set_admins", json=self.api.get("/settings/admins").json())
        self.call_and_keep_answer("get_blacklist")
        self.call_and_keep_answer("block", "CONSUMER_APP", "nobody")
        self.call_and_keep_answer("unblock", "CONSUMER_APP", "nobody")
        self.call_and_keep_answer("list_features")
        self.call_and_keep_answer("set_feature", json={"feature": "disable_db_write_operations", "enabled": False})
        storage = a_name("storage")
        self.call_and_keep_answer(
            "create_storage", json={"id": storage, "storage_type": "embedded", "embedded_configuration": {}}
        )
        self.call_and_keep_answer("list_storages")
        self.call_and_keep_answer("get_storage", storage)
        self.call_and_keep_answer("set_default_storage", "default")
        self.call_and_keep_answer("delete_storage", storage)

    def define(self) -> None:
        definition = a_definition(schema={}, compatibility_mode="none")
        name = definition["name"]
        schema = {"type": "json_schema", "schema": '{"description": "another"}'}
        self.call_and_keep_answer("create_event_type", json=definition)
        self.call_and_keep_answer("list_event_types")
        self.call_and_keep_answer("get_event_type", name)
        self.call_and_keep_answer("update_event_type", name, json=definition | {"schema": schema})
        self._with_the_feature_for_bodies(definition | {"schema": schema})
        self.call_and_keep_answer("add_schema", name, json={"type": "json_schema", "schema": "{}"})
        self.call_and_keep_answer("add_schema", name, json=schema, params={"fetch": "true"})
        self.call_and_keep_answer("list_schemas", name)
        self.call_and_keep_answer("get_schema", name, "latest")
        self.call_and_keep_answer("list_avro_schemas", "batch.publishing")
        self.call_and_keep_answer("get_avro_schema", "batch.publishing", "1")
        self.call_and_keep_answer("list_readers", name)
        self.call_and_keep_answer("list_table_runs", name)
        self.call_and_keep_answer("check_compatibility", name, "latest", json={"schema": "{}"})
        rehearsal = {"schema": schema, "events": 10}
        self.call_and_keep_answer("start_rehearsal", name, json=rehearsal)
        self.call_and_keep_answer("list_rehearsals", name)
        known = self.api.post(f"/event-types/{name}/schemas/rehearsals", json=rehearsal).json()["id"]
        self.call_and_keep_answer("get_rehearsal", name, known)
        self.call_and_keep_answer("remove_rehearsal", name, known)
        self.call_and_keep_answer("create_timeline", name, json={"storage_id": "default"})
        self.call_and_keep_answer("list_timelines", name)
        self.call_and_keep_answer("set_partition_count", name, json={"partition_count": 2})
        self.call_and_keep_answer("delete_event_type", name)

    def _with_the_feature_for_bodies(self, definition: dict[str, Any]) -> None:
        feature = {"feature": "return_body_on_create_update_event_type"}
        self.api.post("/settings/features", json=feature | {"enabled": True}).raise_for_status()
        self.call_and_keep_answer("create_event_type", json=a_definition())
        self.call_and_keep_answer("update_event_type", definition["name"], json=definition)
        self.api.post("/settings/features", json=feature | {"enabled": False}).raise_for_status()

    def publish(self) -> None:
        name = create_event_type(self.api, a_business_definition(cleanup_policy="compact"))["name"]
        metadata = {"eid": str(uuid4()), "occurred_at": "2026-01-01T00:00:00Z", "partition_compaction_key": "a"}
        for operation in ("publish_events", "delete_events"):
            self.call_and_keep_answer(operation, name, json=[{"metadata": metadata}])
            self.broker.faults.refuse(event_type=name, partition="0", times=1)
            self.call_and_keep_answer(operation, name, json=[{"metadata": metadata}])
        self._publish_twice()
        self.call_and_keep_answer("list_partitions", name)
        self.call_and_keep_answer("get_partition", name, "0")
        cursor = {"partition": "0", "offset": "BEGIN"}
        self.call_and_keep_answer("cursor_distances", name, json=[{"initial_cursor": cursor, "final_cursor": cursor}])
        self.call_and_keep_answer("cursors_lag", name, json=[cursor])
        self.call_and_keep_answer("shift_cursors", name, json=[{**cursor, "shift": 0}])
        limits = {"stream_limit": "1", "batch_flush_timeout": "1"}
        self.call_and_keep_answer(
            "stream_events", name, params=limits, headers={"X-Nakadi-Cursors": json.dumps([cursor])}
        )

    def _publish_twice(self) -> None:
        name = create_event_type(self.api, a_business_definition(deduplication={"window_seconds": 60}))["name"]
        event = {"metadata": {"eid": str(uuid4()), "occurred_at": "2026-01-01T00:00:00Z"}}
        for _ in ("it is stored", "it is a duplicate"):
            self.call_and_keep_answer("publish_events", name, json=[event])

    def subscribe(self) -> None:
        name = create_event_type(self.api)["name"]
        wanted = {"owning_application": a_name("app"), "event_types": [name]}
        self.call_and_keep_answer("create_subscription", json=wanted)
        self.call_and_keep_answer("create_subscription", json=wanted)
        [subscription] = self.api.get("/subscriptions", params={"event_type": name}).json()["items"]
        there = subscription["id"]
        self.call_and_keep_answer("list_subscriptions", params={"event_type": name})
        self.call_and_keep_answer("get_subscription", there)
        self.call_and_keep_answer(
            "update_subscription", there, json=change_request(subscription, annotations={"team": "a"})
        )
        self.call_and_keep_answer("reset_subscription_cursors", there, json={"items": [a_cursor(name)]})
        self.call_and_keep_answer("get_subscription_cursors", there)
        self.call_and_keep_answer("get_subscription_stats", there)
        self.call_and_keep_answer("put_objective", there, json={"percent": 99, "within_seconds": 30})
        self.call_and_keep_answer("get_objective", there)
        self.call_and_keep_answer("remove_objective", there)
        self.deliver(there)
        self.call_and_keep_answer("delete_subscription", there)

    def deliver(self, there: str) -> None:
        with Receiver() as receiver:
            for _ in ("it is new", "it is replaced"):
                self.call_and_keep_answer("put_sink", there, json=a_sink(receiver))
            self.call_and_keep_answer("test_sink", there)
            self.call_and_keep_answer("pause_sink", there)
            self.call_and_keep_answer("get_sink", there)
            self.call_and_keep_answer("resume_sink", there)
            self.call_and_keep_answer("rotate_sink_secret", there)
            self.call_and_keep_answer("remove_sink", there)

    def consume(self) -> None:
        name = create_event_type(self.api)["name"]
        subscription = create_subscription(self.api, name, read_from="begin")
        self.api.post(f"/event-types/{name}/events", json=[{"n": 0}]).raise_for_status()
        headers = {"Accept": self.accept}
        with Consumer(self.api, subscription, headers, batch_flush_timeout=1) as stream:
            self.open("stream_subscription_events", stream)
            cursors = {"items": [a_cursor(name, offset=0)]}
            for _ in ("it moves the cursor", "it does not"):
                self.call_and_keep_answer(
                    "commit_subscription_cursors",
                    subscription["id"],
                    json=cursors,
                    headers={"X-Nakadi-StreamId": stream.id},
                )
        self.api.post(f"/event-types/{name}/events", json=[{"n": 1}]).raise_for_status()
        until(lambda: not any(each["stream_id"] for each in self._partitions(subscription)))
        self.keep_and_leave(subscription)
        with Consumer(self.api, subscription, headers, partitions=[(name, "0")]) as stream:
            self.open("stream_subscription_events_with_parameters", stream)

    def keep_and_leave(self, subscription: dict[str, Any]) -> None:
        with Consumer(self.api, subscription) as stream:
            self.call_and_keep_answer("extend_subscription_stream", subscription["id"], stream.id)
            self.call_and_keep_answer("leave_subscription_stream", subscription["id"], stream.id)

    def _partitions(self, subscription: dict[str, Any]) -> list[Any]:
        [item] = self.api.get(f"/subscriptions/{subscription['id']}/stats").json()["items"]
        partitions: list[Any] = item["partitions"]
        return partitions

    def park(self) -> None:
        name = create_event_type(self.api, a_keyed_definition())["name"]
        subscription = create_subscription(self.api, name, read_from="begin", annotations=PARKING)
        there = subscription["id"]
        publish_events(self.api, name, "a1", "a2", "a3")
        give_up_on_the_next(self.broker._inside, self.api, subscription)
        with Consumer(self.api, subscription):
            until(lambda: len(parked_ids(self.api, subscription)) == 3)
        first, second, _ = parked_ids(self.api, subscription)
        self.call_and_keep_answer("list_parked_events", there)
        self.call_and_keep_answer("get_parked_event", there, first)
        self.call_and_keep_answer("redrive_parked_event", there, first)
        self.call_and_keep_answer("skip_parked_event", there, second)
        self.call_and_keep_answer("redrive_parked_events", there)


def _fill_template(template: str, values: Iterator[str]) -> Iterator[str]:
    """The segments of a path, with values in place of its parameters."""
    for segment in template.split("/"):
        yield next(values) if segment.startswith("{") else segment


@pytest.fixture(scope="module")
def tours() -> Iterator[dict[str, list[tuple[str, Answer]]]]:
    """The answers of every operation, by `Accept` header."""
    with (
        Broker(**ON_LOOPBACK) as broker,
        check_against_description(httpx.Client(base_url=broker.url, timeout=PATIENCE)) as api,
    ):
        taken = [OperationsTour(broker, api, accept) for accept in ("*/*", "application/problem+json", STREAM)]
        for each in taken:
            each.call_every_operation()
        yield {each.accept: each.answers for each in taken}


def test_every_described_success_is_answered_and_no_other(tours: dict[str, list[tuple[str, Answer]]]) -> None:
    """Each operation's successes match its description: status, presence of a body, media type and schema."""
    answered = {(operation, str(status)) for operation, (status, _, _) in tours["*/*"]}
    assert answered | TAKE_LONG == {
        (each.id, status) for each in openapi.operations().values() for status in each.responses if status < "3"
    }


def test_bodies_that_are_not_always_there_are_described_as_such(tours: dict[str, list[tuple[str, Answer]]]) -> None:
    """Only successes that sometimes have a body are described as having an optional one."""
    bodies: dict[tuple[str, str], set[bool]] = {}
    for operation, (status, _, body) in tours["*/*"]:
        bodies.setdefault((operation, str(status)), set()).add(bool(body))
    assert {answer for answer, seen in bodies.items() if seen == {True, False}} == {
        (each.id, status)
        for each in openapi.operations().values()
        for status, response in each.responses.items()
        if "x-optional-body" in response
    }


def test_clients_that_expect_no_body_can_do_everything(tours: dict[str, list[tuple[str, Answer]]]) -> None:
    """A client that accepts only Problems, as generated clients do if success has no body, is never refused. (R12)"""
    for (operation, (status, kind, body)), (_, usual) in zip(
        tours["application/problem+json"], tours["*/*"], strict=True
    ):
        assert (status, bool(body)) == (usual[0], bool(usual[2])), operation
        renamed = usual[1] == JSON_MEDIA_TYPE and operation not in IGNORE_ACCEPT
        assert kind == ("application/problem+json" if renamed else usual[1]), operation


def test_clients_that_accept_only_streams_can_do_everything(tours: dict[str, list[tuple[str, Answer]]]) -> None:
    """A client with one `Accept` for streams gets 406 instead of an answer in JSON, but its request is carried out.
    (R12)

    All requests take effect, although the broker answers some of them with 406.
    """
    for (operation, (status, _, _)), (_, usual) in zip(tours[STREAM], tours["*/*"], strict=True):
        negotiable = usual[1] == JSON_MEDIA_TYPE and operation not in IGNORE_ACCEPT
        assert status == (406 if negotiable else usual[0]), operation
