"""`nakadi parked`."""

import pytest

from tests.support.api import create_event_type
from tests.support.builders import a_name
from tests.support.parking import PARKING, a_keyed_definition, give_up_on_the_next, publish_events


@pytest.fixture
def parking(run, api, broker):
    """A subscription with one parked event, the first of key a."""
    event_type = create_event_type(api, a_keyed_definition())["name"]
    body = {"owning_application": a_name(), "event_types": [event_type], "read_from": "begin", "annotations": PARKING}
    subscription = api.post("/subscriptions", json=body).json()
    publish_events(api, event_type, "a1", "b1")
    give_up_on_the_next(broker.services, api, subscription)
    assert [each["event"] for each in run("consume", subscription["id"], "--no-follow").lines] == ["b1"]
    return subscription


def park_event(run, subscription):
    return [each["id"] for each in run("parked", "list", subscription["id"], "-o", "json").json]


def test_parked_events_are_listed_and_shown(run, parking):
    """The list has id, key and state, and can be narrowed; `show` has the event as it was published."""
    [event] = park_event(run, parking)

    assert run("parked", "list", parking["id"], "--key", "none", "-o", "json").json == []
    assert event in run("parked", "list", parking["id"], "--key", "a").out
    assert run("parked", "show", parking["id"], event, "-o", "json").json["event"]["event"] == "a1"
    assert run("parked", "show", parking["id"], event.replace("0001-", "0009-")).code == 5


def test_a_parked_event_is_skipped(run, parking):
    """`skip` removes parked events."""
    [event] = park_event(run, parking)

    assert run("parked", "skip", parking["id"], event).code == 0
    assert park_event(run, parking) == []


@pytest.mark.parametrize("everything", [True, False])
def test_parked_events_are_sent_again(run, parking, everything):
    """`redrive` has events sent to the next stream, by their ids or all of them."""
    [event] = park_event(run, parking)

    done = run("parked", "redrive", parking["id"], *(["--all"] if everything else [event]))
    found = run("consume", parking["id"], "--no-follow").lines

    assert done.code == 0, done.err
    assert [each["event"] for each in found] == ["a1"]
    assert park_event(run, parking) == []


def test_redriving_nothing_is_a_mistake(run, parking):
    """A command names events or selects all."""
    assert run("parked", "redrive", parking["id"]).code == 2
    assert run("parked", "redrive", parking["id"], "a:0:1", "--all").code == 2
