"""Unprocessable events, from the first failure to the dead letter."""

import pytest

from tests.support.api import a_business_definition, create_event_type
from tests.support.own_events import own_events
from tests.support.parking import PARKING, a_keyed_definition, fail_until_parked, publish_events
from tests.support.patience import until
from tests.support.subscriptions import create_subscription

COUNT = "nakadi.zalando.org/subscription-max-event-send-count"
POLICY = "nakadi.zalando.org/subscription-unprocessable-event-policy"


def a_subscription_with_policy(api, policy, count=2):
    """A subscription with this policy to a new event type with this number of events."""
    name = create_event_type(api, a_business_definition())["name"]
    events = [{"metadata": {"eid": _eid(n), "occurred_at": "2026-11-21T12:00:00Z"}, "n": n} for n in range(5)]
    assert api.post(f"/event-types/{name}/events", json=events).status_code == 200
    return create_subscription(api, name, read_from="begin", annotations={COUNT: str(count), POLICY: policy})


def _eid(number):
    return f"70779f46-950d-4e48-9fca-{number:012d}"


def failed_attempt(open_consumer, subscription):
    """Read until the stream ends, without committing, and return the numbers in the first batch."""
    with open_consumer(subscription, batch_limit=3, commit_timeout=1, max_uncommitted_events=3) as opened:
        batch = opened.batch()
        assert opened.debug_at_the_end() == ["Commit timeout reached"]
    return [each["n"] for each in batch["events"]]


@pytest.mark.parametrize("policy", ["SKIP_EVENT", "DEAD_LETTER_QUEUE"])
def test_a_poisonous_event_goes(api, open_consumer, policy):
    """After an event was sent twice in a batch and twice alone without a commit, the broker drops it and delivers the
    others; under the policy DEAD_LETTER_QUEUE, a dead letter describes the event. (S254, S257, S258, S259, S260, S261,
    S265, S266, S268, S270, S271)
    """
    subscription = a_subscription_with_policy(api, policy)
    failed = [failed_attempt(open_consumer, subscription) for _ in range(4)]
    assert failed == [[0, 1, 2], [0, 1, 2], [0], [0]]
    last = open_consumer(subscription, batch_limit=3, batch_flush_timeout=1, max_uncommitted_events=10)
    batches = [_commit_next_batch(last) for _ in range(3)]
    assert batches == [[1], [2], [3, 4]]
    if policy == "DEAD_LETTER_QUEUE":
        until(lambda: read_dead_letters(api, subscription))
    else:
        assert read_dead_letters(api, subscription) == []


def _commit_next_batch(stream):
    batch = stream.batch()
    assert stream.commit(batch).status_code == 204
    return [each["n"] for each in batch["events"]]


def read_dead_letters(api, subscription):
    """The dead letters of a subscription."""
    mine = [
        each for each in own_events(api, "nakadi.dead.letter.queue") if each["subscription_id"] == subscription["id"]
    ]
    assert all(each["event"]["n"] == 0 and each["event"]["metadata"]["eid"] == _eid(0) for each in mine)
    return mine


def test_an_event_is_parked_and_redriven(api, open_consumer):
    """The broker parks an event with its key after it was sent twice in batches and twice alone without a commit. Other
    events are still delivered; a redrive sends the parked ones in order before later ones.
    """
    name = create_event_type(api, a_keyed_definition())["name"]
    subscription = create_subscription(api, name, read_from="begin", annotations=PARKING)
    publish_events(api, name, "a1", "b1", "a2")
    fail_until_parked(api, subscription, "a1")
    with open_consumer(subscription) as stream:
        assert [each["event"] for each in stream.consumed(1)] == ["b1"]
        first, second = wait_until_parked(api, subscription, 2)
        assert (first["failed_commits"], second["failed_commits"]) == (2, 0)
    target = f"/subscriptions/{subscription['id']}/parked-events"
    assert api.get(f"{target}/{first['id']}").json()["event"]["event"] == "a1"
    assert api.post(f"{target}/{first['id']}/redrive").status_code == 204
    publish_events(api, name, "a3")
    assert [each["event"] for each in open_consumer(subscription).consumed(3)] == ["a1", "a2", "a3"]
    wait_until_parked(api, subscription, 0)


def wait_until_parked(api, subscription, count):
    target = f"/subscriptions/{subscription['id']}/parked-events"
    until(lambda: len(api.get(target).json()["items"]) == count)
    return api.get(target).json()["items"]
