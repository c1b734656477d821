"""Objectives: how soon a subscription's events should be consumed, and how often they are."""

import pytest

from nakadi.subscriptions.stream import streams
from tests.support.api import create_event_type, problem, violations
from tests.support.patience import until
from tests.support.subscriptions import (
    a_request,
    a_subscription_authorization,
    change_request,
    create_subscription,
    publish,
)

OBJECTIVE = {"percent": 99, "within_seconds": 30}


def objective_url(subscription):
    return f"/subscriptions/{subscription['id']}/objective"


def test_an_objective_is_set_shown_and_removed(api):
    """An objective is set with the subscription or later; a change of the subscription does not change it. (O1, O2)"""
    subscription = create_subscription(api, objective=OBJECTIVE)
    assert subscription["objective"] == OBJECTIVE | {"set_at": subscription["created_at"]}
    assert api.put(f"/subscriptions/{subscription['id']}", json=change_request(subscription)).status_code == 204
    assert api.get(f"/subscriptions/{subscription['id']}").json()["objective"] == subscription["objective"]
    changed = api.put(objective_url(subscription), json={"percent": 99.9, "within_seconds": 5})
    assert changed.status_code == 200
    assert (changed.json()["percent"], changed.json()["within_seconds"]) == (99.9, 5)
    for _ in range(2):
        assert api.delete(objective_url(subscription)).status_code == 204
    assert "objective" not in api.get(f"/subscriptions/{subscription['id']}").json()
    assert problem(api.get(objective_url(subscription)), 404) == "The subscription has no objective"


def test_the_same_objective_goes_on(api):
    """If a client sets the same objective again, its counts continue. (O4)"""
    subscription = create_subscription(api, objective=OBJECTIVE)
    assert api.put(objective_url(subscription), json=OBJECTIVE).json() == subscription["objective"]
    other = api.put(objective_url(subscription), json=OBJECTIVE | {"percent": 98}).json()
    assert other["set_at"] > subscription["objective"]["set_at"]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"percent": 0}, "percent"),
        ({"percent": 100}, "percent"),
        ({"percent": None}, "percent"),
        ({"within_seconds": 0}, "within_seconds"),
        ({"within_seconds": 604801}, "within_seconds"),
        ({"within_seconds": None}, "within_seconds"),
    ],
)
def test_an_objective_has_to_be_possible(api, given, path):
    """An objective must not be 100% or 0% of the events, and its time is at most a week. (O1)"""
    subscription = create_subscription(api)
    assert refused_fields(api.put(objective_url(subscription), json=OBJECTIVE | given)) == [path]
    request = a_request(create_event_type(api)["name"], objective=OBJECTIVE | given)
    assert refused_fields(api.post("/subscriptions", json=request)) == [f"objective.{path}"]


def refused_fields(answer):
    return [each.split('"')[1] for each in violations(answer)]


@pytest.mark.parametrize("percent", ['"99"', "true", "[]", "1e300"])
def test_a_percentage_is_a_number(api, percent):
    """A percentage that is a string, or a number that no calculation could use, is refused. (O1)"""
    body = f'{{"within_seconds": 1, "percent": {percent}}}'
    answer = api.put(
        objective_url(create_subscription(api)), content=body, headers={"Content-Type": "application/json"}
    )
    assert "Cannot read a number from" in problem(answer, 400)


def test_commits_are_counted_against_the_objective(api, open_consumer, monkeypatch):
    """Statistics have the events that were consumed in time once the process has reported them, which it does when its
    last stream of the subscription ends. (O3, O5, O6)"""
    # Brokers in this process make no other report.
    monkeypatch.setattr(streams, "REPORT_INTERVAL_SECONDS", 3600)
    name = create_event_type(api)["name"]
    subscription = create_subscription(api, name, objective=OBJECTIVE)
    stream = open_consumer(subscription, batch_limit=5)
    publish(api, name, 5)
    batch = stream.batch()
    assert stream.commit(batch).status_code in (200, 204)
    stream.close()
    until(lambda: [each["events"] for each in objective_windows(api, subscription)] == [5, 5])
    assert [(each["minutes"], each["late"], each["burn_rate"]) for each in objective_windows(api, subscription)] == [
        (5, 0, 0),
        (60, 0, 0),
    ]
    status = api.get(objective_url(subscription)).json()
    assert (status["pressure"], "slowest_partition" in status) == (0, False)


def objective_windows(api, subscription):
    return api.get(f"/subscriptions/{subscription['id']}/stats").json()["objective"]["windows"]


def test_who_may_see_and_who_may_set_an_objective(broker_with_tokens, ann_client):
    """Seeing an objective needs VIEW on the subscription; changing it needs ADMIN. (O2)"""
    subscription = create_subscription(
        ann_client, authorization=a_subscription_authorization("ann", "bob"), objective=OBJECTIVE
    )
    denied = f"subscription:{subscription['id']} denied"
    with broker_with_tokens.client("bob") as bob, broker_with_tokens.client("carl") as carl:
        assert bob.get(objective_url(subscription)).status_code == 200
        assert problem(bob.put(objective_url(subscription), json=OBJECTIVE), 403) == f"Access on ADMIN {denied}"
        assert problem(bob.delete(objective_url(subscription)), 403) == f"Access on ADMIN {denied}"
        assert problem(carl.get(objective_url(subscription)), 403) == f"Access on VIEW {denied}"
    assert ann_client.put(objective_url(subscription), json=OBJECTIVE).status_code == 200
