"""Several streams of a subscription, over a socket: slots, hand-over, and reasons for the end of streams."""

import json
import threading

import httpx

from nakadi.local import Broker
from tests.e2e.conftest import engine_settings
from tests.support.api import a_definition, create_event_type, problem
from tests.support.consumer import Consumer, owners
from tests.support.http import check_against_description
from tests.support.patience import PATIENCE, until
from tests.support.subscriptions import (
    a_cursor,
    a_subscription_authorization,
    change_request,
    committed_offsets,
    create_subscription,
    events_url,
    offset_text,
    publish,
    reset,
    subscribe_from_beginning,
)

DELETABLE = {"feature": "delete_event_type_with_subscriptions"}


def test_slots(api, open_consumer):
    """A subscription has at most as many streams as partitions. (S166, S159, S169)"""
    subscription = subscribe_from_beginning(api, partitions=2)
    streams = [open_consumer(subscription) for _ in range(2)]
    assert problem(api.get(events_url(subscription)), 409) == (
        f"No free slots for streaming available for subscription {subscription['id']}. Total slots: 2"
    )
    streams[0].close()
    until(lambda: api.head(events_url(subscription)).status_code == 200)


def test_slots_under_contention(api, open_consumer):
    """If many clients want the last slots at the same time, no more get in than there are. (S168, S317)"""
    subscription = subscribe_from_beginning(api, partitions=3)
    opened, lock = [], threading.Lock()

    def open_stream_and_note():
        stream = open_consumer(subscription)
        with lock:
            opened.append(stream.status)

    threads = [threading.Thread(target=open_stream_and_note) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened.count(200) == 3
    assert opened.count(409) == 5


def test_a_second_stream_gets_its_share(api, open_consumer):
    """Two streams have half of the partitions each, and when one leaves, the other has all of them; committed events do
    not come again. (S235, S236, S245, S170, S242, S244)
    """
    subscription = subscribe_from_beginning(api, partitions=8, events=40)
    one = open_consumer(subscription, max_uncommitted_events=100, batch_flush_timeout=1)
    got = one.consumed(40)
    two = open_consumer(subscription, max_uncommitted_events=100, batch_flush_timeout=1)
    until(lambda: sorted(map(list(owners(api, subscription).values()).count, (one.id, two.id))) == [4, 4])
    publish(api, subscription["event_types"][0], 40)
    results = []
    reading = threading.Thread(target=consume_together, args=(two, results, 40))
    reading.start()
    consume_together(one, results, 40)
    reading.join()
    assert sorted(each["n"] for each in got) == sorted(each["n"] for each in results) == list(range(40))
    two.close()
    until(lambda: set(owners(api, subscription).values()) == {one.id})


def consume_together(stream, events, count):
    """Consume until all streams together have brought this number of events. A silent stream checks again after each
    keep-alive.
    """
    while len(events) < count:
        batch = json.loads(stream.line())
        if "events" in batch:
            assert stream.commit(batch).status_code == 204
            events += batch["events"]


def test_a_partition_changes_hands_when_it_is_committed(api, open_consumer):
    """A partition with uncommitted events stays with its stream until that stream has committed them. (S241, S242,
    S118, S246, S240)"""
    subscription = subscribe_from_beginning(api, partitions=1, events=1)
    [name] = subscription["event_types"]
    one = open_consumer(subscription)
    batch = one.batch()
    two = open_consumer(subscription, partitions=[(name, "0")], batch_flush_timeout=1)
    until(lambda: owners(api, subscription) == {(name, "0"): f"{one.id}>"})
    assert "cannot be committed with stream id" in problem(two.commit(batch), 422)
    assert one.commit(batch).status_code == 204
    until(lambda: owners(api, subscription) == {(name, "0"): two.id})
    publish(api, name)
    assert two.batch()["cursor"]["offset"] == offset_text(1)


def test_direct_partitions(api, open_consumer):
    """Partitions that a client names belong to its stream alone while that is open; all others are shared. (S167, S170,
    S171, S172, S284)"""
    subscription = subscribe_from_beginning(api, partitions=4)
    [name] = subscription["event_types"]
    shared = open_consumer(subscription)
    direct = open_consumer(subscription, partitions=[(name, "1"), (name, "2")])
    wanted = {(name, "0"): shared.id, (name, "1"): direct.id, (name, "2"): direct.id, (name, "3"): shared.id}
    until(lambda: owners(api, subscription) == wanted)
    answer = api.post(
        events_url(subscription), json={"partitions": [{"event_type": name, "partition": number} for number in "12"]}
    )
    assert problem(answer, 409) == (
        "The following partitions are already requested by other stream(s) of this subscription: "
        f"EventTypePartition{{eventType='{name}', partition='1'}},EventTypePartition{{eventType='{name}', "
        "partition='2'}"
    )
    direct.close()
    until(lambda: set(owners(api, subscription).values()) == {shared.id})


def test_unclaimed_partitions_stay_unassigned(api, open_consumer):
    """If only direct streams exist, partitions that were not asked for stay without an owner. (S173)"""
    subscription = subscribe_from_beginning(api, partitions=2)
    [name] = subscription["event_types"]
    direct = open_consumer(subscription, partitions=[(name, "1")])
    assert owners(api, subscription) == {(name, "0"): "", (name, "1"): direct.id}


def test_the_commit_timeout(api, open_consumer):
    """A client that does not commit gets a debug line and loses the stream; another one gets the same events. (S203,
    S206, S182, trap 20)"""
    subscription = subscribe_from_beginning(api, events=1)
    opened = open_consumer(subscription, commit_timeout=1)
    assert opened.batch()["events"] == [{"n": 0}]
    assert opened.debug_at_the_end() == ["Commit timeout reached"]
    assert open_consumer(subscription).batch()["events"] == [{"n": 0}]


def test_the_stream_timeout(api, open_consumer):
    """At its timeout a stream flushes its buffers, says so, and waits for the commits. (S211, S210, S128)"""
    subscription = subscribe_from_beginning(api, events=3)
    # The events have to come in that time; if the first read is a request to a service, it may take longer.
    seconds = 3 if api.get("/storages/default").json()["storage_type"] == "embedded" else 10
    opened = open_consumer(
        subscription, batch_limit=2, stream_timeout=seconds, batch_flush_timeout=600, commit_timeout=20
    )
    batches = opened.lines(3)
    assert [each.get("events") for each in batches] == [[{"n": 0}, {"n": 1}], [{"n": 2}], None]
    assert batches[2]["info"] == {"debug": "Stream timeout reached"}
    assert opened.commit(batches[0]).status_code == 204
    assert opened.commit(batches[1]).status_code == 204
    assert opened.rest() == b""


def test_a_client_that_leaves_with_everything_committed(api, open_consumer):
    """A dropped connection releases its slot at once, if no events are uncommitted. (S220, S221, trap 19)"""
    subscription = subscribe_from_beginning(api)
    opened = open_consumer(subscription, batch_flush_timeout=30)
    opened.close()
    until(lambda: api.head(events_url(subscription)).status_code == 200)


def test_a_client_that_leaves_can_still_commit(api, open_consumer):
    """Events sent to a client that has left can be committed until the commit timeout; then its slot is free. (S128,
    S169, S220)"""
    subscription = subscribe_from_beginning(api, events=1)
    opened = open_consumer(subscription, commit_timeout=20)
    batch = opened.batch()
    opened.close()
    assert api.head(events_url(subscription)).status_code == 409
    assert opened.commit(batch).status_code == 204
    until(lambda: api.head(events_url(subscription)).status_code == 200)


def test_a_reset_ends_streams(api, open_consumer):
    """A reset ends streams, and later streams begin where the reset says. (S137, S143, S138, S215)"""
    subscription = subscribe_from_beginning(api, events=5)
    [name] = subscription["event_types"]
    opened = open_consumer(subscription)
    opened.consumed(5)
    assert reset(api, subscription, a_cursor(name, offset=2)).status_code == 204
    assert "Resetting subscription cursors" in opened.debug_at_the_end()
    assert open_consumer(subscription).batch()["events"] == [{"n": 3}]


def test_no_stream_begins_during_a_reset(api, open_consumer):
    """While a reset waits for commits, no other stream and no other reset may begin. (S141, S140, S137)"""
    subscription = subscribe_from_beginning(api, partitions=2, events=2)
    [name] = subscription["event_types"]
    opened = open_consumer(subscription, commit_timeout=30)
    batches = [opened.batch(), opened.batch()]
    resetting = threading.Thread(target=lambda: reset(api, subscription, a_cursor(name)))
    resetting.start()
    assert opened.keep_alive()["info"] == {"debug": "Resetting subscription cursors"}
    answer = api.get(events_url(subscription))
    assert problem(answer, 409) == "Resetting subscription cursors request is still in progress"
    assert "already in progress" in problem(reset(api, subscription, a_cursor(name, partition="1")), 409)
    assert opened.commit(*batches).status_code == 204
    resetting.join()
    assert committed_offsets(api, subscription)[name, "0"] == offset_text(-1)


def test_more_partitions_end_streams(api, open_consumer, switch_on):
    """When an event type gets more partitions, streams end as with a reset, and the next streams have all partitions.
    (S293, S295, S215)
    """
    switch_on("repartitioning")
    subscription = subscribe_from_beginning(api)
    [name] = subscription["event_types"]
    opened = open_consumer(subscription)
    assert api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2}).status_code == 204
    assert opened.debug_at_the_end() == ["Resetting subscription cursors"]
    again = open_consumer(subscription)
    assert owners(api, subscription) == {(name, "0"): again.id, (name, "1"): again.id}


