"""Parked events of a subscription: an event that consumers cannot process is parked, and so are later ones of its key,
until it is skipped or redriven.

Other tests show, on every engine, when an event is given up; here it is simulated.
"""

import pytest

from tests.e2e.conftest import engine_settings
from tests.support.api import a_definition, create_event_type, problem
from tests.support.consumer import Consumer, owners
from tests.support.own_events import own_events
from tests.support.parking import PARKING, a_keyed_definition, give_up_on_the_next, parked_ids, publish_events
from tests.support.patience import until
from tests.support.served import ServedBroker
from tests.support.subscriptions import (
    a_cursor,
    a_subscription_authorization,
    committed_offsets,
    create_subscription,
    reset,
)


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def running_broker(request, tmp_path_factory):
    with ServedBroker(**engine_settings(request.param, tmp_path_factory.mktemp("data"))) as broker:
        yield broker


@pytest.fixture
def subscription(api, running_broker):
    """A subscription whose first event, with the key `a`, is about to be given up."""
    subscription = create_subscription(
        api, create_event_type(api, a_keyed_definition())["name"], read_from="begin", annotations=PARKING
    )
    publish_events(api, *subscription["event_types"], "a1", "b1", "a2", "b2", "a3")
    give_up_on_the_next(running_broker.services, api, subscription)
    return subscription


@pytest.fixture
def parked_subscription(api, subscription):
    """A subscription in which every event of the key `a` is parked, and none of `b` is left."""
    with Consumer(api, subscription) as stream:
        assert receive_and_commit(stream, 2) == ["b1", "b2"]
        until(lambda: len(parked_ids(api, subscription)) == 3)
    until(lambda: set(owners(api, subscription).values()) == {""})  # there is only one slot for a stream
    return subscription


def receive_and_commit(stream, count):
    """Read this number of events, and commit each batch."""
    return [each["event"] for each in stream.consumed(count)]


def list_parked_events(api, subscription):
    return api.get(f"/subscriptions/{subscription['id']}/parked-events").json()["items"]


def test_a_key_is_parked_and_others_flow(api, open_consumer, subscription):
    """Later events with the key of a parked event are parked after it, and all others are sent."""
    [name] = subscription["event_types"]
    stream = open_consumer(subscription, batch_flush_timeout=1)
    assert receive_and_commit(stream, 2) == ["b1", "b2"]
    publish_events(api, name, "a4", "b3")
    assert receive_and_commit(stream, 1) == ["b3"]
    assert [(each["key"], each["failed_commits"], each["state"]) for each in list_parked_events(api, subscription)] == [
        ("a", 2, "parked"),
        *[("a", 0, "parked")] * 3,
    ]
    until(lambda: committed_offsets(api, subscription)[name, "0"] == f"001-0001-{6:018d}")


def test_parked_events_are_listed_page_by_page(api, parked_subscription):
    """Pages of parked events follow each other by links, and may be of one event type, partition or key. (S334,
    S335)"""
    [name] = parked_subscription["event_types"]
    target = f"/subscriptions/{parked_subscription['id']}/parked-events"
    first = api.get(target, params={"limit": 2, "event_type": name, "partition": "0", "key": "a"}).json()
    second = api.get(first["_links"]["next"]["href"]).json()
    assert [each["id"] for each in first["items"] + second["items"]] == parked_ids(api, parked_subscription)
    assert (len(first["items"]), len(second["items"]), second["_links"]) == (2, 1, {})
    for other in ({"key": "b"}, {"event_type": "another"}, {"partition": "1"}):
        assert api.get(target, params=other).json() == {"items": [], "_links": {}}


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=nonsense"])
def test_odd_pages_are_refused(api, query):
    """A request for an impossible page is malformed. (S335)"""
    target = f"/subscriptions/{create_subscription(api)['id']}/parked-events?{query}"
    assert problem(api.get(target), 400)


def test_a_parked_event_can_be_looked_at(api, parked_subscription):
    """A parked event is returned as published. (S336)"""
    found = api.get(
        f"/subscriptions/{parked_subscription['id']}/parked-events/{parked_ids(api, parked_subscription)[0]}"
    ).json()
    assert (found["event"]["event"], found["key"], found["failed_commits"]) == ("a1", "a", 2)


