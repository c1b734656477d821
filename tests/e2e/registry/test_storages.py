"""/storages and the timelines of event types."""

import json
import uuid

import pytest

from tests.support.api import a_business_definition, create_event_type, problem
from tests.support.laptop import LaptopBroker
from tests.support.storages import STORAGES

NO_ID = (
    "A storage id has 1 to 36 letters, digits, underscores, hyphens and dots, and does not begin with a hyphen or a dot"
)


def is_of_any_engine(**changes):
    """The description of a valid storage, which may not be reachable."""
    return {"id": uuid.uuid4().hex, **STORAGES["kafka"]} | changes


@pytest.fixture
def default_again(api):
    """Make the built-in storage the default again."""
    yield
    api.put("/storages/default/default")


def test_there_is_a_storage_from_the_start(api, running_broker, request):
    """The event log that the broker was started with is the storage `default`. (R232, R234)"""
    listed = api.get("/storages").json()

    assert [each["id"] for each in listed] == sorted(each["id"] for each in listed)
    kind = "kinesis" if isinstance(running_broker, LaptopBroker) else request.node.callspec.params["running_broker"]
    kind = {"memory": "embedded", "sqlite": "embedded", "two-workers": "embedded", "kafka-two-workers": "kafka"}.get(
        kind, kind
    )
    assert {"id": "default", "storage_type": kind, f"{kind}_configuration": {}, "default": True} in listed


def test_a_storage_is_kept_as_it_was_given(api, a_storage):
    """A new storage gets 201 without body; its configuration is that of its type, and is kept unchanged. (R233, R235,
    R237)
    """
    storage = a_storage()

    answer = api.post("/storages", json=storage | {"storage_type": storage["storage_type"].upper()})

    assert (answer.status_code, answer.content) == (201, b"")
    kept = api.get(f"/storages/{storage['id']}").json()
    assert kept == storage | {"default": False}


def test_a_storage_that_nothing_can_reach_is_not_added(api, monkeypatch):
    """A storage without an engine, or without an existing stream, gets 422, and the default stays. (R235, R239)"""
    before = api.get("/storages").json()
    no_stream = {"storage_type": "kinesis", "kinesis_configuration": {"stream": "no-such-stream"}}
    # A broker in this process waits no longer for a Kafka that is not there; others wait for five seconds.
    monkeypatch.setattr("nakadi.engines.kafka.client.CHECK_TIMEOUT_SECONDS", 0.5)
    for configuration, default in ((STORAGES["kafka"], True), (no_stream, False), (no_stream, True)):
        storage = {"id": uuid.uuid4().hex, **configuration, "default": default}

        detail = problem(api.post("/storages", json=storage), 422)

        assert storage["id"] in detail
        assert "cannot" in detail

    assert api.get("/storages").json() == before


def test_a_storage_may_come_as_any_content(api, a_storage):
    """The broker reads the body of a new storage whatever its content type is. (R11)"""
    storage = a_storage()

    answer = api.post("/storages", content=json.dumps(storage), headers={"content-type": "text/plain"})

    assert answer.status_code == 201


@pytest.mark.parametrize("storage_id", ["default", None])
def test_an_id_is_taken_once(api, storage_id, a_storage):
    """A storage with the id of an existing storage gets 409. (R235)"""
    storage = a_storage()
    api.post("/storages", json=storage)
    taken = storage_id or storage["id"]

    assert problem(api.post("/storages", json=storage | {"id": taken}), 409) == (
        f"A storage with id '{taken}' already exists."
    )


@pytest.mark.parametrize(
    ("storage", "detail"),
    [
        ({}, 'JSONObject["id"] not found.'),
        ({"id": "x"}, 'JSONObject["storage_type"] not found.'),
        ({"id": "x", "storage_type": "kafka"}, 'JSONObject["kafka_configuration"] not found.'),
        (is_of_any_engine(kafka_configuration="x"), 'JSONObject["kafka_configuration"] is not a JSONObject.'),
        (
            {"id": "x", "storage_type": "kinesis", "kinesis_configuration": {"stream": "a/b?c"}},
            'kinesis_configuration needs the name of a stream, as in {"stream": "orders"}',
        ),
        (is_of_any_engine(storage_type="disk"), "Type 'disk' is not a valid storage type"),
        *((is_of_any_engine(id=each), NO_ID) for each in ("x" * 37, "", " ", "..", "a/b")),
    ],
)
def test_a_storage_has_to_be_complete(api, storage, detail):
    """A storage with a missing or unknown member gets 422 with the member's name. (R235, R236)"""
    assert problem(api.post("/storages", json=storage), 422) == detail