def test_deleting_a_subscription_ends_its_streams(api, open_consumer):
    """The streams of a deleted subscription end without another line. (S74, trap 20)"""
    subscription = subscribe_from_beginning(api)
    opened = open_consumer(subscription, batch_flush_timeout=30)
    assert api.delete(f"/subscriptions/{subscription['id']}").status_code == 204
    assert opened.rest() == b""


def test_what_goes_wrong_later_is_not_reported(api, open_consumer):
    """Once the head is sent, a stream that cannot continue just closes, without a reason. (S161, S223)"""
    subscription = subscribe_from_beginning(api)
    [name] = subscription["event_types"]
    opened = open_consumer(subscription, batch_flush_timeout=30)
    assert opened.status == 200
    assert api.post("/settings/features", json=DELETABLE | {"enabled": True}).status_code == 204
    try:
        assert api.delete(f"/event-types/{name}").status_code == 200
    finally:
        api.post("/settings/features", json=DELETABLE | {"enabled": False})
    assert opened.rest() == b""


def test_no_one_is_throttled(api):
    """However fast a client opens streams, the broker never tells it to slow down. (S165)"""
    url = events_url(subscribe_from_beginning(api))
    assert {api.head(url).status_code for _ in range(100)} == {200}


def test_events_of_others_are_passed_over(ann_client, bob_client, admin):
    """If event owners are switched on, events of another owner are skipped, and count as committed. (S87,
    S228, S233)
    """
    selector = {"type": "path", "name": "user", "value": "owner"}
    definition = a_definition(schema={"properties": {"owner": {"type": "string"}}}, event_owner_selector=selector)
    name = create_event_type(ann_client, definition)["name"]
    subscription = create_subscription(bob_client, name, read_from="begin")
    switch = {"feature": "event_owner_selector_authz", "enabled": True}
    assert admin.post("/settings/features", json=switch).status_code == 204
    try:
        events = [{"owner": "ann", "n": 1}, {"owner": "ann", "n": 2}]
        assert ann_client.post(f"/event-types/{name}/events", json=events).status_code == 200
        assert bob_client.post(f"/event-types/{name}/events", json=[{"owner": "bob", "n": 3}]).status_code == 200
        with Consumer(bob_client, subscription, dict(bob_client.headers)) as stream:
            assert [each["n"] for each in stream.consumed(1)] == [3]
    finally:
        admin.post("/settings/features", json=switch | {"enabled": False})


