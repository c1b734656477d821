"""GET and POST /subscriptions/{id}/events: how streams begin, which lines they send, and how they end."""

import json
from uuid import UUID

import pytest

from tests.support.api import a_definition, an_authorization, create_event_type, problem, violations
from tests.support.consumer import Consumer
from tests.support.patience import until
from tests.support.subscriptions import (
    a_cursor,
    committed_offsets,
    create_subscription,
    events_url,
    offset_text,
    publish,
    reset,
    subscribe_from_beginning,
)

STARTED = {"debug": "Stream started"}


def test_headers_come_at_once(api, open_consumer):
    """The head and the stream id arrive before any event. (S162, S226, traps 3, 7)"""
    subscription = subscribe_from_beginning(api)
    opened = open_consumer(subscription, batch_flush_timeout=300)
    assert opened.status == 200
    assert opened.headers["content-type"] == "application/x-json-stream"
    assert str(UUID(opened.id)) == opened.id


def test_a_batch(api, open_consumer):
    """A batch is one line: cursor with four fields, events, and perhaps info, in this order. (S177, S178, S180, S88,
    S185)"""
    subscription = subscribe_from_beginning(api, events=3)
    [name] = subscription["event_types"]
    opened = open_consumer(subscription, batch_limit=2, batch_flush_timeout=1)
    line = opened.line()
    first = json.loads(line)
    assert list(first) == ["cursor", "events", "info"]
    token = first["cursor"].pop("cursor_token")
    assert first == {
        "cursor": {"partition": "0", "offset": offset_text(1), "event_type": name},
        "events": [{"n": 0}, {"n": 1}],
        "info": STARTED,
    }
    assert line.endswith(b"\n")
    second = json.loads(opened.line())
    assert list(second) == ["cursor", "events"]
    assert UUID(second["cursor"]["cursor_token"]) != UUID(token)


def test_a_keep_alive(api, open_consumer):
    """A keep-alive has a whole cursor and no events; the first one says that the stream has started. (S179, S181, S92,
    trap 4)
    """
    subscription = subscribe_from_beginning(api)
    opened = open_consumer(subscription, batch_flush_timeout=1)
    first, second = opened.lines(2)
    assert (list(first), list(second)) == (["cursor", "info"], ["cursor"])
    assert {**second["cursor"], "cursor_token": ""} == {
        "partition": "0",
        "offset": offset_text(-1),
        "event_type": subscription["event_types"][0],
        "cursor_token": "",
    }


def test_the_next_stream_goes_on(api, open_consumer):
    """Committed events do not come again, and uncommitted ones do. (S206, S92, S125, S245)"""
    subscription = subscribe_from_beginning(api, events=4)
    first = open_consumer(subscription, max_uncommitted_events=4, stream_limit=2)
    batches = [first.batch() for _ in range(2)]
    assert first.commit(batches[1]).status_code == 204
    assert first.debug_at_the_end() == ["Stream limit in events reached: 2"]
    second = open_consumer(subscription, batch_limit=2)
    assert second.batch()["events"] == [{"n": 2}, {"n": 3}]
    second.close()


def test_an_ended_stream_has_left_before_its_client_sees_the_end(api, open_consumer):
    """When a client sees the end of its stream, there is room for the next, and the old id is no longer valid. (S227,
    trap 12)
    """
    subscription = subscribe_from_beginning(api, events=1)
    for _ in range(3):
        opened = open_consumer(subscription, stream_limit=1, batch_flush_timeout=1)
        assert opened.status == 200
        batch = opened.batch()
        opened.commit(batch)
        opened.rest()
        assert "not found" in problem(opened.commit(batch), 422)
        publish(api, subscription["event_types"][0])


