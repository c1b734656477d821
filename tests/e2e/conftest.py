"""Fixtures for end-to-end tests: a running broker on each engine, and clients of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from infra.laptop.laptop import Laptop
from nakadi.local import Broker
from tests.support import everything, kafka, workers
from tests.support.http import check_against_description
from tests.support.laptop import (
    ALL,
    FAST_SETTINGS,
    OPEN,
    SELECTED_TESTS,
    STRICTNESS,
    LaptopBroker,
    runs_here,
    select_tests,
    variables,
)
from tests.support.loop_guard import BlockingCalls, guarded_loops
from tests.support.patience import PATIENCE
from tests.support.storages import STORAGES
from tests.support.tokens import Issuer

ENGINES = ("memory", "sqlite", "aws-local", "two-workers", "kafka", "kafka-two-workers")
ENGINES_WITH_TOKENS = ("memory", "aws-local", "two-workers")

Running = Broker | LaptopBroker | workers.BrokerProgram


@pytest.fixture(scope="session", autouse=True)
def loop_guard() -> Iterator[BlockingCalls]:
    """Make blocking calls raise an error on the event loops of brokers in this process."""
    with guarded_loops() as calls:
        yield calls


@pytest.fixture(autouse=True)
def assert_no_loop_blocked(loop_guard: BlockingCalls) -> Iterator[None]:
    yield
    calls = loop_guard.take()
    assert not calls, "\n".join(calls)


@pytest.fixture(scope="session")
def running_broker(request, tmp_path_factory) -> Iterator[Running]:
    """A broker behind a socket. Tests share it, and use separate names."""
    if request.param == "aws-local":
        yield from open_laptop_broker(request.getfixturevalue("laptop"), authorizes=False, settings=OPEN)
        return
    if request.param.endswith("two-workers"):
        log = {"NAKADI_EVENT_LOG": kafka.url()} if request.param.startswith("kafka") else {}
        with workers.serve_broker(tmp_path_factory.mktemp("workers"), log) as program:
            yield program
        return
    with Broker(**engine_settings(request.param, tmp_path_factory.mktemp("data"))) as broker:
        yield broker


@pytest.fixture(scope="session")
def laptop(tmp_path_factory) -> Iterator[Laptop]:
    """The deployment for AWS, on this machine."""
    with Laptop(tmp_path_factory.mktemp("laptop"), FAST_SETTINGS, STRICTNESS) as there:
        yield there


@pytest.fixture
def api(running_broker) -> Iterator[httpx.Client]:
    """A client of the running broker."""
    with check_against_description(client_of(running_broker)) as client:
        yield client


def client_of(running_broker: Running, **options: Any) -> httpx.Client:
    """A client of the broker. With several workers, each request goes to a different worker than the previous one."""
    transport = workers.RoundRobinTransport() if isinstance(running_broker, workers.BrokerProgram) else None
    return httpx.Client(base_url=running_broker.url, timeout=PATIENCE, transport=transport, **options)


@pytest.fixture
def a_storage(api) -> Callable[..., dict]:
    """A function that makes descriptions of storages that the running broker can reach."""
    kind = STORAGES[api.get("/storages/default").json()["storage_type"]]
    if kind["storage_type"] == "kafka":
        kind = {**kind, "kafka_configuration": {"bootstrap_servers": kafka.servers()}}

    def describe_storage(**changes: object) -> dict:
        return {"id": uuid.uuid4().hex, **kind, **changes}

    return describe_storage


def open_laptop_broker(laptop, **options) -> Iterator[LaptopBroker]:
    with closing(LaptopBroker(laptop, laptop.front(**options))) as broker:
        yield broker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on the engines that are chosen for it; a module with its own brokers chooses its own engines."""
    name = metafunc.function.__name__
    if "running_broker" in metafunc.fixturenames and not hasattr(metafunc.module, "running_broker"):
        engines = [each for each in ENGINES if is_chosen(name, each)]
        metafunc.parametrize("running_broker", engines, indirect=True, scope="session")
    if "broker_with_tokens" in metafunc.fixturenames:
        possible = getattr(metafunc.module, "ENGINES_WITH_TOKENS", ENGINES_WITH_TOKENS)
        with_tokens = [each for each in possible if each != "two-workers" or is_chosen(name, each)]
        metafunc.parametrize("broker_with_tokens", with_tokens, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items) -> None:
    """Select the tests that run on the deployment on this machine, where each takes longest."""
    keep = list(select_tests((item.nodeid.partition("[")[0], item.nodeid) for item in items))
    config.hook.pytest_deselected(items=[item for item, kept in zip(items, keep, strict=True) if not kept])
    items[:] = [item for item, kept in zip(items, keep, strict=True) if kept]
    for item in filter(is_long, items):
        item.add_marker(pytest.mark.long)