def test_who_may_no_longer_read_a_subscription_goes_on_until_the_end(ann_client, bob_client):
    """A change of the subscription's own lists ends no stream; clients that reconnect are refused. (S71, S85)"""
    name = create_event_type(ann_client)["name"]
    subscription = create_subscription(ann_client, name, authorization=a_subscription_authorization("ann", "ann bob"))
    with Consumer(bob_client, subscription, dict(bob_client.headers)) as stream:
        change = change_request(subscription, authorization=a_subscription_authorization("ann", "ann"))
        assert ann_client.put(f"/subscriptions/{subscription['id']}", json=change).status_code == 204
        publish(ann_client, name)
        assert stream.batch()["events"] == [{"n": 0}]
    refused = bob_client.get(events_url(subscription))
    assert problem(refused, 403) == f"Access on VIEW subscription:{subscription['id']} denied"


def test_a_server_that_stops(tmp_path):
    """When a server stops, its streams end properly and release their partitions, so that others continue at once.
    (S224)
    """
    with Broker(**engine_settings("sqlite", tmp_path)) as broker, described_client(broker) as api:
        subscription = subscribe_from_beginning(api, events=1)
        opened = Consumer(api, subscription, batch_flush_timeout=30)
        assert opened.batch()["events"] == [{"n": 0}]
        stopping = threading.Thread(target=broker.close)
        stopping.start()
        assert opened.rest() == b""
        stopping.join()
        opened.close()
    with Broker(**engine_settings("sqlite", tmp_path)) as broker, described_client(broker) as api:
        assert set(owners(api, subscription).values()) == {""}
        with Consumer(api, subscription) as again:
            assert again.batch()["events"] == [{"n": 0}]