def test_an_unreadable_storage_is_a_bad_request(api):
    """A body that is not JSON gets 400. (R236)"""
    problem(api.post("/storages", content="{"), 400)


def test_an_unknown_storage_is_reported(api):
    """Requests for an unknown storage get 404, and each operation has its own message. (R237, R238, R239)"""
    assert problem(api.get("/storages/no-such"), 404) == "No storage with id no-such"
    assert problem(api.delete("/storages/no-such"), 404) == ("Tried to remove storage that doesn't exist, id: no-such")
    assert problem(api.put("/storages/default/no-such"), 404) == "Storage with id no-such is not found"


def test_an_unused_storage_can_go(api, a_storage):
    """A storage without timelines is removed with 204. (R238)"""
    storage = a_storage()
    api.post("/storages", json=storage)

    assert api.delete(f"/storages/{storage['id']}").status_code == 204
    problem(api.get(f"/storages/{storage['id']}"), 404)


def test_an_id_stays_what_it_was(api, a_storage):
    """The id of a removed storage can be used again for the same storage, but for no other. (R235)"""
    storage = a_storage()
    api.post("/storages", json=storage)
    api.delete(f"/storages/{storage['id']}")

    elsewhere = {"id": storage["id"], "storage_type": "kinesis", "kinesis_configuration": {"stream": "elsewhere"}}
    assert problem(api.post("/storages", json=elsewhere), 409) == f"A storage with id '{storage['id']}' already exists."
    assert api.post("/storages", json=storage).status_code == 201


def test_the_built_in_storage_stays(api):
    """Removing a storage that is in use gets 403. (R238, R266)"""
    create_event_type(api)

    assert problem(api.delete("/storages/default"), 403) == "Can't delete storage as it is still used, id: default"


@pytest.mark.usefixtures("default_again")
def test_there_is_one_default(api, a_storage):
    """Choosing a default returns that storage, which is then the only default. (R239)"""
    storage = a_storage()
    api.post("/storages", json=storage)

    answer = api.put(f"/storages/default/{storage['id']}")

    assert answer.status_code == 200
    assert answer.json() == storage | {"default": True}
    assert [each["id"] for each in api.get("/storages").json() if each["default"]] == [storage["id"]]


@pytest.mark.usefixtures("default_again")
def test_a_new_storage_can_be_the_default(api, a_storage):
    """A new storage can become the default at once. (R235)"""
    storage = a_storage(default=True)
    api.post("/storages", json=storage)

    assert api.get(f"/storages/{storage['id']}").json()["default"] is True


@pytest.mark.usefixtures("default_again")
def test_an_event_type_lives_in_the_storage_that_was_chosen(api, a_storage):
    """Events published to an event type in another storage can be read again, and prevent the removal of the storage.
    (R238, R239)
    """
    storage = a_storage(default=True)
    api.post("/storages", json=storage)
    name = create_event_type(api)["name"]
    api.put("/storages/default/default")

    assert [each["storage_id"] for each in timelines(api, name)] == [storage["id"]]
    assert api.post(f"/event-types/{name}/events", json=[{"a": 1}]).status_code == 200
    assert [each["newest_available_offset"][-1] for each in partitions(api, name)] == ["0"]
    problem(api.delete(f"/storages/{storage['id']}"), 403)
    assert api.delete(f"/event-types/{name}").status_code == 200
    assert api.delete(f"/storages/{storage['id']}").status_code == 204


def test_read_only_keeps_storages_as_they_are(api, switch_on, a_storage):
    """While writing is disabled, storages cannot be created, removed or chosen, nor timelines begun. (R231)"""
    name = create_event_type(api)["name"]
    switch_on("disable_db_write_operations")

    for answer in (
        api.post("/storages", json=a_storage()),
        api.delete("/storages/x"),
        api.put("/storages/default/x"),
        api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"}),
    ):
        assert problem(answer, 503) == "Database is currently in read-only mode"