def is_long(item: pytest.Item) -> bool:
    """Whether `make test` leaves out a test, because SQLite shows its behaviour, and the chosen tests show the
    differences of its engine.
    """
    name = item.function.__name__
    engine = item.callspec.params.get("running_broker", "") if hasattr(item, "callspec") else ""
    return engine == "memory" or (runs_here(item.nodeid) and not ALL and name not in SELECTED_TESTS)


def is_chosen(name: str, engine: str) -> bool:
    """Whether a test runs with several workers, with its events in Kafka, or in memory.

    Every test runs on SQLite. In memory, the same code runs except for the engine, which has contract tests, so
    operations in which logs or stores may differ are enough.
    """
    if engine.startswith("kafka") and not kafka.ALL:
        return engine == "kafka" and name in kafka.SELECTED_TESTS
    if engine == "memory" and not everything.WANTED:
        return name in kafka.SELECTED_TESTS | workers.SELECTED_TESTS
    return workers.ALL or engine != "two-workers" or name in workers.SELECTED_TESTS


def engine_settings(engine, folder):
    url = "memory:" if engine == "memory" else f"sqlite:///{folder / 'nakadi.db'}"
    return {"registry": url, "event_log": kafka.url() if engine == "kafka" else url}


@dataclass(frozen=True)
class BrokerWithTokens:
    """A broker that requires tokens, and their issuer."""

    broker: Running
    issuer: Issuer

    def client(self, subject: str = "ann", **claims: object) -> httpx.Client:
        return check_against_description(client_of(self.broker, headers=self.issuer.bearer(subject, **claims)))


@pytest.fixture(scope="session")
def broker_with_tokens(request, tmp_path_factory) -> Iterator[BrokerWithTokens]:
    issuer = Issuer(tmp_path_factory.mktemp("issuer"))
    settings = {**issuer.settings, "all_data_access": (("user", "the-archiver"),)}
    if request.param == "aws-local":
        laptop = request.getfixturevalue("laptop")
        for broker in open_laptop_broker(laptop, authorizes=True, settings=variables(settings)):
            yield BrokerWithTokens(broker, issuer)
        return
    if request.param == "two-workers":
        guarding = {**variables(settings), "NAKADI_AUTH": "jwt"}
        with workers.serve_broker(tmp_path_factory.mktemp("guarded"), guarding) as program:
            yield BrokerWithTokens(program, issuer)
        return
    with Broker(**settings) as broker:
        yield BrokerWithTokens(broker, issuer)


@pytest.fixture
def ann_client(broker_with_tokens) -> Iterator[httpx.Client]:
    """A client with a token and every scope."""
    with broker_with_tokens.client("ann") as client:
        yield client


@pytest.fixture
def bob_client(broker_with_tokens) -> Iterator[httpx.Client]:
    """A client with another user's token and every scope."""
    with broker_with_tokens.client("bob") as client:
        yield client


@pytest.fixture
def admin(broker_with_tokens) -> Iterator[httpx.Client]:
    """A client with the token of an administrator of the broker."""
    with broker_with_tokens.client("the-admin") as client:
        yield client


@pytest.fixture
def switch_on(api) -> Iterator[object]:
    """`switch_on("feature")` switches a feature on until the test ends."""
    on: list[str] = []

    def switch(feature: str) -> None:
        on.append(feature)
        assert api.post("/settings/features", json={"feature": feature, "enabled": True}).status_code == 204

    yield switch
    for feature in on:
        api.post("/settings/features", json={"feature": feature, "enabled": False})
