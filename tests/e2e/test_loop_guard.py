"""Work that would block the event loop goes to a thread; if that is forgotten, tests notice."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from nakadi.auth import key_set
from nakadi.common.waiting import Callback
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.model.event_type import EventType
from nakadi.ports.event_log import SealedTopic
from nakadi.publishing import batch
from nakadi.publishing.publisher import Publisher
from tests.support.api import create_event_type
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker
from tests.support.subscriptions import a_cursor, create_subscription
from tests.support.tokens import Issuer
from tests.support.workers import start_broker

TWO_PARTITIONS = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
EID = "70779f46-950d-4e48-9fca-000000000000"

Scene = Iterator[None]
"""Prepares a broker so that the next request would block its loop, yields, and then sends that request."""


class FreshBroker:
    """A broker that has not received any request yet, and a client with its own token."""

    def __init__(self, folder: Path) -> None:
        self.issuer = Issuer(folder)
        self._url = f"sqlite:///{folder / 'nakadi.db'}"
        self._start()

    def _start(self) -> None:
        self.broker = ServedBroker(registry=self._url, event_log=self._url, **self.issuer.settings)
        headers = self.issuer.bearer("the-admin")
        self.api = httpx.Client(base_url=self.broker.url, headers=headers, timeout=PATIENCE)

    def restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self.api.close()
        self.broker.close()

    def publish(self, name: str, events: str = '[{"n":1}]', status: int = 200) -> None:
        headers = {"Content-Type": "application/json"}
        answer = self.api.post(f"/event-types/{name}/events", content=events, headers=headers)
        assert answer.status_code == status, answer.text


def keys_are_fetched(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api)["name"]
    fresh_broker.issuer.rotate()
    fresh_broker.api.headers.update(fresh_broker.issuer.bearer("the-admin"))
    with patch.object(key_set, "KEY_SET_RETRY_INTERVAL_SECONDS", 0.0):
        yield
        fresh_broker.publish(name)


def a_replaced_key_is_fetched(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api)["name"]
    fresh_broker.issuer._keys.clear()
    fresh_broker.issuer.rotate()
    fresh_broker.api.headers.update(fresh_broker.issuer.bearer("the-admin"))
    with patch.object(key_set, "KEY_SET_RETRY_INTERVAL_SECONDS", 0.0):
        yield
        fresh_broker.publish(name)


def a_violation_is_explained(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api, schema=SCHEMA)["name"]
    fresh_broker.publish(name)
    yield
    fresh_broker.publish(name, '[{"n":"one"}]', 422)


def a_log_is_opened(fresh_broker: FreshBroker) -> Scene:
    storage = {"id": "other", "storage_type": "embedded", "embedded_configuration": {}}
    assert fresh_broker.api.post("/storages", json=storage).status_code == 201
    assert fresh_broker.api.put("/storages/default/other").status_code == 200
    name = create_event_type(fresh_broker.api, schema=SCHEMA)["name"]
    fresh_broker.restart()
    fresh_broker.publish(name, '[{"n":"one"}]', 422)
    yield
    fresh_broker.publish(name)


def a_cache_looks_for_changes(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api)["name"]
    fresh_broker.publish(name)
    yield
    # Repeat this, because another thread may just have read the change numbers.
    for _ in range(20):
        fresh_broker.broker.services.watch.valid_snapshot = None
        fresh_broker.publish(name)


def a_subscription_is_looked_up(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api)["name"]
    commit(fresh_broker, name, a_cursor(name))
    other = create_subscription(fresh_broker.api, name)["id"]
    yield
    commit(fresh_broker, name, a_cursor(name), subscription=other)


def a_rejected_batch_may_fit_a_newer_event_type(fresh_broker: FreshBroker) -> Scene:
    by_key = {"partition_strategy": "hash", "partition_key_fields": ["key"]}
    name = create_event_type(fresh_broker.api, **by_key)["name"]
    fresh_broker.publish(name, '[{"key":1}]')
    yield
    fresh_broker.publish(name, status=422)


def a_schema_is_compiled(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api)["name"]
    commit(fresh_broker, name, a_cursor(name))
    yield
    fresh_broker.publish(name)


def a_body_is_cut_by_hand(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api)["name"]
    fresh_broker.publish(name)
    yield
    fresh_broker.publish(name, '[{"n":1,"n":2}]', 400)


def several_partitions_are_committed(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api, default_statistic=TWO_PARTITIONS)["name"]
    cursors = [a_cursor(name, partition) for partition in "01"]
    subscription = commit(fresh_broker, name, *cursors)
    yield
    commit(fresh_broker, name, *cursors, subscription=subscription)


def a_turn_is_waited_for(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api, schema={"properties": {"n": {"items": {"type": "integer"}}}})["name"]
    fresh_broker.publish(name, '[{"n":[1]}]')
    with patch.object(batch, "STEPS_WITHOUT_TURN", 1):
        yield
        fresh_broker.publish(name, f'[{{"n":{[*range(1000)]}}},{{"n":["one"]}}]', 422)


def commit(fresh_broker: FreshBroker, name: str, *cursors: dict[str, Any], subscription: str = "") -> str:
    """Commit without a stream; the broker refuses that after all look-ups."""
    subscription = subscription or create_subscription(fresh_broker.api, name)["id"]
    headers = {"X-Nakadi-StreamId": EID}
    path = f"/subscriptions/{subscription}/cursors"
    assert fresh_broker.api.post(path, json={"items": cursors}, headers=headers).status_code == 422
    return subscription


def a_refused_commit_is_explained(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api)["name"]
    subscription = commit(fresh_broker, name, a_cursor(name))
    yield
    commit(fresh_broker, name, a_cursor(name), subscription=subscription)


def a_timeline_is_switched(fresh_broker: FreshBroker) -> Scene:
    name = create_event_type(fresh_broker.api)["name"]
    fresh_broker.publish(name)
    yield

    async def is_sealed(*_: Any) -> None:
        await Callback(lambda done: threading.Thread(target=done, args=(SealedTopic(),)).start())

    def look_again(publisher: Publisher, event_type: EventType, _: float) -> EventType:
        sealing.close()
        return publisher.event_types.get(event_type.name)

    with ExitStack() as sealing, patch.object(Publisher, "_await_next_timeline", look_again):
        sealing.enter_context(patch.object(SqliteLog, "append", is_sealed))
        fresh_broker.publish(name)


class AwaitedOnLoop:
    """Awaited instead of `LEAVE_LOOP` to simulate code that forgets it."""

    def __await__(self) -> Iterator[None]:
        return iter(())


# Each operation with the part that sends it to a thread.
SCENES: tuple[tuple[Callable[[FreshBroker], Scene], str], ...] = (
    (keys_are_fetched, "auth.key_set.check_may_block"),
    (a_replaced_key_is_fetched, "auth.key_set.check_may_block"),
    (a_violation_is_explained, "schemas.validation.check_may_block"),
    (a_log_is_opened, "app.storages.check_may_block"),
    (a_cache_looks_for_changes, "common.caching.check_may_block"),
    (a_subscription_is_looked_up, "common.caching.check_may_block"),
    (a_rejected_batch_may_fit_a_newer_event_type, "event_types.repository.check_may_block"),
    (a_schema_is_compiled, "publishing.publisher.check_may_block"),
    (a_body_is_cut_by_hand, "publishing.validation.check_may_block"),
    (several_partitions_are_committed, "subscriptions.api.cursors.LEAVE_LOOP"),
    (a_refused_commit_is_explained, "subscriptions.api.cursors.LEAVE_LOOP"),
    (a_timeline_is_switched, "publishing.publisher.LEAVE_LOOP"),
    (a_turn_is_waited_for, "common.work.check_may_block"),
)
IDS = [scene.__name__ for scene, _ in SCENES]


@pytest.fixture
def fresh_broker(tmp_path) -> Iterator[FreshBroker]:
    with closing(FreshBroker(tmp_path)) as stage:
        yield stage


@pytest.mark.parametrize("scene", [scene for scene, _ in SCENES], ids=IDS)
def test_blocking_work_goes_to_a_thread(fresh_broker, scene):
    """Work that would block goes to a thread: the request is answered, and nothing blocks the loop."""
    list(scene(fresh_broker))


@pytest.mark.parametrize(("scene", "what_sends"), SCENES, ids=IDS)
def test_what_forgets_to_go_to_a_thread_is_noticed(tmp_path_factory, loop_guard, scene, what_sends):
    """If code does not move a blocking call to a thread, the guard notices the call."""

    def is_noticed():
        with closing(FreshBroker(tmp_path_factory.mktemp("broker"))) as fresh_broker:
            steps = scene(fresh_broker)
            next(steps)
            forgotten = AwaitedOnLoop() if what_sends.endswith("LEAVE_LOOP") else lambda: None
            # An error raised on the loop is answered as a fault of the broker.
            with patch(f"nakadi.{what_sends}", forgotten), suppress(AssertionError):
                next(steps, None)
            steps.close()
            return bool(loop_guard.take())

    # On a busy machine, something that the broker caches may expire before the request, which then goes to a thread
    # for another reason.
    assert any(is_noticed() for _ in range(5))


def test_a_worker_that_forgets_to_go_to_a_thread_is_noticed(tmp_path):
    """The processes of a broker that has several are guarded too, in every test that starts them."""
    forgets = {"LOOP_GUARD_FORGETS": "nakadi.common.caching"}
    log = tmp_path / "log"

    def publish() -> None:
        with (
            log.open("w") as said,
            start_broker(tmp_path / "data", forgets, said) as program,
            httpx.Client(base_url=program.url, timeout=PATIENCE) as api,
        ):
            name = create_event_type(api)["name"]
            api.post(f"/event-types/{name}/events", json=[{"n": 1}])

    with pytest.raises(AssertionError, match="SQLite on the event loop"):
        publish()