@pytest.mark.parametrize(
    ("parameters", "detail"),
    [
        ({"batch_limit": 0}, "batch_limit can't be lower than 1"),
        ({"batch_limit": 0, "commit_timeout": 61}, "batch_limit can't be lower than 1"),
        ({"commit_timeout": 61}, "commit_timeout can not be more than 60"),
        ({"commit_timeout": -1}, "commit_timeout can not be less than 0"),
        ({"max_uncommitted_events": -1}, "max_uncommitted_events can't be lower than 0"),
        ({"stream_limit": -1}, "stream_limit can't be lower than 0"),
        ({"stream_keep_alive_limit": -1}, "stream_keep_alive_limit can't be lower than 0"),
    ],
)
def test_parameters_that_make_no_sense(api, parameters, detail):
    """Parameters are checked before everything else, in the query and in the body alike; limits below zero are
    refused, because such a stream would never send anything. (S148, S156, S147, S153)
    """
    subscription = {"id": "nobody"}
    assert problem(api.get(events_url(subscription), params=parameters), 422) == detail
    assert problem(api.post(events_url(subscription), json=parameters), 422) == detail


def test_parameters_that_cannot_be_read(api):
    """An invalid number, and a body that is not a JSON object, are bad requests. (S154)"""
    url = events_url({"id": "nobody"})
    problem(api.get(url, params={"batch_limit": "many"}), 400)
    problem(api.post(url, json={"batch_limit": "many"}), 400)
    problem(api.post(url, content="{", headers={"content-type": "application/json"}), 400)


def test_zeros_mean_the_default(api, open_consumer):
    """A body that names everything, with zeros for members without a value, opens a stream. (S154, S152, S147, trap
    8)"""
    subscription = subscribe_from_beginning(api, events=1)
    zeros = dict.fromkeys(("stream_limit", "batch_timespan", "stream_timeout", "batch_flush_timeout"), 0)
    opened = open_consumer(
        subscription, **zeros, partitions=[], max_uncommitted_events=0, commit_timeout=0, batch_limit=1
    )
    assert opened.batch()["events"] == [{"n": 0}]


def test_limits_need_not_fit_each_other(api, open_consumer):
    """A stream limit below the batch limit, and a stream timeout below the flush timeout, are accepted. (S151, S150)"""
    subscription = subscribe_from_beginning(api, events=1)
    opened = open_consumer(
        subscription, batch_limit=5, stream_limit=1, batch_flush_timeout=600, stream_timeout=5000, commit_timeout=60
    )
    assert opened.batch()["events"] == [{"n": 0}]


def test_an_unknown_subscription(api):
    """A request for a stream of a subscription that does not exist gets 404. (S60, S159)"""
    answer = api.get(events_url({"id": "nobody"}))
    assert problem(answer, 404) == 'Subscription with id "nobody" does not exist'
    assert "x-nakadi-streamid" not in answer.headers


def test_partitions_that_cannot_be_had(api):
    """Partitions that are named twice, or do not belong to the subscription, are refused. (S156, S157, S158)"""
    subscription = subscribe_from_beginning(api)
    [name] = subscription["event_types"]
    own = {"event_type": name, "partition": "0"}
    answer = api.post(events_url(subscription), json={"partitions": [own, own]})
    assert problem(answer, 422) == "Duplicated partition specified"
    answer = api.post(events_url(subscription), json={"partitions": [own, {"event_type": "other", "partition": "7"}]})
    assert problem(answer, 422) == (
        "Wrong partitions specified - some partitions don't belong to subscription: "
        "EventTypePartition{eventType='other', partition='7'}"
    )
    answer = api.post(events_url(subscription), json={"partitions": [{"event_type": name}]})
    assert violations(answer) == {'Field "partitions[0].partition" must not be null'}


def test_a_cursor_beyond_the_end(api, open_consumer):
    """A stream cannot begin at a committed cursor beyond the last event. (S102, S127, S159)"""
    subscription = subscribe_from_beginning(api)
    opened = open_consumer(subscription)
    assert opened.commit(a_cursor(subscription["event_types"][0], offset=25)).status_code == 204
    opened.rest()
    answer = api.get(events_url(subscription))
    assert "is unavailable as retention time of data elapsed" in problem(answer, 412)
    assert reset(api, subscription, a_cursor(subscription["event_types"][0])).status_code == 204
    assert open_consumer(subscription).status == 200


def test_a_head_request_takes_no_slot(api, open_consumer):
    """A HEAD request for a stream begins no stream. (S166)"""
    subscription = subscribe_from_beginning(api)
    assert api.head(events_url(subscription)).status_code == 200
    assert open_consumer(subscription).status == 200
    assert api.head(events_url(subscription)).status_code == 409


