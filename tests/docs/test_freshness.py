"""The examples of docs/freshness.md work, and name what is there."""

import json
import re

import httpx
import pytest
import yaml

from nakadi.common.metrics import Metrics
from nakadi.local import Broker
from nakadi.model.objective import LagCause
from tests.support.api import create_event_type
from tests.support.openapi import validate
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE
from tests.support.subscriptions import create_subscription

PAGE = (ROOT / "docs" / "freshness.md").read_text()
[STATUS] = map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
RULES, SCALING = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
[REQUEST] = map(json.loads, re.findall(r"/objective -d '(.*?)'", PAGE, re.DOTALL))


@pytest.fixture(scope="module")
def api():
    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        yield client


def test_the_objective_is_set_as_the_page_says(api):
    """The request works, and the answer has the members that the page shows. (O2, O6, O9)"""
    subscription = create_subscription(api, create_event_type(api)["name"])
    place = f"/subscriptions/{subscription['id']}/objective"
    assert api.put(place, json=REQUEST).status_code == 200
    found = api.get(place).json()
    assert STATUS.keys() - found.keys() == {"slowest_partition"}
    assert [each.keys() for each in found["windows"]] == [each.keys() for each in STATUS["windows"]]
    validate({"$ref": "#/components/schemas/ObjectiveStatus"}, STATUS, "the example")


def test_each_cause_has_a_remedy():
    """The table has all causes. (O10)"""
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == {"cause", *LagCause}


def test_the_rule_names_metrics_that_are_there():
    """The names in the rule are those of metrics, or of rules before it."""
    rules = RULES["groups"][0]["rules"]
    names = {each.definition.name for each in Metrics().all} | {each.get("record") for each in rules}
    used = {name for each in rules for name in re.findall(r"nakadi[a-z0-9_:]+", each["expr"])}
    assert used - names == set()


def test_the_number_to_scale_by_is_read_as_keda_reads_it(api):
    """A path of members leads to a number, which is 0 while nothing waits: then KEDA needs no consumer. (O9)"""
    subscription = create_subscription(api, create_event_type(api)["name"], objective=REQUEST)
    [trigger] = SCALING["triggers"]
    answer = api.get(
        httpx.URL(trigger["metadata"]["url"].replace("0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11", subscription["id"])).path
    )
    assert answer.headers["content-type"].startswith("application/json")
    location = trigger["metadata"]["valueLocation"]
    assert [read_as_keda(each, location) for each in (answer.json(), STATUS)] == [0, STATUS["pressure"]]
    assert float(trigger["metadata"]["targetValue"]) > 0


def read_as_keda(answer, location):
    """Its scaler `metrics-api` follows a dotted path, and takes a number, or a text that is a quantity."""
    for name in location.split("."):
        answer = answer[name]
    assert isinstance(answer, int | float)
    assert not isinstance(answer, bool)
    return answer
