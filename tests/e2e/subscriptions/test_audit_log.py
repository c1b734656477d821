"""The broker's records about subscriptions in its own event types."""

from tests.support.api import create_event_type
from tests.support.own_events import own_events
from tests.support.subscriptions import a_cursor, a_request, change_request, create_subscription, offset_text, reset


def read_audit_events(api, subscription):
    events = [each for each in own_events(api, "nakadi.audit.log") if each["data"]["resource_id"] == subscription["id"]]
    return [(each["data_type"], each["data_op"], each["data"]) for each in events]


def test_changes_of_subscriptions_are_audited(api, switch_on):
    """Creation, change and deletion of a subscription are reported with the state before and after. (S310, R251)"""
    switch_on("audit_log_collection")
    subscription = create_subscription(api)
    url = f"/subscriptions/{subscription['id']}"
    api.put(url, json=change_request(subscription, labels={"a": "b"}))
    api.delete(url)
    creation, change, deletion = read_audit_events(api, subscription)
    assert creation[:2] == ("subscription", "C")
    assert creation[2]["new_object"] == subscription
    assert change[:2] == ("subscription", "U")
    assert (change[2]["previous_object"]["labels"], change[2]["new_object"]["labels"]) == ({}, {"a": "b"})
    assert deletion[:2] == ("subscription", "D")
    assert "new_object" not in deletion[2]


def test_resets_are_audited(api, switch_on):
    """A reset of cursors is reported with the old and the new positions. (S310, R251)"""
    name = create_event_type(api)["name"]
    api.post(f"/event-types/{name}/events", json=[{}, {}])
    subscription = create_subscription(api, name)
    reset(api, subscription)
    switch_on("audit_log_collection")
    reset(api, subscription, a_cursor(name, "0", 0))
    [(kind, operation, data)] = read_audit_events(api, subscription)
    assert (kind, operation) == ("cursors", "U")
    cursor = {"event_type": name, "partition": "0"}
    assert data["previous_object"] == [cursor | {"offset": offset_text(1)}]
    assert data["new_object"] == [cursor | {"offset": offset_text(0)}]


def test_what_changes_nothing_is_not_reported(api, switch_on):
    """A request for an existing subscription, an empty reset and a refused request are not recorded. (S311)"""
    name = create_event_type(api)["name"]
    request = a_request(name)
    subscription = api.post("/subscriptions", json=request).json()
    for feature in ("audit_log_collection", "kpi_collection"):
        switch_on(feature)
    assert api.post("/subscriptions", json=request).status_code == 200
    assert reset(api, subscription).status_code == 204
    assert reset(api, subscription, a_cursor(name, "0", 7)).status_code == 422
    assert read_audit_events(api, subscription) == []
    assert count_audit_events(api, subscription) == []


def count_audit_events(api, subscription):
    events = own_events(api, "nakadi.subscription.log")
    return [each["status"] for each in events if each["subscription_id"] == subscription["id"]]


def test_subscriptions_that_come_and_go_are_counted(api, switch_on):
    """While figures are collected, creation and deletion are recorded, but changes are not. (S309)"""
    switch_on("kpi_collection")
    subscription = create_subscription(api)
    api.put(f"/subscriptions/{subscription['id']}", json=change_request(subscription, labels={"a": "b"}))
    api.delete(f"/subscriptions/{subscription['id']}")
    assert count_audit_events(api, subscription) == ["created", "deleted"]
