"""Figures (KPIs): who published, streamed and requested how much, recorded in the broker's own event types."""

import pytest

from tests.support.api import create_event_type
from tests.support.consumer import Consumer, soon
from tests.support.own_events import own_events
from tests.support.subscriptions import create_subscription

PUBLISHED, STREAMED, ASKED = "nakadi.batch.published", "nakadi.data.streamed", "nakadi.access.log"


@pytest.fixture(autouse=True)
def figures_on(api, switch_on):
    switch_on("kpi_collection")
    switch_on("access_log_enabled")
    # Their event types exist at once; a process that found the feature switched off checks again a little later.
    assert all(api.get(f"/event-types/{each}").is_success for each in (PUBLISHED, STREAMED, ASKED))
    name = create_event_type(api)["name"]
    soon(lambda: publish(api, name) and figures_of(api, PUBLISHED, name), seconds=90)
    return name


def publish(api, name, count=1):
    return api.post(f"/event-types/{name}/events", json=[{"n": n} for n in range(count)]).is_success


def figures_of(api, figures, name):
    return [each for each in own_events(api, figures) if each["event_type"] == name]


def test_what_was_published_is_reported(api, figures_on):
    """Every stored batch, and no other, is recorded; batches of figures are not recorded. (P153, R250)"""
    assert api.post(f"/event-types/{figures_on}/events", content=b"[{]").status_code == 400

    events = figures_of(api, PUBLISHED, figures_on)

    assert {(each["number_of_events"], each["batch_size"], each["app"]) for each in events} == {
        (1, len(b'[{"n":0}]'), "unauthenticated")
    }
    assert {each["event_type"] for each in own_events(api, PUBLISHED)}.isdisjoint({PUBLISHED, STREAMED, ASKED})


def test_what_was_streamed_is_reported(api):
    """A low-level stream and a stream of a subscription each record at their end how much they have sent.
    (L70, S309)
    """
    name = create_event_type(api)["name"]
    assert publish(api, name, 5)
    cursors = {"X-Nakadi-Cursors": '[{"partition":"0","offset":"BEGIN"}]'}
    assert api.get(f"/event-types/{name}/events?batch_limit=2&stream_limit=4", headers=cursors).is_success
    subscription = create_subscription(api, name, read_from="begin")
    with Consumer(api, subscription, batch_limit=5, stream_limit=5) as stream:
        stream.commit(stream.batch())

    soon(lambda: len(figures_of(api, STREAMED, name)) == 2, seconds=90)

    low, high = sorted(figures_of(api, STREAMED, name), key=lambda each: each["api"], reverse=True)
    assert (low["api"], low["subscription"], low["number_of_events"], low["batches_streamed"]) == ("lola", None, 4, 2)
    assert (high["api"], high["subscription"], high["number_of_events"]) == ("hila", subscription["id"], 5)
    assert low["bytes_streamed"] > 0


def test_requests_are_reported(api):
    """Each request is recorded with its operation and its answer. (R228, R250)"""
    path = f"/event-types/{create_event_type(api)['name']}"
    api.get(f"{path}?a=b", headers={"user-agent": "test/1"})

    soon(lambda: publish(api, path.rpartition("/")[2]) and request_figures(api, path), seconds=90)

    [request] = request_figures(api, path)
    assert (request["method"], request["query"], request["user_agent"]) == ("GET", "?a=b", "test/1")
    assert (request["status_code"], request["app"], request["request_length"]) == (200, "-", 0)
    assert request["response_length"] > 100


def request_figures(api, path):
    # Send another request, because on AWS a function writes the gathered figures at a later invocation.
    api.get(path)
    return [each for each in own_events(api, ASKED) if each["path"] == path and each["query"]]


def test_reading_figures_makes_none(api, figures_on):
    """Requests that read figures are not recorded, because their readers would otherwise never finish. (R250)"""
    figures, others = (create_subscription(api, name, read_from="begin") for name in (PUBLISHED, figures_on))
    for subscription in (figures, others):
        with Consumer(api, subscription, batch_limit=1, stream_limit=1) as stream:
            assert stream.commit(stream.batch()).status_code in (200, 204)
    api.get(f"/event-types/{ASKED}")

    def paths_in_figures():
        # Send another request, because on AWS a function writes the gathered figures at a later invocation.
        api.get(f"/subscriptions/{others['id']}")
        return {each["path"] for each in own_events(api, ASKED)}

    of_others = {f"/subscriptions/{others['id']}/{what}" for what in ("events", "cursors")}
    soon(lambda: paths_in_figures() >= of_others, seconds=90)

    of_figures = {f"/subscriptions/{figures['id']}/{what}" for what in ("events", "cursors")}
    assert paths_in_figures().isdisjoint({*of_figures, f"/event-types/{ASKED}"})
