"""The examples of docs/avro.md work."""

import json
import re

import httpx
import pytest

from nakadi.local import Broker
from tests.support.avro import a_batch, an_envelope, encode
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE

PAGE = (ROOT / "docs" / "avro.md").read_text()
[EVENT_TYPE] = map(json.loads, re.findall(r"/event-types .*? -d '(.*?)'", PAGE, re.DOTALL))
[BATCH_SCHEMA] = re.findall(r"curl localhost:8080(/avro-schemas/\S+)", PAGE)


@pytest.fixture(scope="module")
def api():
    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        yield client


def test_an_event_type_gets_events_in_avro_as_the_page_says(api):
    """The page's request creates the event type, and the broker accepts a batch of the schema that the page names.
    (P145, R248)
    """
    assert api.post("/event-types", json=EVENT_TYPE).status_code == 201
    assert "fields" in api.get(BATCH_SCHEMA).json()["avro_schema"]
    payload = encode(json.loads(EVENT_TYPE["schema"]["schema"]), {"id": "4711"})
    answer = api.post(
        f"/event-types/{EVENT_TYPE['name']}/events",
        content=a_batch(an_envelope(EVENT_TYPE["name"], payload)),
        headers={"content-type": "application/avro-binary"},
    )
    assert answer.status_code == 200, answer.text
