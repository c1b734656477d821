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
"""Brings a broker to where the next request would block its loop, yields, and sends that request."""


class Stage:
    """A broker that has had no request, and a client with its own token."""

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


def keys_are_fetched(stage: Stage) -> Scene:
    name = create_event_type(stage.api)["name"]
    stage.issuer.rotate()
    stage.api.headers.update(stage.issuer.bearer("the-admin"))
    with patch.object(key_set, "KEY_SET_RETRY_INTERVAL_SECONDS", 0.0):
        yield
        stage.publish(name)


def a_replaced_key_is_fetched(stage: Stage) -> Scene:
    name = create_event_type(stage.api)["name"]
    stage.issuer._keys.clear()
    stage.issuer.rotate()
    stage.api.headers.update(stage.issuer.bearer("the-admin"))
    with patch.object(key_set, "KEY_SET_RETRY_INTERVAL_SECONDS", 0.0):
        yield
        stage.publish(name)


def a_violation_is_explained(stage: Stage) -> Scene:
    name = create_event_type(stage.api, schema=SCHEMA)["name"]
    stage.publish(name)
    yield
    stage.publish(name, '[{"n":"one"}]', 422)


def a_log_is_opened(stage: Stage) -> Scene:
    storage = {"id": "other", "storage_type": "embedded", "embedded_configuration": {}}
    assert stage.api.post("/storages", json=storage).status_code == 201
    assert stage.api.put("/storages/default/other").status_code == 200
    name = create_event_type(stage.api, schema=SCHEMA)["name"]
    stage.restart()
    stage.publish(name, '[{"n":"one"}]', 422)
    yield
    stage.publish(name)


def a_cache_looks_for_changes(stage: Stage) -> Scene:
    name = create_event_type(stage.api)["name"]
    stage.publish(name)
    yield
    # Once more if another thread has looked just then.
    for _ in range(20):
        stage.broker.services.watch.valid_snapshot = None
        stage.publish(name)


def a_subscription_is_looked_up(stage: Stage) -> Scene:
    name = create_event_type(stage.api)["name"]
    commit(stage, name, a_cursor(name))
    other = create_subscription(stage.api, name)["id"]
    yield
    commit(stage, name, a_cursor(name), subscription=other)


def a_rejected_batch_may_fit_a_newer_event_type(stage: Stage) -> Scene:
    by_key = {"partition_strategy": "hash", "partition_key_fields": ["key"]}
    name = create_event_type(stage.api, **by_key)["name"]
    stage.publish(name, '[{"key":1}]')
    yield
    stage.publish(name, status=422)


def a_schema_is_compiled(stage: Stage) -> Scene:
    name = create_event_type(stage.api)["name"]
    commit(stage, name, a_cursor(name))
    yield
    stage.publish(name)


def a_body_is_cut_by_hand(stage: Stage) -> Scene:
    name = create_event_type(stage.api)["name"]
    stage.publish(name)
    yield
    stage.publish(name, '[{"n":1,"n":2}]', 400)


def several_partitions_are_committed(stage: Stage) -> Scene:
    name = create_event_type(stage.api, default_statistic=TWO_PARTITIONS)["name"]
    cursors = [a_cursor(name, partition) for partition in "01"]
    subscription = commit(stage, name, *cursors)
    yield
    commit(stage, name, *cursors, subscription=subscription)


def a_turn_is_waited_for(stage: Stage) -> Scene:
    name = create_event_type(stage.api, schema={"properties": {"n": {"items": {"type": "integer"}}}})["name"]
    stage.publish(name, '[{"n":[1]}]')
    with patch.object(batch, "STEPS_WITHOUT_TURN", 1):
        yield
        stage.publish(name, f'[{{"n":{[*range(1000)]}}},{{"n":["one"]}}]', 422)


def commit(stage: Stage, name: str, *cursors: dict[str, Any], subscription: str = "") -> str:
    """Commit without a stream, which is refused after every look-up."""
    subscription = subscription or create_subscription(stage.api, name)["id"]
    headers = {"X-Nakadi-StreamId": EID}
    path = f"/subscriptions/{subscription}/cursors"
    assert stage.api.post(path, json={"items": cursors}, headers=headers).status_code == 422
    return subscription


def a_refused_commit_is_explained(stage: Stage) -> Scene:
    name = create_event_type(stage.api)["name"]
    subscription = commit(stage, name, a_cursor(name))
    yield
    commit(stage, name, a_cursor(name), subscription=subscription)


def a_timeline_is_switched(stage: Stage) -> Scene:
    name = create_event_type(stage.api)["name"]
    stage.publish(name)
    yield

    async def is_sealed(*_: Any) -> None:
        await Callback(lambda done: threading.Thread(target=done, args=(SealedTopic(),)).start())

    def look_again(publisher: Publisher, event_type: EventType, _: float) -> EventType:
        sealing.close()
        return publisher.event_types.get(event_type.name)

    with ExitStack() as sealing, patch.object(Publisher, "_await_next_timeline", look_again):
        sealing.enter_context(patch.object(SqliteLog, "append", is_sealed))
        stage.publish(name)


class Staying:
    """Awaited in the place of `LEAVE_LOOP` by who forgets it."""

    def __await__(self) -> Iterator[None]:
        return iter(())


# Each operation with the part that sends it to a thread.
SCENES: tuple[tuple[Callable[[Stage], Scene], str], ...] = (
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
def stage(tmp_path) -> Iterator[Stage]:
    with closing(Stage(tmp_path)) as stage:
        yield stage


@pytest.mark.parametrize("scene", [scene for scene, _ in SCENES], ids=IDS)
def test_it_goes_to_a_thread(stage, scene):
    """The request is answered, and nothing blocks the loop."""
    list(scene(stage))


@pytest.mark.parametrize(("scene", "what_sends"), SCENES, ids=IDS)
def test_what_forgets_to_go_to_a_thread_is_noticed(stage, guard, scene, what_sends):
    """Without it, the guard notices the call."""

    def is_noticed():
        steps = scene(stage)
        next(steps)
        forgotten = Staying() if what_sends.endswith("LEAVE_LOOP") else lambda: None
        # An error raised on the loop is answered as a fault of the broker.
        with patch(f"nakadi.{what_sends}", forgotten), suppress(AssertionError):
            next(steps, None)
        steps.close()
        return bool(guard.take())

    # On a busy machine, something that the broker keeps may expire before the request, which then goes to a thread
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