def test_who_may_stream(ann_client, bob_client):
    """Streaming requires the right to read the subscription and every one of its event types. (S78, S81, S159, S304)"""
    name = create_event_type(ann_client, a_definition(authorization=an_authorization(readers="ann bob")))["name"]
    other = create_event_type(ann_client, a_definition(authorization=an_authorization(readers="ann")))["name"]
    readers = [{"data_type": "user", "value": "ann"}, {"data_type": "user", "value": "bob"}]
    closed = create_subscription(ann_client, name, authorization={"admins": readers[:1], "readers": readers[:1]})
    half = create_subscription(ann_client, name, other, authorization={"admins": readers[:1], "readers": readers})
    assert problem(bob_client.get(events_url(closed)), 403).startswith("Access on VIEW subscription:")
    assert problem(bob_client.get(events_url(half)), 403) == f"Access on READ event-type:{other} denied"


def test_losing_permission_ends_a_stream(broker_with_tokens, ann_client, bob_client):
    """A subject that may no longer read an event type loses the stream at once, without a message. (S84, S222)"""
    definition = a_definition(authorization=an_authorization(readers="ann bob"))
    name = create_event_type(ann_client, definition)["name"]
    subscription = create_subscription(ann_client, name)
    headers = broker_with_tokens.issuer.bearer("bob")
    with Consumer(bob_client, subscription, headers, batch_flush_timeout=30) as opened:
        assert (
            ann_client.put(f"/event-types/{name}", json=definition | {"authorization": an_authorization()}).status_code
            == 200
        )
        assert opened.rest() == b""


def test_a_blocked_subject_is_refused(api, open_consumer):
    """A block refuses new streams before any other check, and closes open ones. (S308, S216, S156, S306)"""
    one, two = create_event_type(api)["name"], create_event_type(api)["name"]
    subscription = create_subscription(api, one, two)
    last = max(one, two)
    opened = open_consumer(subscription, batch_flush_timeout=30)
    blocked = f"/settings/blacklist/CONSUMER_ET/{last}"
    assert api.put(blocked).status_code == 204
    try:
        assert opened.debug_at_the_end() == ["Consumption is blocked"]
        assert problem(api.get(events_url(subscription)), 403) == "Application or event type is blocked"
    finally:
        api.delete(blocked)


def test_the_window_limits_uncommitted_events(api, open_consumer):
    """Only as many events as the window allows are uncommitted at once. (S199, S195, S129)"""
    opened = open_consumer(subscribe_from_beginning(api, events=12), max_uncommitted_events=5, batch_flush_timeout=1)
    first = [opened.batch() for _ in range(5)]
    assert [each["events"][0]["n"] for each in first] == [0, 1, 2, 3, 4]
    assert opened.keep_alive()["cursor"]["offset"] == offset_text(4)
    assert opened.commit(first[-1]).status_code == 204
    assert [opened.batch()["events"][0]["n"] for _ in range(5)] == [5, 6, 7, 8, 9]


def test_several_event_types(api, open_consumer):
    """One stream has the batches of all event types, each batch with the events of one event type. (S302, S303)"""
    one, two = create_event_type(api)["name"], create_event_type(api)["name"]
    subscription = create_subscription(api, one, two, read_from="begin")
    publish(api, one)
    publish(api, two)
    opened = open_consumer(subscription)
    batches = [opened.batch(), opened.batch()]
    assert {each["cursor"]["event_type"] for each in batches} == {one, two}
    assert opened.commit(*batches).status_code == 204


def test_events_for_others_are_passed_over(api, open_consumer, monkeypatch):
    """Events for other subscriptions are skipped, and count as committed. (S228, S229, S231, S232, S233, S275)"""
    # A broker in this process commits these events soon.
    monkeypatch.setattr("nakadi.subscriptions.stream.session.AUTO_COMMIT_INTERVAL_SECONDS", 0.5)
    name = create_event_type(api)["name"]
    ours, theirs = create_subscription(api, name, read_from="begin"), create_subscription(api, name, read_from="begin")
    for number, tag in enumerate((theirs, ours, theirs)):
        headers = {"X-CONSUMER-TAG": f"consumer_subscription_id={tag['id']}"}
        assert api.post(f"/event-types/{name}/events", json=[{"n": number}], headers=headers).status_code == 200
    opened = open_consumer(ours)
    assert opened.consumed(1) == [{"n": 1}]
    until(lambda: committed_offsets(api, ours)[name, "0"] == offset_text(2))


