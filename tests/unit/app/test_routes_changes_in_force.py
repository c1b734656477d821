"""Several processes with one registry in DynamoDB: a change that one of them has acknowledged is in force in all of
them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest

from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.routes import ROUTE_MAKER_BY_AREA, make_application, make_routes
from nakadi.app.settings import Settings
from nakadi.http.message import Request, Response
from nakadi.model.authorization import UNAUTHENTICATED, BlockedKind, Feature
from nakadi.model.outcomes import NotFound
from tests.support.api import a_definition
from tests.support.aws import REGION, aws_with_tables
from tests.support.clock import HandMovedClock

TABLES = f"dynamodb://test?region={REGION}"
NAME = "order.placed"

# Operations that change something, but no document that processes cache.
OTHERS = {
    "create_event_type": "no process remembers that an event type is not there",
    "create_subscription": "no process remembers that a subscription is not there",
    "delete_storage": "no process remembers a storage, and one that is about to go takes no event types",
    "commit_subscription_cursors": "offsets are not remembered",
    "reset_subscription_cursors": "as above",
    "leave_subscription_stream": "who reads which partition is not remembered",
    "extend_subscription_stream": "as above",
    "redrive_parked_event": "parked events are not remembered",
    "redrive_parked_events": "as above",
    "skip_parked_event": "as above",
    **dict.fromkeys(
        ("put_sink", "remove_sink", "pause_sink", "resume_sink", "rotate_sink_secret"),
        "no process remembers a sink: those that deliver read all of them every second",
    ),
    "test_sink": "it changes nothing",
    "publish_events": "events are in the log",
    "delete_events": "as above",
    "stream_subscription_events_with_parameters": "it reads",
    "check_compatibility": "as above",
    "run_query": "as above",
    **dict.fromkeys(("start_rehearsal", "remove_rehearsal"), "no process remembers a rehearsal"),
    "cursor_distances": "as above",
    "cursors_lag": "as above",
    "shift_cursors": "as above",
}


@dataclass(frozen=True)
class TwoProcesses:
    """One process that changes documents and one that caches them, with the same clock."""

    writer: BrokerServices
    reader: BrokerServices
    clock: HandMovedClock

    def ask(self, method: str, path: str, body: object = None, **query: str) -> Response:
        answer = make_application(self.writer).answer(
            Request(
                method=method,
                path=path,
                target=path,
                query={name: (value,) for name, value in query.items()},
                headers={"content-type": "application/json", "accept": "application/json"},
                body=b"" if body is None else json.dumps(body).encode(),
            )
        )
        assert isinstance(answer, Response)
        return answer

    def change(self, method: str, path: str, body: object = None) -> Response:
        answer = self.ask(method, path, body)
        assert answer.status < 300, answer.body
        return answer


@pytest.fixture
def processes(tmp_path) -> Iterator[TwoProcesses]:
    clock = HandMovedClock()
    settings = Settings(registry=TABLES, event_log=f"sqlite:///{tmp_path}/events.db", max_partitions=8)
    with aws_with_tables(), ExitStack() as closed:
        writer, reader = (closed.enter_context(closing(open_broker(settings, clock))) for _ in "wr")
        both = TwoProcesses(writer, reader, clock)
        both.change("POST", "/event-types", a_definition(name=NAME))
        yield both


@dataclass(frozen=True)
class ExpectedChange:
    """A request, a value that the other process uses, and the expected value once the request is answered."""

    method: str
    path: str
    look: Callable[[BrokerServices], object]
    after: object
    body: object = None
    before: Callable[[TwoProcesses], Mapping[str, str]] = lambda _: {}
    """Creates what the request needs, and returns the values for its path that are not known before."""


def partitions(broker: BrokerServices) -> int:
    return broker.event_types.cached(NAME).timeline.partitions


def timelines(broker: BrokerServices) -> int:
    return len(broker.event_types.cached(NAME).timelines)


def audience(broker: BrokerServices) -> str:
    return str(broker.event_types.cached(NAME).audience)


def schema_version(broker: BrokerServices) -> str:
    return str(broker.event_types.cached(NAME).schema.version)


def is_there(broker: BrokerServices) -> bool:
    try:
        return broker.event_types.cached(NAME) is not None
    except NotFound:
        return False


def is_creation_disabled(broker: BrokerServices) -> bool:
    return broker.features.is_on(Feature.DISABLE_EVENT_TYPE_CREATION)


def is_blocked(broker: BrokerServices) -> bool:
    return "robber" in broker.blacklist.entries()[BlockedKind.PRODUCER_APP]


def writers(broker: BrokerServices) -> list[str]:
    return [each.value for each in broker.admins.authorization().writers]


def chosen_storage(broker: BrokerServices) -> str:
    return broker.storages.chosen_for_new_event_types().id


SUBSCRIPTION = {"owning_application": "shop", "event_types": [NAME]}


def subscribe(processes: TwoProcesses) -> Mapping[str, str]:
    made = json.loads(processes.change("POST", "/subscriptions", SUBSCRIPTION).body)
    return {"subscription": made["id"]}


def add_storage(processes: TwoProcesses) -> Mapping[str, str]:
    body = {"id": "other", "storage_type": "embedded", "embedded_configuration": {}}
    processes.change("POST", "/storages", body)
    return {}


def switched_on(processes: TwoProcesses) -> Mapping[str, str]:
    processes.change("POST", "/settings/features", {"feature": "disable_event_type_creation", "enabled": True})
    return {}


def is_blocked_everywhere(processes: TwoProcesses) -> Mapping[str, str]:
    processes.change("PUT", "/settings/blacklist/PRODUCER_APP/robber")
    return {}


OTHER_SCHEMA = {"type": "json_schema", "schema": json.dumps({"properties": {"more": {"type": "string"}}})}
SAME_SCHEMA = {"type": "json_schema", "schema": a_definition()["schema"]["schema"]}
LISTS = {each: [{"data_type": "user", "value": "ann"}] for each in ("admins", "readers", "writers")}

CHANGES = {
    "set_partition_count": ExpectedChange(
        "PUT", f"/event-types/{NAME}/partition-count", partitions, 8, {"partition_count": 8}
    ),
    "update_event_type": ExpectedChange(
        "PUT",
        f"/event-types/{NAME}",
        audience,
        "component-internal",
        a_definition(name=NAME, audience="component-internal"),
    ),
    "add_schema": ExpectedChange("POST", f"/event-types/{NAME}/schemas", schema_version, "1.1.0", OTHER_SCHEMA),
    "create_timeline": ExpectedChange(
        "POST", f"/event-types/{NAME}/timelines", timelines, 2, {"storage_id": "default"}
    ),
    "delete_event_type": ExpectedChange("DELETE", f"/event-types/{NAME}", is_there, False),
    "set_feature": ExpectedChange(
        "POST",
        "/settings/features",
        is_creation_disabled,
        True,
        {"feature": "disable_event_type_creation", "enabled": True},
    ),
    "set_feature off": ExpectedChange(
        "POST",
        "/settings/features",
        is_creation_disabled,
        False,
        {"feature": "disable_event_type_creation", "enabled": False},
        switched_on,
    ),
    "set_admins": ExpectedChange("POST", "/settings/admins", writers, ["nakadi_admin", "ann"], LISTS),
    "block": ExpectedChange("PUT", "/settings/blacklist/PRODUCER_APP/robber", is_blocked, True),
    "unblock": ExpectedChange(
        "DELETE", "/settings/blacklist/PRODUCER_APP/robber", is_blocked, False, None, is_blocked_everywhere
    ),
    "create_storage": ExpectedChange(
        "POST",
        "/storages",
        chosen_storage,
        "other",
        {"id": "other", "storage_type": "embedded", "embedded_configuration": {}, "default": True},
    ),
    "set_default_storage": ExpectedChange("PUT", "/storages/default/other", chosen_storage, "other", None, add_storage),
}


@pytest.mark.parametrize("operation", CHANGES)
def test_an_acknowledged_change_is_in_force_in_every_process(processes, operation):
    """A process that caches the earlier state uses the new one as soon as the request for the change is answered.
    (R295)
    """
    change = CHANGES[operation]
    change.before(processes)
    assert change.look(processes.reader) != change.after

    processes.change(change.method, change.path, change.body)

    assert change.look(processes.reader) == change.after


def test_a_changed_subscription_is_in_force_in_every_process(processes):
    """A process that caches a subscription sees a change or the deletion of the subscription as soon as the request for
    it is answered. (R295)
    """
    subscription = subscribe(processes)["subscription"]
    remembered = processes.reader.subscription_services.subscriptions.cached
    assert not remembered(subscription).annotations

    processes.change("PUT", f"/subscriptions/{subscription}", {**SUBSCRIPTION, "annotations": {"team": "aruha"}})
    assert remembered(subscription).annotations == {"team": "aruha"}

    processes.change("DELETE", f"/subscriptions/{subscription}")
    with pytest.raises(NotFound):
        remembered(subscription)


def test_a_change_that_was_made_before_is_in_force_when_it_is_acknowledged(processes):
    """If the change was already made, but no request waited until it was in force, a request for the same change is
    answered once the change is in force. (R295)
    """
    assert partitions(processes.reader) == 1
    processes.writer.registration.repartitioning.set_partition_count(NAME, 8, UNAUTHENTICATED)
    assert partitions(processes.reader) == 1

    processes.change("PUT", f"/event-types/{NAME}/partition-count", {"partition_count": 8})

    assert partitions(processes.reader) == 8


def test_refusals_and_reads_are_answered_at_once(processes):
    """A request that changes nothing does not wait for the caches of other processes. (R295)"""
    began = processes.clock.monotonic()
    assert processes.ask("PUT", f"/event-types/{NAME}/partition-count", {"partition_count": 99}).status == 422
    assert processes.ask("DELETE", "/event-types/unknown").status == 404
    assert processes.ask("GET", f"/event-types/{NAME}").status == 200
    assert processes.ask("POST", "/event-types", a_definition(name="another")).status == 201
    assert processes.ask("POST", f"/event-types/{NAME}/schemas", SAME_SCHEMA, fetch="true").status == 200

    assert processes.clock.monotonic() == began


def test_a_broker_whose_processes_hear_of_changes_waits_for_none(tmp_path):
    """A broker on a data file acknowledges its changes at once, because its workers share the counters of changes.
    (R295)
    """
    clock, file = HandMovedClock(), f"sqlite:///{tmp_path}/nakadi.db"
    with closing(open_broker(Settings(registry=file, event_log=file), clock)) as broker:
        processes = TwoProcesses(broker, broker, clock)
        processes.change("PUT", "/settings/blacklist/PRODUCER_APP/robber")

    assert clock.monotonic() == 0


def test_every_operation_that_changes_something_is_looked_at(processes):
    """Each operation either waits until its change is in force, as tested here, or changes nothing that is cached."""
    routes = [each for each in make_routes(processes.writer, *ROUTE_MAKER_BY_AREA) if each.method != "GET"]
    waiting = {each.operation for each in routes if each.changes_cached_documents}
    shown = {name.split()[0] for name in CHANGES} | {
        "update_subscription",
        "delete_subscription",
        "put_objective",
        "remove_objective",
    }

    assert waiting == shown
    assert {each.operation for each in routes} - waiting == set(OTHERS)
