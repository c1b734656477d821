"""The example of docs/rehearsals.md works on a broker."""

import json
import re

import httpx
import pytest

from nakadi.local import Broker
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE

PAGE = (ROOT / "docs" / "rehearsals.md").read_text()
EVENT_TYPE, RESULT = map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
[REQUEST] = map(json.loads, re.findall(r"/rehearsals -d '(.*?)'", PAGE, re.DOTALL))
METADATA = {"eid": "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11", "occurred_at": "2026-11-21T12:00:00Z"}
CHOSEN_BY_BROKER = re.compile(r'"(id|\w+_at)":"[^"]+"')


@pytest.fixture(scope="module")
def api():
    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        assert client.post("/event-types", json=EVENT_TYPE).status_code == 201
        yield client


def without_ids_and_times(result):
    return json.loads(CHOSEN_BY_BROKER.sub(r'"\1":""', json.dumps(result, separators=(",", ":"))))


def test_the_result_is_the_one_on_the_page(api):
    """The page's request, on the events that the page shows, gives the result that the page shows. (H1, H6, H8)"""
    events = [{"order_number": "4711"}, *(each["event"] for each in RESULT["samples"])]
    published = api.post("/event-types/order.placed/events", json=[each | {"metadata": METADATA} for each in events])
    assert published.status_code == 200, published.text

    answer = api.post("/event-types/order.placed/schemas/rehearsals", json=REQUEST)

    assert answer.status_code == 200
    found = answer.json()
    for each in found["samples"]:
        assert each["event"].pop("metadata")["eid"] == METADATA["eid"]
    assert without_ids_and_times(found) == without_ids_and_times(RESULT)
    assert answer.headers["location"].endswith(f"/schemas/rehearsals/{found['id']}")
