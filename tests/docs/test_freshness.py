"""The examples of docs/freshness.md work, and name existing metrics and settings."""

import json
import re

import boto3
import httpx
import pytest
import yaml
from moto import mock_aws

from nakadi.common.metrics import Metrics
from nakadi.event_types.table_objective import TableObjective, table_objective
from nakadi.local import Broker
from nakadi.model.objective import LagCause
from tests.support.api import a_definition, create_event_type
from tests.support.aws import REGION
from tests.support.lazy_modules import LazyModule
from tests.support.openapi import validate
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE
from tests.support.subscriptions import create_subscription

cdk = LazyModule("aws_cdk")

PAGE = (ROOT / "docs" / "freshness.md").read_text()
STATUS, ANNOTATED, TABLE_STATUS = map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
RULES, SCALING = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
[SCALED_TASKS] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
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


def test_the_objective_of_a_table_is_stated_as_the_page_says(api):
    """The broker knows the annotation, and the example has the members of an answer. (T13, T15)"""
    made = create_event_type(api, a_definition(**ANNOTATED))
    assert table_objective(made["annotations"]) == TableObjective(
        TABLE_STATUS["percent"], TABLE_STATUS["within_seconds"]
    )
    assert "warnings" not in made
    validate({"$ref": "#/components/schemas/TableObjectiveStatus"}, TABLE_STATUS, "the example")


def test_consumers_on_aws_are_scaled_as_the_page_says():
    """Application Auto Scaling accepts the policy of the example, on a metric that housekeeping reports. (O13)"""
    stack = cdk.Stack(cdk.App(), "Consumers")
    cluster = cdk.aws_ecs.Cluster(stack, "Cluster")
    task = cdk.aws_ecs.FargateTaskDefinition(stack, "Task")
    task.add_container("consumer", image=cdk.aws_ecs.ContainerImage.from_registry("consumer"))
    service = cdk.aws_ecs.FargateService(stack, "Service", cluster=cluster, task_definition=task)
    exec(SCALED_TASKS, {"service": service})  # runs the page's example
    template = cdk.assertions.Template.from_stack(stack).to_json()["Resources"].values()
    [policy] = [each["Properties"] for each in template if each["Type"].endswith("::ScalingPolicy")]
    tracking = policy["TargetTrackingScalingPolicyConfiguration"]
    [shown, filled] = tracking["CustomizedMetricSpecification"]["Metrics"]
    assert shown["MetricStat"]["Metric"] == {
        "Namespace": "nakadi-live",
        "MetricName": "SubscriptionPressure",
        "Dimensions": [
            {"Name": "service", "Value": "housekeeping"},
            {"Name": "subscription", "Value": "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11"},
        ],
    }
    assert filled["Expression"] == f"FILL({shown['Id']}, REPEAT)"
    with mock_aws():
        boto3.client("ecs", REGION).create_cluster(clusterName="c")
        boto3.client("ecs", REGION).register_task_definition(
            family="t", containerDefinitions=[{"name": "c", "image": "c", "memory": 128}]
        )
        boto3.client("ecs", REGION).create_service(cluster="c", serviceName="s", taskDefinition="t", desiredCount=1)
        place = {
            "ServiceNamespace": "ecs",
            "ResourceId": "service/c/s",
            "ScalableDimension": "ecs:service:DesiredCount",
        }
        autoscaling = boto3.client("application-autoscaling", REGION)
        autoscaling.register_scalable_target(MinCapacity=1, MaxCapacity=4, **place)
        autoscaling.put_scaling_policy(
            PolicyName=policy["PolicyName"],
            PolicyType=policy["PolicyType"],
            TargetTrackingScalingPolicyConfiguration=tracking,
            **place,
        )
        [known] = autoscaling.describe_scaling_policies(ServiceNamespace="ecs")["ScalingPolicies"]
    assert known["TargetTrackingScalingPolicyConfiguration"] == tracking


def test_each_cause_has_a_remedy():
    """The page's table has a row for each cause of lag, and no others. (O10)"""
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == {"cause", *LagCause}


def test_the_rule_names_metrics_that_are_there():
    """The recording rules name only existing metrics and earlier rules."""
    rules = RULES["groups"][0]["rules"]
    names = {each.definition.name for each in Metrics().all} | {each.get("record") for each in rules}
    used = {name for each in rules for name in re.findall(r"nakadi[a-z0-9_:]+", each["expr"])}
    assert used - names == set()


def test_the_number_to_scale_by_is_read_as_keda_reads_it(api):
    """KEDA finds a number at the page's path in the answer; it is 0 while no events wait, so KEDA then needs no
    consumer. (O9)
    """
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
    """Read a value as KEDA's scaler `metrics-api` does: at a dotted path, a number or a text with a quantity."""
    for name in location.split("."):
        answer = answer[name]
    assert isinstance(answer, int | float)
    assert not isinstance(answer, bool)
    return answer