def test_parked_events_are_whole(api, running_broker, open_consumer):
    """A parked event is stored and shown whole; a projection applies only when a stream sends the event. (D12)"""
    name = create_event_type(api, a_keyed_definition())["name"]
    subscription = create_subscription(
        api, name, read_from="begin", annotations=PARKING, reads=["key"], projection=True
    )
    publish_events(api, name, "a1", "b1")
    give_up_on_the_next(running_broker.services, api, subscription)
    stream = open_consumer(subscription, batch_flush_timeout=1)
    assert stream.consumed(1) == [{"key": "b"}]
    until(lambda: parked_ids(api, subscription))
    [parked_id] = parked_ids(api, subscription)
    path = f"/subscriptions/{subscription['id']}/parked-events/{parked_id}"
    assert api.get(path).json()["event"] == {"key": "a", "event": "a1"}


@pytest.mark.parametrize("parked_id", ["nonsense", "order:0:001-0001-000000000000000012", "a:b:001-0001--1"])
def test_what_is_not_parked_is_not_found(api, parked_id):
    """An event that is not parked can neither be read nor skipped nor redriven. (S336)"""
    subscription = create_subscription(api)
    target = f"/subscriptions/{subscription['id']}/parked-events/{parked_id}"
    for answer in (api.get(target), api.delete(target), api.post(f"{target}/redrive")):
        assert problem(answer, 404) == f'There is no parked event "{parked_id}"'


def test_a_skipped_key_flows_again(api, open_consumer, subscription):
    """When the last parked event of a key is removed, later ones are sent again, within the same stream. (S337)"""
    [name] = subscription["event_types"]
    stream = open_consumer(subscription, batch_flush_timeout=1)
    assert receive_and_commit(stream, 2) == ["b1", "b2"]
    until(lambda: len(parked_ids(api, subscription)) == 3)
    for parked_id in parked_ids(api, subscription):
        assert api.delete(f"/subscriptions/{subscription['id']}/parked-events/{parked_id}").status_code == 204
    stream.keep_alive()
    publish_events(api, name, "a4", "b3")
    assert receive_and_commit(stream, 2) == ["a4", "b3"]
    assert parked_ids(api, subscription) == []


@pytest.mark.parametrize("everything", [False, True])
def test_a_redriven_key_comes_before_what_follows_it(api, open_consumer, parked_subscription, everything):
    """Redriven events come again in their order, before later ones of their key, and other events come once. (S338)"""
    [name] = parked_subscription["event_types"]
    target = f"/subscriptions/{parked_subscription['id']}/parked-events"
    first, second, third = parked_ids(api, parked_subscription)
    assert api.delete(f"{target}/{second}").status_code == 204
    with Consumer(api, parked_subscription, batch_flush_timeout=1) as stream:
        assert stream.keep_alive()
        assert api.post(f"{target}/redrive" if everything else f"{target}/{third}/redrive").status_code == 204
        assert stream.debug_at_the_end() == ["Resetting subscription cursors"]
    assert [(each["id"], each["state"]) for each in list_parked_events(api, parked_subscription)] == [
        (first, "redriving"),
        (third, "redriving"),
    ]
    publish_events(api, name, "a4", "b3")
    assert receive_and_commit(open_consumer(parked_subscription), 4) == ["a1", "a3", "a4", "b3"]
    until(lambda: parked_ids(api, parked_subscription) == [])
    assert committed_offsets(api, parked_subscription)[name, "0"] == f"001-0001-{6:018d}"


def test_a_key_that_fails_again_is_parked_again(api, running_broker, open_consumer, parked_subscription):
    """If consumers fail at a redriven event again, it is parked again, with all later events of its key, in order."""
    [name] = parked_subscription["event_types"]
    before = parked_ids(api, parked_subscription)
    assert api.post(f"/subscriptions/{parked_subscription['id']}/parked-events/{before[0]}/redrive").status_code == 204
    give_up_on_the_next(running_broker.services, api, parked_subscription)
    publish_events(api, name, "b3", "a4")
    assert receive_and_commit(open_consumer(parked_subscription, batch_flush_timeout=1), 1) == ["b3"]
    until(lambda: parked_ids(api, parked_subscription) == [*before, f"{name}:0:001-0001-{6:018d}"])
    until(lambda: {each["state"] for each in list_parked_events(api, parked_subscription)} == {"parked"})
    assert [each["failed_commits"] for each in list_parked_events(api, parked_subscription)] == [2, 0, 0, 0]


