"""The checks of a subscription before it is created."""

import re

import pytest

from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.outcomes import Violations
from nakadi.model.subscription import ReadFrom, SubscriptionDraft


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"owning_application": None}, "owning_application"),
        ({"owning_application": ""}, "owning_application"),
        ({"consumer_group": None}, "consumer_group"),
        ({"event_types": None}, "event_types"),
        ({"event_types": ()}, "event_types"),
        ({"read_from": None}, "read_from"),
        ({"labels": {"": "x"}}, "labels"),
    ],
)
def test_a_draft_with_a_bad_field_makes_no_subscription(house, changes, field):
    """A missing or malformed field is reported before anything is looked up or stored. (S10, S14, S15)"""
    fields = {
        "owning_application": "shop",
        "event_types": (house.event_type(),),
        "consumer_group": "default",
        "read_from": ReadFrom.END,
    }
    with pytest.raises(Violations) as refusal:
        house.broker.subscription_requests.creation.create(SubscriptionDraft(**fields | changes), UNAUTHENTICATED)

    assert {re.split(r"[.\[]", each.path)[0] for each in refusal.value.violations} == {field}
    assert house.api.get("/subscriptions").json()["items"] == []
