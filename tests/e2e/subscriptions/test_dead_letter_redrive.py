"""Events that are republished for one subscription, to the event type for that purpose."""

import pytest

from tests.e2e.conftest import engine_settings
from tests.support.api import a_definition, create_event_type, problem
from tests.support.consumer import owners
from tests.support.served import ServedBroker
from tests.support.subscriptions import a_cursor, committed_offsets, create_subscription, publish, reset

REDRIVE = "nakadi.dead.letter.redrive"
JOB = "dlq_redrive_event_type_attachment_job"


@pytest.fixture(params=["memory", "sqlite"])
def running_broker(request, tmp_path):
    """A separate broker, because there is one redrive event type."""
    with ServedBroker(**engine_settings(request.param, tmp_path), default_partitions=1) as broker:
        yield broker


@pytest.fixture
def run_housekeeping(running_broker):
    """A function that lets the broker do its regular housekeeping at once."""
    return running_broker.services.housekeeping.run


@pytest.fixture
def subscription(api):
    create_event_type(api, a_definition(name=REDRIVE))
    return create_subscription(api, read_from="end")


def redrive(api, subscription_id, *numbers):
    headers = {} if subscription_id is None else {"X-CONSUMER-TAG": f"consumer_subscription_id={subscription_id}"}
    answer = api.post(f"/event-types/{REDRIVE}/events", json=[{"n": n} for n in numbers], headers=headers)
    assert answer.status_code == 200, answer.text


def test_redriven_events_come_to_the_subscription_they_are_for(api, open_consumer, run_housekeeping, subscription):
    """Events published to the redrive event type with the tag of a subscription are sent to that subscription, within
    its open stream; events for others, or for no subscription, do not. (S273, S274, S275, S235)
    """
    other = create_subscription(api, read_from="end")
    stream = open_consumer(subscription, batch_flush_timeout=1)
    redrive(api, subscription["id"], 1)
    redrive(api, other["id"], 2)
    redrive(api, None, 3)
    redrive(api, subscription["id"], 4)
    run_housekeeping()
    batches = [stream.batch(), stream.batch()]
    assert [(each["cursor"]["event_type"], each["events"][0]["n"]) for each in batches] == [(REDRIVE, 1), (REDRIVE, 4)]
    assert stream.commit(batches[0]).status_code == 204
    publish(api, *subscription["event_types"])
    assert stream.batch()["cursor"]["event_type"] == subscription["event_types"][0]


def test_redriven_events_come_also_after_a_switch_of_timelines(api, open_consumer, run_housekeeping, subscription):
    """A stream that also reads the redrive event type continues with the next timeline of that event type.
    (S273, S299)
    """
    redrive(api, subscription["id"], 1)
    run_housekeeping()
    stream = open_consumer(subscription, batch_flush_timeout=1, stream_timeout=30)
    stream.consumed(1)
    assert api.post(f"/event-types/{REDRIVE}/timelines", json={"storage_id": "default"}).status_code == 201
    redrive(api, subscription["id"], 2)
    assert stream.consumed(1) == [{"n": 2}]


def test_what_is_attached(api, open_consumer, run_housekeeping, subscription):
    """An attached partition can be assigned to a stream, is listed with the cursors and can be committed; it cannot be
    reset or requested by name, and statistics omit it. (S276, S107, S146)
    """
    redrive(api, subscription["id"], 1)
    run_housekeeping()
    first = open_consumer(subscription)
    batch = first.batch()
    open_consumer(subscription)
    assert problem(api.get(f"/subscriptions/{subscription['id']}/events"), 409).endswith("Total slots: 2")
    place = (REDRIVE, "0")
    assert committed_offsets(api, subscription)[place] == "001-0001--1"
    assert first.commit(batch).status_code == 204
    assert committed_offsets(api, subscription)[place] == f"001-0001-{0:018d}"
    assert [name for name, _ in owners(api, subscription)] == subscription["event_types"]
    refused = reset(api, subscription, a_cursor(REDRIVE, "0", "BEGIN"))
    assert problem(refused, 422) == f"Event type does not belong to subscription: [{REDRIVE}]"
    wanted = {"partitions": [{"event_type": REDRIVE, "partition": "0"}]}
    assert "don't belong" in problem(api.post(f"/subscriptions/{subscription['id']}/events", json=wanted), 422)


def test_attaching_leaves_offsets_alone(api, open_consumer, run_housekeeping, subscription):
    """Redriven events that were consumed are not sent again when more arrive, and existing offsets stay. (S274)"""
    redrive(api, subscription["id"], 1)
    run_housekeeping()
    with open_consumer(subscription) as stream:
        stream.consumed(1)
    redrive(api, subscription["id"], 2)
    run_housekeeping()
    assert [each["n"] for each in open_consumer(subscription).consumed(1)] == [2]


def test_tags_of_no_one_are_passed_over(api, run_housekeeping, subscription):
    """A tag that names no subscription is ignored. (S279)"""
    redrive(api, "70779f46-950d-4e48-9fca-10c413845e7f", 1)
    redrive(api, subscription["id"], 2)
    run_housekeeping()
    assert (REDRIVE, "0") in committed_offsets(api, subscription)


def test_the_feature_switches_it_off(api, run_housekeeping, switch_on, subscription):
    """The feature with the name of the redrive job switches this job off, as operators expect. (S278, S307)"""
    switch_on(JOB)
    redrive(api, subscription["id"], 1)
    run_housekeeping()
    assert committed_offsets(api, subscription) == {}


def test_the_event_type_keeps_its_partitions(api, subscription):
    """The redrive event type gets no more partitions. (S277)"""
    assert subscription
    answer = api.put(f"/event-types/{REDRIVE}/partition-count", json={"partition_count": 2})
    assert problem(answer, 422) == f"Event type {REDRIVE} is for redriving, its partitions can not be changed"
    assert api.put(f"/event-types/{REDRIVE}/partition-count", json={"partition_count": 1}).status_code == 204


def test_the_event_type_stays_while_it_is_read(api, run_housekeeping, subscription):
    """While the redrive event type is attached to a subscription, it cannot be deleted. (S290)"""
    redrive(api, subscription["id"], 1)
    run_housekeeping()
    refusal = f"Can't remove event type {REDRIVE}, as it has subscriptions"
    assert problem(api.delete(f"/event-types/{REDRIVE}"), 409) == refusal
    assert api.delete(f"/subscriptions/{subscription['id']}").status_code == 204
    assert api.delete(f"/event-types/{REDRIVE}").status_code == 200