def test_a_reset_leaves_parked_events_alone(api, open_consumer, parked_subscription):
    """After the cursor was moved back, events that are not parked come again; parked ones stay, without copies."""
    [name] = parked_subscription["event_types"]
    before = parked_ids(api, parked_subscription)
    assert reset(api, parked_subscription, a_cursor(name, "0", "BEGIN")).status_code == 204
    assert receive_and_commit(open_consumer(parked_subscription), 2) == ["b1", "b2"]
    assert parked_ids(api, parked_subscription) == before


def test_events_without_a_key_are_parked_alone(api, running_broker, open_consumer):
    """If events have no key, only the unprocessable event is parked."""
    name = create_event_type(api, a_definition())["name"]
    subscription = create_subscription(api, name, read_from="begin", annotations=PARKING)
    publish_events(api, name, "a1", "a2")
    give_up_on_the_next(running_broker.services, api, subscription)
    with Consumer(api, subscription) as stream:
        assert receive_and_commit(stream, 1) == ["a2"]
    [found] = list_parked_events(api, subscription)
    assert "key" not in found
    assert api.post(f"/subscriptions/{subscription['id']}/parked-events/{found['id']}/redrive").status_code == 204
    assert receive_and_commit(open_consumer(subscription), 1) == ["a1"]
    until(lambda: parked_ids(api, subscription) == [])


def test_who_may_see_and_who_may_change(broker_with_tokens, ann_client):
    """Readers see parked events, admins skip and redrive them; a subject without the right does not learn whether an
    event exists. (S338, S339)
    """
    subscription = create_subscription(
        ann_client, annotations=PARKING, authorization=a_subscription_authorization("ann", "ann bob")
    )
    all_ = f"/subscriptions/{subscription['id']}/parked-events"
    one = f"{all_}/order:0:001-0001-000000000000000012"
    denied = f"subscription:{subscription['id']} denied"
    with broker_with_tokens.client("bob") as bob, broker_with_tokens.client("mallory") as mallory:
        assert bob.get(all_).json()["items"] == []
        assert problem(bob.get(one), 404)
        for answer in (bob.delete(one), bob.post(f"{one}/redrive"), bob.post(f"{all_}/redrive")):
            assert problem(answer, 403) == f"Access on ADMIN {denied}"
        for answer in (mallory.get(all_), mallory.get(one), mallory.delete(one)):
            assert problem(answer, 403) == f"Access on VIEW {denied}"
    assert problem(ann_client.delete(one), 404)
    assert ann_client.post(f"{all_}/redrive").status_code == 204


def test_a_subscription_has_to_be_there(api):
    """Parked events of a subscription that does not exist are not found. (S339)"""
    for answer in (api.get("/subscriptions/x/parked-events"), api.post("/subscriptions/x/parked-events/redrive")):
        assert problem(answer, 404) == 'Subscription with id "x" does not exist'


def test_skips_and_redrives_are_audited(api, parked_subscription, switch_on):
    """A skipped event is recorded as removed, and a redrive with the old and the new cursors."""
    switch_on("audit_log_collection")
    target = f"/subscriptions/{parked_subscription['id']}/parked-events"
    first, second, _ = parked_ids(api, parked_subscription)
    assert api.delete(f"{target}/{second}").status_code == 204
    assert api.post(f"{target}/{first}/redrive").status_code == 204
    events = own_events(api, "nakadi.audit.log")
    skip, redrive = ([each for each in events if each["data_type"] == kind][-1] for kind in ("parked_event", "cursors"))
    assert (skip["data_type"], skip["data_op"]) == ("parked_event", "D")
    assert skip["data"]["resource_id"] == f"{parked_subscription['id']}/{second}"
    assert skip["data"]["previous_object"] == {"subscription_id": parked_subscription["id"], "id": second, "key": "a"}
    assert (redrive["data_type"], redrive["data"]["resource_id"]) == ("cursors", parked_subscription["id"])
    assert redrive["data"]["new_object"][0]["offset"] == "001-0001--1"