def test_two_servers_share_a_subscription(tmp_path):
    """Streams of two servers share the partitions, commits go through either, and when one server stops, the other has
    all of them. (S235, S245, S312)
    """
    settings = engine_settings("sqlite", tmp_path)
    with Broker(**settings) as here, Broker(**settings) as there, described_client(here) as api:
        subscription = subscribe_from_beginning(api, partitions=4, events=20)
        with described_client(there) as other, Consumer(api, subscription, max_uncommitted_events=50) as one:
            one.consumed(20)
            with Consumer(other, subscription, commit_timeout=2) as two:
                until(lambda: sorted(map(list(owners(api, subscription).values()).count, (one.id, two.id))) == [2, 2])
                publish(api, subscription["event_types"][0], 20)
                batch = two.batch()
                two.api = api
                assert two.commit(batch).status_code == 204
            until(lambda: set(owners(other, subscription).values()) == {one.id})


def test_a_commit_of_several_partitions_can_be_repeated(api, open_consumer):
    """A repeated commit of several partitions finds each of them outdated, and moves none. (S120, S123, S124)"""
    subscription = subscribe_from_beginning(api, partitions=2)
    stream = open_consumer(subscription)
    until(lambda: set(owners(api, subscription).values()) == {stream.id})
    cursors = [a_cursor(subscription["event_types"][0], partition, 5) for partition in ("0", "1")]
    assert stream.commit(*cursors).status_code == 204
    again = stream.commit(*cursors)
    assert again.status_code == 200
    assert again.json()["items"] == [{"cursor": each, "result": "outdated"} for each in cursors]


def test_a_server_knows_the_features_from_its_first_stream_on(tmp_path):
    """A feature that was switched on before a server began counts for its first events. (S228, S307)"""
    settings = engine_settings("sqlite", tmp_path)
    with Broker(**settings) as broker, described_client(broker) as api:
        switched = {"feature": "skip_misplaced_events", "enabled": True}
        assert api.post("/settings/features", json=switched).status_code == 204
        name = create_event_type(api)["name"]
        subscription = create_subscription(api, name, read_from="begin")
        events = [{"metadata": {"event_type": "another"}}, {"n": 1}]
        assert api.post(f"/event-types/{name}/events", json=events).status_code == 200
    with Broker(**settings) as broker, described_client(broker) as api, Consumer(api, subscription) as first:
        assert first.batch()["events"] == [{"n": 1}]


def described_client(broker):
    return check_against_description(httpx.Client(base_url=broker.url, timeout=PATIENCE))
