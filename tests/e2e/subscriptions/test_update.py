"""PUT /subscriptions/{id}."""

import pytest

from tests.support.api import attributes, problem, violations
from tests.support.subscriptions import a_subscription_authorization, change_request, create_subscription


def put(api, subscription, **changes):
    return api.put(f"/subscriptions/{subscription['id']}", json=change_request(subscription, **changes))


def get_subscription(api, subscription):
    return api.get(f"/subscriptions/{subscription['id']}").json()


def test_authorization_annotations_and_labels_change(api):
    """Authorization, annotations and labels are replaced, the time of the last change moves, and all else stays
    unchanged. (S63, S66, S69, S70)
    """
    subscription = create_subscription(api, annotations={"a": "1"})
    answer = put(
        api,
        subscription,
        authorization=a_subscription_authorization(),
        annotations={"b": "2"},
        labels={"c": "3"},
        id="mine",
    )
    assert (answer.status_code, answer.content) == (204, b"")
    found = get_subscription(api, subscription)
    assert found["updated_at"] > subscription["updated_at"]
    assert found == subscription | {
        "authorization": a_subscription_authorization(),
        "annotations": {"b": "2"},
        "labels": {"c": "3"},
        "updated_at": found["updated_at"],
    }


@pytest.mark.parametrize("given", [{}, {"annotations": None, "labels": None}])
def test_annotations_and_labels_that_are_left_out_stay(api, given):
    """Missing or null annotations and labels stay; an empty map clears them. (S67)"""
    subscription = create_subscription(api, annotations={"a": "1"}, labels={"b": "2"})
    assert put(api, subscription, **given).status_code == 204
    assert get_subscription(api, subscription)["annotations"] == {"a": "1"}
    assert put(api, subscription, annotations={}, labels={}).status_code == 204
    assert (get_subscription(api, subscription)["annotations"], get_subscription(api, subscription)["labels"]) == (
        {},
        {},
    )


OTHER = {
    "consumer_group": "another",
    "event_types": ["another"],
    "owning_application": "another",
    "read_from": "begin",
    "initial_cursors": [{"event_type": "a", "partition": "0", "offset": "BEGIN"}],
}
TOLD = (
    "subscription consumer group",
    "subscription event types",
    "owning application",
    "read from",
    "initial cursors",
)


@pytest.mark.parametrize("first", range(5))
def test_what_is_fixed_stays(api, first):
    """Changes of fixed members are reported one at a time, in a fixed order. (S64)"""
    subscription = create_subscription(api)
    changes = dict(list(OTHER.items())[first:])
    assert problem(put(api, subscription, **changes), 422) == f"Not allowed to change {TOLD[first]}"
    assert get_subscription(api, subscription) == subscription


@pytest.mark.parametrize(
    ("field", "value", "detail"),
    [
        ("consumer_group", "special", "Not allowed to change subscription consumer group"),
        ("read_from", "begin", "Not allowed to change read from"),
        ("initial_cursors", OTHER["initial_cursors"], "Not allowed to change initial cursors"),
    ],
)
def test_what_is_left_out_stands_for_its_default(api, field, value, detail):
    """A field that is left out is compared as its default. (S65)"""
    subscription = create_subscription(api, **{field: value})
    body = change_request(subscription)
    del body[field]
    assert problem(api.put(f"/subscriptions/{subscription['id']}", json=body), 422) == detail


def test_event_types_are_compared_as_a_set(api):
    """The same event types in another order are no change. (S6, S64)"""
    subscription = create_subscription(api)
    assert put(api, subscription, event_types=subscription["event_types"] * 2).status_code == 204


def test_authorization_cannot_be_removed(api):
    """Existing authorization lists can be changed, but not removed. (S68, R260)"""
    subscription = create_subscription(api, authorization=a_subscription_authorization())
    for given in ({}, {"authorization": None}):
        assert problem(put(api, subscription, **given), 422) == (
            "Changing authorization object to `null` is not possible due to existing one"
        )


def test_duplicates_are_refused(api):
    """A list has an attribute only once, after an update too. (S32, S63)"""
    subscription = create_subscription(api)
    twice = a_subscription_authorization() | {"admins": attributes("ann", "ann")}
    assert "contains duplicated attribute(s): user:ann" in problem(put(api, subscription, authorization=twice), 422)


def test_fields_are_checked_first(api, switch_on):
    """The body is checked before read-only mode, read-only mode before mandatory authorization, and this before the id.
    (S63, S251, S307, R261)"""
    switch_on("force_subscription_authz")
    unknown = {"id": "unknown", **OTHER}
    assert problem(put(api, unknown), 422) == "Authorization section is mandatory"
    switch_on("disable_db_write_operations")
    assert problem(put(api, unknown), 503) == "Database is currently in read-only mode"
    counted = {"nakadi.zalando.org/subscription-max-event-send-count": "x"}
    assert len(violations(put(api, unknown, annotations=counted))) == 1
    assert (
        api.put("/subscriptions/unknown", content="{", headers={"content-type": "application/json"}).status_code == 400
    )


def test_what_does_not_exist_cannot_be_changed(api):
    """An unknown id of any form gets 404. (S60, S63)"""
    answer = put(api, {"id": "not-even-a-uuid", **OTHER})
    assert problem(answer, 404) == 'Subscription with id "not-even-a-uuid" does not exist'


def test_changes_are_seen_at_once(api):
    """After a change of a subscription, streams, commits and statistics use its new state at once. (S62)

    No process uses an outdated copy for minutes."""
    subscription = create_subscription(api)
    url = f"/subscriptions/{subscription['id']}"
    assert api.get(f"{url}/cursors").status_code == 200
    assert put(api, subscription, labels={"a": "b"}).status_code == 204
    assert get_subscription(api, subscription)["labels"] == {"a": "b"}
    assert api.delete(url).status_code == 204
    for path in ("", "/cursors", "/stats"):
        assert api.get(url + path).status_code == 404
