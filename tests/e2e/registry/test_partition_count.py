"""PUT /event-types/{name}/partition-count."""

import pytest

from tests.support.api import an_authorization, create_event_type, problem, violations

STATISTIC = {"messages_per_minute": 5, "message_size": 6, "read_parallelism": 2, "write_parallelism": 1}


def set_count(api, name, count):
    return api.put(f"/event-types/{name}/partition-count", json={"partition_count": count})


def partitions(api, name):
    return [each["partition"] for each in api.get(f"/event-types/{name}/partitions").json()]


def test_more_partitions(api):
    """A greater count gets 204 and adds partitions; the same count again is accepted. (R206, R274, C69)"""
    name = create_event_type(api)["name"]

    for _ in range(2):
        answer = set_count(api, name, 4)
        assert (answer.status_code, answer.content) == (204, b"")

    assert partitions(api, name) == ["0", "1", "2", "3"]


def test_events_stay_where_they_are(api):
    """Old partitions keep their events, new ones begin empty. (R211)"""
    name = create_event_type(api)["name"]
    api.post(f"/event-types/{name}/events", json=[{"a": 1}, {"a": 2}])

    set_count(api, name, 2)

    old, new = api.get(f"/event-types/{name}/partitions").json()
    assert old["newest_available_offset"] == "001-0001-000000000000000001"
    assert new["newest_available_offset"] == "001-0001--1"


@pytest.mark.parametrize(
    ("before", "count", "after"),
    [
        (STATISTIC, 5, STATISTIC | {"read_parallelism": 5, "write_parallelism": 5}),
        (STATISTIC, 2, STATISTIC | {"read_parallelism": 2, "write_parallelism": 2}),
        (None, 5, {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 5, "write_parallelism": 5}),
        (None, 1, {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 1, "write_parallelism": 1}),
    ],
)
def test_statistics_follow(api, before, count, after):
    """The parallelisms in the statistics become the requested count, even if the event type has as many partitions
    already, so that an owner's old definition is refused afterwards. (R119, R210)
    """
    event_type = create_event_type(api, default_statistic=before)

    assert set_count(api, event_type["name"], count).status_code == 204

    assert api.get(f"/event-types/{event_type['name']}").json()["default_statistic"] == after
    if before:
        refused = api.put(f"/event-types/{event_type['name']}", json=event_type)
        assert problem(refused, 422) == "default statistics must not be changed"


@pytest.mark.parametrize(
    ("count", "detail"),
    [
        (9, "Number of partitions should not be more than 8"),
        (1, "Number of partitions can not decrease"),
        (0, "Number of partitions can not decrease"),
        (-1, "Number of partitions can not decrease"),
    ],
)
def test_a_count_has_bounds(api, count, detail):
    """More partitions than the maximum, or fewer than now, get 422, where the reference failed with an error. (R207,
    R208, R265, C70)
    """
    name = create_event_type(api, default_statistic=STATISTIC)["name"]

    assert problem(set_count(api, name, count), 422) == detail


def test_a_count_is_needed(api):
    """A missing count gets 422 with its name, and one that is not a number gets 400. (R207, R209)"""
    name = create_event_type(api)["name"]

    assert violations(set_count(api, name, None)) == {'Field "partition_count" must not be null'}
    problem(set_count(api, name, "many"), 400)


def test_an_unknown_event_type_has_no_partitions(api):
    """The partition count of an unknown event type gets 404. (R207)"""
    problem(set_count(api, "no.such", 3), 404)


def test_repartitioning_is_for_administrators(ann_client, admin):
    """An event type's own admins may not add partitions. (R207)"""
    name = create_event_type(ann_client, authorization=an_authorization())["name"]

    assert problem(set_count(ann_client, name, 3), 403) == f"Access on ADMIN event-type:{name} denied"
    assert set_count(admin, name, 3).status_code == 204


def test_no_switch_stands_in_the_way(api):
    """The feature `repartitioning` has no effect. (R213)"""
    features = {each["feature"]: each["enabled"] for each in api.get("/settings/features").json()["items"]}

    assert features["repartitioning"] is False
    assert set_count(api, create_event_type(api)["name"], 2).status_code == 204


def test_the_next_events_go_by_the_new_count(api):
    """As soon as more partitions are acknowledged, all events are partitioned by the new count. (R206, R295)"""
    by_key = {"partition_strategy": "hash", "partition_key_fields": ["key"]}
    name = create_event_type(api, schema={"properties": {"key": {"type": "string"}}}, **by_key)["name"]
    keys = [{"key": str(number)} for number in range(64)]
    assert api.post(f"/event-types/{name}/events", json=keys).status_code == 200

    assert set_count(api, name, 8).status_code == 204
    assert api.post(f"/event-types/{name}/events", json=keys).status_code == 200

    ends = [each["newest_available_offset"] for each in api.get(f"/event-types/{name}/partitions").json()]
    numbers = [int(each.rpartition("-")[2]) + 1 if "--1" not in each else 0 for each in ends]
    assert sum(numbers) == 2 * len(keys)
    assert len(keys) < numbers[0] < 2 * len(keys)
    assert all(numbers)
