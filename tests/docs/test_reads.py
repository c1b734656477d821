"""The examples of docs/reads.md work, in their order, on a broker."""

import json
import re

import httpx
import pytest

from nakadi.local import Broker
from tests.support.consumer import Consumer
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE

PAGE = (ROOT / "docs" / "reads.md").read_text()
EVENT_TYPE, EVENT, CUT, PROBLEM, READERS = map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
[REQUEST] = map(json.loads, re.findall(r"/subscriptions -d '(.*?)'", PAGE, re.DOTALL))
EVENTS_PATH = "/event-types/order.placed/events"


@pytest.fixture(scope="module")
def api():
    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        assert client.post("/event-types", json=EVENT_TYPE).status_code == 201
        yield client


@pytest.fixture(scope="module")
def subscription(api):
    answer = api.post("/subscriptions", json=REQUEST | {"read_from": "begin"})
    assert answer.status_code == 201, answer.text
    return answer.json()


def as_on_page(found, subscription):
    """The result with the page's id in place of its own."""
    return json.loads(json.dumps(found).replace(subscription["id"], READERS["readers"][0]["subscription_id"]))


def test_the_subscription_gets_what_the_page_says(api, subscription):
    """The subscription gets the event with only the members that the page shows, and its metadata. (D11)"""
    assert api.post(EVENTS_PATH, json=[EVENT]).status_code == 200
    with Consumer(api, subscription) as stream:
        [found] = stream.batch()["events"]
    assert found.pop("metadata").items() >= EVENT["metadata"].items()
    assert found == CUT


def test_the_schema_is_refused_as_the_page_says(api, subscription):
    """The answer is the Problem that the page shows. (D5)"""
    schema = json.loads(EVENT_TYPE["schema"]["schema"])
    schema["properties"]["customer"]["properties"]["id"] = {"type": "number"}
    path = "/event-types/order.placed/schemas"
    draft = {"type": "json_schema", "schema": json.dumps(schema)}
    assert as_on_page(api.post(path, json=draft).json(), subscription) == PROBLEM
    assert api.post(path, json=draft, params={"force": subscription["id"], "dry_run": "true"}).json()["accepted"]


def test_the_readers_are_those_on_the_page(api, subscription):
    """The list of the event type's readers is the one on the page. (D13)"""
    assert as_on_page(api.get("/event-types/order.placed/readers").json(), subscription) == READERS