def test_misplaced_events_are_passed_over(api, open_consumer, switch_on):
    """If the feature for skipping misplaced events is on, events whose metadata names another event type are not
    delivered. (S228, S307)
    """
    switch_on("skip_misplaced_events")
    name = create_event_type(api)["name"]
    subscription = create_subscription(api, name, read_from="begin")
    events = [{"metadata": {"event_type": "another"}}, {"metadata": {"event_type": name}}, {"n": 1}]
    assert api.post(f"/event-types/{name}/events", json=events).status_code == 200
    assert open_consumer(subscription).consumed(2) == events[1:]


def test_a_new_timeline_is_invisible(api, open_consumer):
    """A switch of timelines is visible only in the offsets; a commit at the end of the old one carries over. (S299,
    S91)"""
    subscription = subscribe_from_beginning(api, events=1)
    [name] = subscription["event_types"]
    opened = open_consumer(subscription, batch_flush_timeout=1)
    opened.consumed(1)
    assert api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"}).status_code == 201
    publish(api, name)
    batch = opened.batch()
    assert batch["cursor"]["offset"] == offset_text(0, timeline=2)
    assert opened.commit(batch).status_code == 204


def test_an_event_type_that_is_made_again_is_read_by_streams_that_open_right_after(api, open_consumer):
    """An event type is deleted and made again while it is streamed; a stream of the new one that opens within moments
    gets its events. (S299)"""
    subscription = subscribe_from_beginning(api, events=3)
    [name] = subscription["event_types"]
    open_consumer(subscription)
    assert api.delete(f"/subscriptions/{subscription['id']}").status_code == 204
    assert api.delete(f"/event-types/{name}").status_code == 200
    create_event_type(api, name=name)
    second = create_subscription(api, name, read_from="begin", consumer_group="another")
    opened = open_consumer(second, batch_flush_timeout=1, stream_timeout=20)
    publish(api, name, 3)
    opened.consumed(3)


def test_gzip(api, open_consumer):
    """A stream in gzip delivers every line when it is sent. (S164, trap 21)"""
    opened = open_consumer(subscribe_from_beginning(api, events=1), {"Accept-Encoding": "gzip"})
    assert opened.headers["content-encoding"] == "gzip"
    assert opened.batch()["events"] == [{"n": 0}]


@pytest.mark.parametrize(
    "accept",
    ["text/html, */*", "application/json", "application/x-json-stream, text/plain", "application/avro-binary, */*"],
)
def test_any_other_accept_is_overlooked(api, open_consumer, accept):
    """Whatever else a client accepts, it gets lines of JSON. (S155, trap 24)"""
    opened = open_consumer(subscribe_from_beginning(api), {"Accept": accept})
    assert (opened.status, opened.headers["content-type"]) == (200, "application/x-json-stream")


def test_server_sent_events(api, open_consumer):
    """An event source gets the stream's id as its first event, and each batch as the data of an event."""
    subscription = subscribe_from_beginning(api, events=1)
    opened = open_consumer(subscription, {"Accept": "text/event-stream"}, batch_flush_timeout=1)
    assert opened.headers["content-type"] == "text/event-stream"
    assert opened.until(b"\n\n").decode() == f'retry: 3000\nevent: stream\ndata: {{"stream_id":"{opened.id}"}}\n\n'
    # If a read takes longer than a flush timeout, a keep-alive comes before an event.
    event = next(each for each in iter(lambda: opened.until(b"\n\n"), b"") if b'"events"' in each)
    assert event.startswith(b"data: {")
    batch = json.loads(event.removeprefix(b"data: "))
    assert batch["events"] == [{"n": 0}]
    assert opened.commit(batch).status_code == 204
    assert opened.until(b"\n\n") == b": still here\n\n"
