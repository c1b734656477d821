"""The examples of docs/concepts.md work, in their order, on a broker."""

import json
import re

import httpx
import pytest

from nakadi.local import Broker
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE

PAGE = (ROOT / "docs" / "concepts.md").read_text()
JSON = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
REQUESTS = re.findall(r"```http\n(.*?)```", PAGE, re.DOTALL)
BODIES = [json.loads(body) for body in re.findall(r"-d '(.*?)'", PAGE)]


def first_example_with(*members):
    """The first JSON example on the page with these members."""
    return next(each for each in JSON if isinstance(each, dict) and set(members) <= set(each))


def send(api, request, more=""):
    """Send an example request of the page, with further parameters."""
    head, _, body = request.partition("\n\n")
    line, *headers = head.strip().splitlines()
    method, path = line.split()
    return api.request(method, path + more, headers=dict(each.split(": ", 1) for each in headers), content=body)


@pytest.fixture(scope="module")
def api():
    """A client of a broker with the page's event type, and with the page's events in it."""
    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        assert client.post("/event-types", json=first_example_with("name", "schema")).status_code == 201
        assert (
            client.post("/event-types/order.created/events", json=[first_example_with("order_number")]).status_code
            == 200
        )
        assert send(client, REQUESTS[1]).status_code == 200
        yield client


def test_the_page_has_three_requests():
    """The tests below use the requests in this order; a further request on the page needs its own test."""
    assert [each.split()[:2] for each in REQUESTS] == [
        ["POST", "/event-types/order.created/cursors-lag"],
        ["POST", "/event-types/order.created/events"],
        ["GET", "/event-types/order.created/events?batch_limit=10&batch_flush_timeout=5"],
    ]


def test_cursors_are_asked_for_their_lag(api):
    """The answer to the page's request has the members and the form of offsets that the page shows. (C51)"""
    offset = first_example_with("partition", "offset")
    answer = api.post("/event-types/order.created/cursors-lag", json=[{**offset, "offset": "BEGIN"}]).json()
    [shown] = next(each for each in JSON if isinstance(each, list))

    assert [list(each) for each in answer] == [list(shown)]
    assert [each["unconsumed_events"] for each in answer] == [3]
    assert len(answer[0]["newest_available_offset"]) == len(shown["newest_available_offset"])


def test_the_events_are_streamed(api):
    """The stream of the page sends lines as the page shows them."""
    # Limited to the three existing events instead of ten, so the stream ends with them.
    request = REQUESTS[2].replace("batch_limit=10", "batch_limit=3")
    lines = send(api, request, "&stream_limit=3").text.splitlines()
    shown = first_example_with("cursor", "events")

    assert set(json.loads(lines[0])) == set(shown)
    assert [event["order_number"] for event in json.loads(lines[0])["events"]][-2:] == ["A-17", "A-18"]


def test_a_subscription_is_created_with_the_policy(api):
    """The request for a subscription works, and the broker knows the two annotations. (S322)"""
    annotations = next(each for each in JSON if isinstance(each, dict) and all("/" in name for name in each))
    answer = api.post("/subscriptions", json=BODIES[0] | {"annotations": annotations})

    assert answer.status_code == 201
    assert "warnings" not in answer.json()
