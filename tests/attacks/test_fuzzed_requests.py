"""Sends requests to every operation, nearly as described or hostile, and checks each answer against the description."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings

from nakadi import openapi
from nakadi.model.authorization import BlockedKind
from tests.support import everything
from tests.support.api import a_business_definition, a_definition
from tests.support.attacked import AttackedBroker, choose_repetitions, start_attacked_broker
from tests.support.hostile import BrokerContent, HostileRequest, hostile_requests
from tests.support.lazy_modules import LazyModule
from tests.support.openapi import assert_answer_matches, operation_at
from tests.support.parking import PARKING, a_keyed_definition
from tests.support.subscriptions import a_cursor, a_request
from tests.support.wire import Wire

schemathesis = LazyModule("schemathesis")

# Every `make test` sends the same requests. Failing requests are not shrunk, because they have changed the broker and
# may not fail again.
SEEDED = settings(
    derandomize=not everything.WANTED,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
Answer = tuple[int, dict[str, str], bytes | None]


class FuzzedBroker:
    """A broker with a resource of each kind. Resources that a request deletes or changes are created again."""

    def __init__(self, broker: AttackedBroker) -> None:
        self.broker = broker
        self.statuses: Counter[int] = Counter()
        self._wire: Wire | None = None
        self._api = httpx.Client(base_url=broker.url, timeout=60)
        self.names: dict[str, list[str]] = {}
        self.bodies: dict[str, list[Any]] = {}
        self.restore()

    def close(self) -> None:
        self._api.close()
        if self._wire is not None:
            self._wire.socket.close()

    def restore(self) -> None:
        """Create missing resources, and undo changes because of which the broker would refuse all later requests."""
        for feature in self._api.get("/settings/features").json()["items"]:
            if feature["enabled"]:
                self._api.post("/settings/features", json={"feature": feature["feature"], "enabled": False})
        for definition in (
            a_definition(name="fuzz.plain", schema={"type": "object"}),
            a_business_definition(name="fuzz.business", default_statistic=STATISTIC),
            a_keyed_definition(name="fuzz.keyed", category="business", cleanup_policy="compact", **ENRICHED),
            a_definition(name="fuzz.change", category="data", compatibility_mode="none", **ENRICHED),
        ):
            made = self._api.post("/event-types", json=definition)
            assert made.status_code in (201, 409), made.text
            self._api.post(f"/event-types/{definition['name']}/events", json=[{"key": "a"}] * 3)
        for kind in BlockedKind:
            for name in ("fuzz", *self.names.get("name", ())):
                self._api.delete(f"/settings/blacklist/{kind}/{name}")
        self._api.put("/storages/default/default")
        subscriptions = [
            self._api.post("/subscriptions", json=body).json()["id"]
            for body in (
                a_request("fuzz.plain", "fuzz.business", owning_application="fuzz", read_from="begin"),
                a_request("fuzz.keyed", owning_application="fuzz", annotations=PARKING),
            )
        ]
        self.names.update(
            {
                "name": ["fuzz.plain", "fuzz.business", "fuzz.keyed", "fuzz.change"],
                "subscription_id": subscriptions,
                "partition": ["0", "1", "7"],
                "version": ["1.0.0", "latest"],
                "id": ["default"],
                "blacklist_type": ["CONSUMER_APP", "CONSUMER_ET", "PRODUCER_APP", "PRODUCER_ET"],
                "event_type": ["fuzz.plain", "fuzz.keyed"],
                "stream_timeout": ["1"],
                "parked_event_id": [f"fuzz.keyed:0:001-0001-{number}" for number in ("0" * 18, "9" * 19, "9" * 5000)],
            }
        )
        cursors = {"items": [a_cursor("fuzz.plain", offset=1), a_cursor("fuzz.business", "1", "001-0001--1")]}
        plain = self._api.get("/event-types/fuzz.plain").json()
        self.bodies.update(
            {
                "publish_events": [[{"key": "a", "metadata": METADATA}, {"key": "b"}], [CHANGE]],
                "delete_events": [[{"metadata": METADATA | {"partition_compaction_key": "a"}, "key": "a"}]],
                "commit_subscription_cursors": [cursors],
                "reset_subscription_cursors": [cursors],
                "update_event_type": [plain],
                "create_event_type": [plain | {"name": "fuzz.other"}],
                "create_subscription": [
                    a_request("fuzz.plain", owning_application="fuzz", read_from="cursors")
                    | {"initial_cursors": [{"event_type": "fuzz.plain", "partition": "0", "offset": "BEGIN"}]}
                ],
            }
        )

    def check_answer(self, request: HostileRequest) -> None:
        """Send a request, and check its answer against the description."""
        try:
            status, headers, body = self._answer(request)
        except AssertionError as error:
            raise AssertionError(f"{error}, to {request}") from error
        self.statuses[status] += 1
        operation = operation_at(request.method, request.target)
        try:
            assert status < 500 or status in (501, 503), f"{status}: {body!r}"
            assert_answer_matches(operation, status, headers, body, method=request.method)
        except AssertionError as error:
            raise AssertionError(f"{error}, to {request}") from error
        if (request.method in ("PUT", "DELETE") or "/settings/" in request.target) and status < 300:
            self.restore()

    def _answer(self, request: HostileRequest) -> Answer:
        wire = self._wire or self.broker.wire()
        wire.socket.settimeout(60)
        self._wire = None
        wire.socket.sendall(request.wire_bytes())
        status, headers = wire.head()
        while status < 200:
            status, headers = wire.head()
        if "transfer-encoding" in headers:
            wire.socket.close()
            return status, headers, None
        body = wire.body(int(headers.get("content-length", "0"))) if request.method != "HEAD" else b""
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if headers.get("connection") == "close":
            wire.socket.close()
        else:
            self._wire = wire
        return status, headers, body


ENRICHED = {"enrichment_strategies": ["metadata_enrichment"]}
STATISTIC = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
METADATA = {
    "eid": "11111111-1111-4111-8111-111111111111",
    "occurred_at": "2026-11-21T10:00:00.000Z",
    "parent_eids": ["22222222-2222-4222-8222-222222222222"],
    "partition": "0",
    "span_ctx": {"a": "b"},
}
CHANGE = {"data_op": "C", "data_type": "x", "data": {"a": 1}, "metadata": METADATA}


@pytest.fixture(scope="module")
def target(request, tmp_path_factory) -> Iterator[FuzzedBroker]:
    folder = tmp_path_factory.mktemp("fuzzed")
    arguments = () if request.param == "memory" else ("--engine=sqlite", f"--data={folder}")
    with start_attacked_broker(*arguments, NAKADI_MAX_COMMIT_TIMEOUT_SECONDS="1") as broker:
        with closing(FuzzedBroker(broker)) as target:
            yield target
        assert broker.alive()
        assert broker.tracebacks() == []
        assert " ERROR " not in broker.read_log()


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_hostile_requests_are_answered_as_described(target, record_property):
    """For any path, query, header or body, the broker gives a documented answer, and none is a fault. (R16)"""

    @settings(SEEDED, max_examples=choose_repetitions(150, 4_000))
    @given(hostile_requests(BrokerContent(target.names, target.bodies)))
    def attack(request: HostileRequest) -> None:
        target.check_answer(request)

    attack()
    record_property("figures", describe_statuses(target.statuses))


@pytest.mark.long("tests/attacks/test_fuzzed_requests.py::test_hostile_requests_are_answered_as_described")
@pytest.mark.parametrize("target", ["memory"], indirect=True)
def test_requests_from_the_description_are_answered_as_described(target, record_property):
    """Good and bad requests that schemathesis generates from the description get documented answers, and none is a
    fault.
    """
    before = Counter(target.statuses)
    for found in schemathesis.openapi.from_dict(openapi.document()).get_all_operations():
        operation = found.ok()
        modes = [schemathesis.GenerationMode.POSITIVE]
        if operation.body or operation.query:
            modes.append(schemathesis.GenerationMode.NEGATIVE)
        for mode in modes:

            @settings(SEEDED, max_examples=choose_repetitions(2, 6))
            @given(operation.as_strategy(generation_mode=mode))
            def attack(case: Any) -> None:
                target.check_answer(request_by_schemathesis(case, target))

            attack()
    record_property("figures", describe_statuses(target.statuses - before))


def request_by_schemathesis(case: Any, target: FuzzedBroker) -> HostileRequest:
    """Make a request from a case of schemathesis; about half of the requests name an existing resource."""
    for name, value in case.path_parameters.items():
        if name in target.names and len(value) % 2:
            case.path_parameters[name] = target.names[name][0]
    made = requests.Request(**case.as_transport_kwargs(base_url=target.broker.url)).prepare()
    body = made.body.encode() if isinstance(made.body, str) else made.body
    headers = [(name, _bytes(value)) for name, value in made.headers.items() if name.lower() != "content-length"]
    return HostileRequest(made.method, made.path_url, headers, body)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")


def describe_statuses(statuses: Counter[int]) -> str:
    return ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
