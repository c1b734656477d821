"""DELETE /subscriptions/{id}, and the effects of deleting and repartitioning event types on subscriptions."""

from concurrent.futures import ThreadPoolExecutor

from tests.support.api import create_event_type, problem
from tests.support.subscriptions import a_request, committed_offsets, create_subscription, offset_text, publish, reset


def delete(api, subscription):
    return api.delete(f"/subscriptions/{subscription['id']}")


def test_a_deleted_subscription_is_gone(api):
    """Deletion gets 204; afterwards, the id is unknown everywhere. (S60, S72)"""
    subscription = create_subscription(api)
    reset(api, subscription)
    answer = delete(api, subscription)
    assert (answer.status_code, answer.content) == (204, b"")
    detail = f'Subscription with id "{subscription["id"]}" does not exist'
    assert problem(delete(api, subscription), 404) == detail
    for path in ("", "/cursors", "/stats"):
        assert problem(api.get(f"/subscriptions/{subscription['id']}{path}"), 404) == detail
    assert problem(reset(api, subscription), 404) == detail
    assert api.get("/subscriptions", params={"event_type": subscription["event_types"][0]}).json()["items"] == []


def test_a_new_one_with_the_same_key_begins_anew(api):
    """After deletion, the key is free again; the next subscription with this key has another id, and no
    offsets. (S76)
    """
    name = create_event_type(api)["name"]
    request = a_request(name, read_from="begin")
    first = api.post("/subscriptions", json=request).json()
    publish(api, name, 3)
    reset(api, first, {"event_type": name, "partition": "0", "offset": offset_text(2)})
    delete(api, first)
    second = api.post("/subscriptions", json=request)
    assert second.status_code == 201
    assert second.json()["id"] != first["id"]
    assert committed_offsets(api, second.json()) == {}


def test_a_read_only_registry_deletes_nothing(api, switch_on):
    """In read-only mode, deletion gets 503, even of a missing subscription. (S73, S307)"""
    switch_on("disable_db_write_operations")
    assert problem(api.delete("/subscriptions/unknown"), 503) == "Database is currently in read-only mode"


# Event types


def test_subscriptions_keep_their_event_types(api):
    """An event type that belongs to any subscription cannot be deleted before the subscription. (S290, R133)"""
    name = create_event_type(api)["name"]
    both = create_subscription(api, name, create_event_type(api)["name"])
    refusal = f"Can't remove event type {name}, as it has subscriptions"
    assert problem(api.delete(f"/event-types/{name}"), 409) == refusal
    delete(api, both)
    assert api.delete(f"/event-types/{name}").status_code == 200


def test_subscriptions_may_go_with_their_event_types(api, switch_on):
    """If the feature for it is on, subscriptions are deleted with an event type, including those to further event
    types, and all offsets. (S291, S292, R133)

    Deletion also removes the state that their streams share."""
    name = create_event_type(api)["name"]
    both = create_subscription(api, name, create_event_type(api)["name"])
    many = [create_subscription(api, name) for _ in range(30)]
    reset(api, both)
    switch_on("delete_event_type_with_subscriptions")
    assert api.delete(f"/event-types/{name}").status_code == 200
    for each in (both, *many):
        assert api.get(f"/subscriptions/{each['id']}").status_code == 404
        assert api.get(f"/subscriptions/{each['id']}/cursors").status_code == 404
    assert api.get("/subscriptions", params={"event_type": both["event_types"]}).json()["items"] == []


def test_some_subscriptions_do_not_count(api):
    """If all subscriptions have the owner and the group that the broker ignores, they are deleted with the event type.
    (S291, R133)"""
    name = create_event_type(api)["name"]
    key = {"owning_application": "nakadi_archiver", "consumer_group": "nakadi_to_s3"}
    given_up = create_subscription(api, name, **key)
    other_group = create_subscription(api, name, owning_application="nakadi_archiver")
    assert api.delete(f"/event-types/{name}").status_code == 409
    assert api.get(f"/subscriptions/{given_up['id']}").status_code == 200
    delete(api, other_group)
    assert api.delete(f"/event-types/{name}").status_code == 200
    assert api.get(f"/subscriptions/{given_up['id']}").status_code == 404


def test_subscribing_and_deleting_exclude_each_other(api):
    """However creation and deletion coincide, no subscription is left whose event type is gone. (S24, R133)"""
    for _ in range(8):
        names = [create_event_type(api)["name"] for _ in range(3)]
        request = a_request(*names)
        with ThreadPoolExecutor(2) as threads:
            creating = threads.submit(api.post, "/subscriptions", json=request)
            deleting = threads.submit(api.delete, f"/event-types/{names[1]}")
        statuses = (creating.result().status_code, deleting.result().status_code)
        assert statuses in {(201, 409), (422, 200)}, creating.result().text
        if statuses[0] == 422:
            told = problem(creating.result(), 422)
            assert told.replace("'", "") == f"Failed to create subscription, event type(s) not found: {names[1]}"


# Repartitioning


def repartition(api, name, count):
    answer = api.put(f"/event-types/{name}/partition-count", json={"partition_count": count})
    assert answer.status_code == 204, answer.text


def test_new_partitions_are_consumed_from_their_beginning(api):
    """New partitions come with an offset before the first event, whatever the subscription reads from; the others
    keep their offsets. (S293, S297, R211, R212)"""
    name = create_event_type(api)["name"]
    publish(api, name, 3)
    cursor = {"event_type": name, "partition": "0", "offset": offset_text(1)}
    at_end, at_cursor = (
        create_subscription(api, name),
        create_subscription(api, name, read_from="cursors", initial_cursors=[cursor]),
    )
    for each in (at_end, at_cursor):
        reset(api, each)
    repartition(api, name, 3)
    new = {(name, "1"): offset_text(-1), (name, "2"): offset_text(-1)}
    assert committed_offsets(api, at_end) == {(name, "0"): offset_text(2), **new}
    assert committed_offsets(api, at_cursor) == {(name, "0"): offset_text(1), **new}
    assert api.get(f"/subscriptions/{at_cursor['id']}").json()["initial_cursors"] == [cursor]


def test_subscriptions_that_were_never_streamed_get_their_offsets(api):
    """When partitions are added, a subscription that was never streamed gets its first offsets. (S95, S294, R212)"""
    name = create_event_type(api)["name"]
    publish(api, name, 3)
    at_end, at_begin = create_subscription(api, name), create_subscription(api, name, read_from="begin")
    repartition(api, name, 2)
    publish(api, name, 3)
    assert committed_offsets(api, at_end) == {(name, "0"): offset_text(2), (name, "1"): offset_text(-1)}
    assert committed_offsets(api, at_begin) == {(name, "0"): offset_text(-1), (name, "1"): offset_text(-1)}


def test_a_repartition_may_pass_the_limit(api):
    """The limit of partitions applies only when a subscription is created. (S296)"""
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 8, "write_parallelism": 8}
    names = [create_event_type(api, default_statistic=statistic)["name"] for _ in range(12)] + [
        create_event_type(api)["name"]
    ]
    subscription = create_subscription(api, *names)
    repartition(api, names[-1], 8)
    assert len(committed_offsets(api, subscription)) == 104
