"""`nakadi parked`."""

import pytest

from tests.support.api import create_event_type
from tests.support.builders import a_name
from tests.support.parking import PARKING, a_keyed_definition, give_up_on_the_next, publish_events


@pytest.fixture
def subscription_with_parked_event(run, api, broker):
    """The id of a subscription with one parked event, the first event with the key `a`."""
    event_type = create_event_type(api, a_keyed_definition())["name"]
    body = {"owning_application": a_name(), "event_types": [event_type], "read_from": "begin", "annotations": PARKING}
    subscription = api.post("/subscriptions", json=body).json()
    publish_events(api, event_type, "a1", "b1")
    give_up_on_the_next(broker.services, api, subscription)
    assert [each["event"] for each in run("consume", subscription["id"], "--no-follow").lines] == ["b1"]
    return subscription


def park_event(run, subscription):
    return [each["id"] for each in run("parked", "list", subscription["id"], "-o", "json").json]


def test_parked_events_are_listed_and_shown(run, subscription_with_parked_event):
    """The list has the id, key and state of each event, and can be filtered; `show` prints the event as it was
    published.
    """
    [event] = park_event(run, subscription_with_parked_event)

    assert run("parked", "list", subscription_with_parked_event["id"], "--key", "none", "-o", "json").json == []
    assert event in run("parked", "list", subscription_with_parked_event["id"], "--key", "a").out
    assert (
        run("parked", "show", subscription_with_parked_event["id"], event, "-o", "json").json["event"]["event"] == "a1"
    )
    assert run("parked", "show", subscription_with_parked_event["id"], event.replace("0001-", "0009-")).code == 5


def test_a_parked_event_is_skipped(run, subscription_with_parked_event):
    """`skip` removes parked events."""
    [event] = park_event(run, subscription_with_parked_event)

    assert run("parked", "skip", subscription_with_parked_event["id"], event).code == 0
    assert park_event(run, subscription_with_parked_event) == []


@pytest.mark.parametrize("everything", [True, False])
def test_parked_events_are_sent_again(run, subscription_with_parked_event, everything):
    """`redrive` lets the next stream send parked events again, either the events with the given ids or all."""
    [event] = park_event(run, subscription_with_parked_event)

    done = run("parked", "redrive", subscription_with_parked_event["id"], *(["--all"] if everything else [event]))
    found = run("consume", subscription_with_parked_event["id"], "--no-follow").lines

    assert done.code == 0, done.err
    assert [each["event"] for each in found] == ["a1"]
    assert park_event(run, subscription_with_parked_event) == []


def test_redriving_nothing_is_a_mistake(run, subscription_with_parked_event):
    """`redrive` is refused if it neither names events nor selects all."""
    assert run("parked", "redrive", subscription_with_parked_event["id"]).code == 2
    assert run("parked", "redrive", subscription_with_parked_event["id"], "a:0:1", "--all").code == 2