def timelines(api, name):
    answer = api.get(f"/event-types/{name}/timelines")
    assert answer.status_code == 200
    return answer.json()


def test_a_new_event_type_has_one_timeline(api):
    """The first timeline of a new event type is in use from the start. (R240)"""
    name = create_event_type(api)["name"]

    [timeline] = timelines(api, name)

    assert uuid.UUID(timeline["id"])
    assert timeline["event_type"] == name
    assert timeline["order"] == 1
    assert timeline["storage_id"] == "default"
    assert timeline["topic"]
    assert timeline["switched_at"] == timeline["created_at"]
    assert timeline["cleaned_up_at"] is None
    assert timeline["latest_position"] is None


def test_a_switch_begins_another_timeline(api):
    """After a switch, the old timeline is closed after its last events, and the new one has the next order. (R242,
    R243)
    """
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
    name = create_event_type(api, default_statistic=statistic)["name"]
    api.post(f"/event-types/{name}/events", json=[{"a": number} for number in range(50)])
    ends = {each["partition"]: each["newest_available_offset"] for each in partitions(api, name)}

    answer = api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"})

    assert (answer.status_code, answer.content) == (201, b"")
    old, new = timelines(api, name)
    assert [int(ends[str(number)].split("-", 2)[2]) for number in range(2)] == old["latest_position"]["offsets"]
    assert old["cleaned_up_at"] > new["switched_at"]
    assert (new["order"], new["cleaned_up_at"], new["latest_position"]) == (2, None, None)
    assert len(partitions(api, name)) == 2


def partitions(api, name):
    return api.get(f"/event-types/{name}/partitions").json()


def test_publishing_goes_on_in_the_new_timeline(api):
    """Events after a switch are in the new timeline, whose number their offsets carry. (R243, C1)"""
    name = create_event_type(api)["name"]
    api.post(f"/event-types/{name}/events", json=[{"a": 1}])
    api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"})

    assert api.post(f"/event-types/{name}/events", json=[{"a": 2}]).status_code == 200

    [partition] = partitions(api, name)
    assert partition["oldest_available_offset"] == "001-0001-000000000000000000"
    assert partition["newest_available_offset"] == "001-0002-000000000000000000"


def test_retention_moves_with_its_setting(api):
    """A longer retention time keeps the events of closed timelines for longer. (R128)"""
    event_type = create_event_type(api, options={"retention_time": 20_000_000})
    api.post(f"/event-types/{event_type['name']}/timelines", json={"storage_id": "default"})
    before = timelines(api, event_type["name"])[0]["cleaned_up_at"]

    api.put(
        f"/event-types/{event_type['name']}", json=event_type | {"options": {"retention_time": 20_000_000 + 86_400_000}}
    )

    after = timelines(api, event_type["name"])[0]["cleaned_up_at"]
    assert after[10:] == before[10:]
    assert after[:10] > before[:10]


@pytest.mark.parametrize("policy", ["compact", "compact_and_delete"])
def test_compacted_event_types_do_not_switch(api, policy):
    """An event type that compacts cannot get another timeline. (R242)"""
    name = create_event_type(api, a_business_definition(cleanup_policy=policy))["name"]

    assert problem(api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"}), 422) == (
        "It is not possible to create a timeline for event type with 'compact' cleanup_policy"
    )


@pytest.mark.parametrize(("body", "shown"), [({"storage_id": "no-such"}, "no-such"), ({}, "null")])
def test_a_timeline_needs_a_storage(api, body, shown):
    """An unknown or missing storage gets 422 with its name. (R242)"""
    name = create_event_type(api)["name"]

    assert problem(api.post(f"/event-types/{name}/timelines", json=body), 422) == f"No storage with id: {shown}"


def test_the_timelines_of_nothing(api):
    """A request for the timelines of an unknown event type gets 404; its message has no full stop. (R241, R242)"""
    assert problem(api.get("/event-types/no.such/timelines"), 404) == 'EventType "no.such" does not exist'
    assert problem(api.post("/event-types/no.such/timelines", json={"storage_id": "default"}), 404) == (
        'EventType "no.such" does not exist'
    )
