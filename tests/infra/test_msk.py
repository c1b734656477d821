"""A deployment with its events in MSK: a cluster, its clients, and the log indexer, which a schedule starts."""

import json
from datetime import timedelta

import pytest

from infra.cost.load import Deployment as Counted
from infra.cost.standing import count_standing_resources
from nakadi.app.settings import Settings
from nakadi_cdk.context import Context
from nakadi_cdk.needs import NEEDS, find_needs
from tests.infra.conftest import NOT_LOOKED_AT
from tests.infra.test_context import MSK
from tests.infra.test_observability import ALARMS, OF_A_STREAM, OF_BROKERS
from tests.support.lazy_modules import LazyModule
from tests.support.msk import MANAGE, READ, REMOVE, WRITE
from tests.support.templates import REGION, as_list, text

cdk = LazyModule("aws_cdk")
assertions = LazyModule("aws_cdk.assertions")
review = LazyModule("infra.review")
stacks = LazyModule("infra.stack")
functions = LazyModule("nakadi_cdk.functions")

OUTSIDE = {"authorizer"}
"""The functions that need no events."""

MAY = {
    "publish": WRITE,
    "event_types": MANAGE,
    "cursors": READ,
    "subscriptions": MANAGE,
    "admin": MANAGE,
    "housekeeping": MANAGE,
    "log_indexer": REMOVE,
    "authorizer": set(),
}
ZONES = {
    "vpc_id": "vpc-0123456789abcdef0",
    "vpc_subnets": "subnet-1,subnet-2,subnet-3",
    "vpc_zones": "eu-central-1a,eu-central-1b,eu-central-1c",
}


@pytest.mark.long
@pytest.mark.parametrize("stack", ["data", "serving"])
def test_its_templates_are_sound(msk_deployment, stack):
    """cfn-lint finds no fault, and neither does the review, without which there would be no template."""
    from cfnlint.api import ManualArgs, lint_file  # noqa: PLC0415  # it takes a second: only for tests that need it

    found = lint_file(
        getattr(msk_deployment, stack).path, config=ManualArgs(regions=[REGION], ignore_checks=NOT_LOOKED_AT)
    )

    assert [(each.rule.id, each.path, each.message) for each in found] == []


def test_no_reason_is_left_over(msk_deployment):
    """Each exception from a rule for the sake of MSK is still needed."""
    written = json.loads((msk_deployment.folder / "validation-report.json").read_text())
    [report] = [each for each in written["pluginReports"] if each["pluginName"] == "AwsSolutions"]
    used = {each["reason"] for each in report["suppressedViolations"]}

    assert {each.reason for each in (*review.MSK, *review.TOPICS)} <= used


def test_there_is_no_stream(msk_deployment):
    """Events are in the cluster, which accepts clients that sign in by IAM, and nothing of Kinesis costs anything."""
    cluster = msk_deployment.data.one("AWS::MSK::ServerlessCluster")

    assert not msk_deployment.data.all("AWS::Kinesis::Stream")
    assert not msk_deployment.serving.all("AWS::Lambda::EventSourceMapping")
    assert cluster["ClientAuthentication"] == {"Sasl": {"Iam": {"Enabled": True}}}


def test_the_cluster_is_kept(msk_deployment):
    """Stored data survive the deletion of their stack."""
    [made] = [each for each in msk_deployment.data.resources.values() if each["Type"] == "AWS::MSK::ServerlessCluster"]

    assert made["DeletionPolicy"] == "Retain"


def test_only_the_broker_reaches_the_servers(msk_deployment):
    """The servers let in their clients' group at the port of IAM, and no one else."""
    [ingress] = msk_deployment.data.all("AWS::EC2::SecurityGroupIngress").values()
    groups = msk_deployment.data.all("AWS::EC2::SecurityGroup")

    assert not any(each.get("SecurityGroupIngress") for each in groups.values())
    assert (ingress["FromPort"], ingress["ToPort"]) == (9098, 9098)
    assert "OfServers" in text(ingress["GroupId"])
    assert "OfClients" in text(ingress["SourceSecurityGroupId"])


@pytest.mark.parametrize("name", NEEDS)
def test_functions_with_events_are_in_the_network(msk_deployment, name):
    """Functions with events have the clients' security group and a layer with the Kafka library; the others stay
    outside.
    """
    function = msk_deployment.serving.functions()[name]
    groups = [text(each) for each in function.get("VpcConfig", {}).get("SecurityGroupIds", [])]

    assert ("VpcConfig" in function) == (name not in OUTSIDE)
    assert all("OfClients" in each for each in groups)
    assert len(function["Layers"]) == 3


def test_tasks_are_in_the_network_of_the_cluster(msk_deployment):
    """Tasks that serve streams have the clients' security group, beside the service's own group."""
    service = msk_deployment.serving.one("AWS::ECS::Service")
    groups = [text(each) for each in service["NetworkConfiguration"]["AwsvpcConfiguration"]["SecurityGroups"]]

    assert len(groups) == 2
    assert "OfClients" in groups[1]
    assert not msk_deployment.serving.all("AWS::EC2::VPC")


@pytest.mark.parametrize("name", NEEDS)
def test_a_function_gets_what_it_reads(msk_deployment, name):
    """Functions with events have the settings that a log with an archive reads, and leave archiving to the indexer."""
    environment = msk_deployment.serving.environment(name)
    settings = Settings.from_env(environment)

    assert set(environment) == {*find_needs(name, on_kafka=True).variables, functions.NAMESPACE_VARIABLE}
    if name not in OUTSIDE:
        assert settings.event_log.startswith("kafka://")
        assert settings.event_log.endswith(f"?iam={REGION}&prefix=nakadi-test.")
        assert settings.archiver == "function"


@pytest.mark.parametrize("name", MAY)
def test_a_role_may_do_with_topics_what_it_has_to(msk_deployment, name):
    """Each function has the actions of its part of the work, with topics of the stage and no others."""
    function = msk_deployment.serving.functions()[name]
    found = set()
    for statement in msk_deployment.serving.statements(function["Role"]):
        actions = {each.removeprefix("kafka-cluster:") for each in as_list(statement["Action"]) if "kafka-" in each}
        resources = [text(each) for each in as_list(statement["Resource"])]
        if actions <= {"Connect", "WriteDataIdempotently"} and actions:
            assert "Cluster" in resources[0] or "Serverless" in resources[0]
            assert ("WriteDataIdempotently" in actions) == ("WriteData" in MAY[name])
        elif actions == {"DescribeGroup"}:
            assert resources == [f"arn:aws:kafka:{REGION}:123456789012:group/nakadi-test/*/nakadi"]
        elif actions:
            assert resources == [f"arn:aws:kafka:{REGION}:123456789012:topic/nakadi-test/*/nakadi-test.*"]
            found |= actions

    assert found == MAY[name]


def test_the_indexer_is_started_by_the_clock(msk_deployment):
    """Every minute each part of the topics is archived. A failed run is not repeated, because the next one follows."""
    [rule] = [
        each
        for each in msk_deployment.serving.all("AWS::Events::Rule").values()
        if each["ScheduleExpression"] == "rate(1 minute)"
    ]

    assert [json.loads(each["Input"]) for each in rule["Targets"]] == [{"part": 0, "parts": 2}, {"part": 1, "parts": 2}]
    assert all(each["RetryPolicy"]["MaximumRetryAttempts"] == 0 for each in rule["Targets"])


def test_the_gateway_is_asked_from_outside(msk_deployment):
    """The weekly request over the link comes from a function outside the network, which may do nothing else."""
    [link] = [
        each
        for each in msk_deployment.serving.all("AWS::Lambda::Function").values()
        if text(each["FunctionName"]) == "nakadi-test-link"
    ]
    actions = msk_deployment.serving.actions(link["Role"])

    assert "VpcConfig" not in link
    assert {each.partition(":")[0] for each in actions} == {"logs", "xray"}


def test_alarms_are_those_of_a_log_without_streams(msk_deployment):
    """Alarms on streams do not exist; a serverless cluster reports nothing about its brokers."""
    names = {each["AlarmName"] for each in msk_deployment.serving.all("AWS::CloudWatch::Alarm").values()}
    of_streams = OF_A_STREAM | {"BatchesAreLost", "EventsWereLost", "IndexerIsLate", "RecordsAreSetAside"}

    assert {each.removeprefix("nakadi-test-") for each in names} == ALARMS - of_streams
    assert ALARMS.isdisjoint(OF_BROKERS)


def data_stack(**choices):
    stack = stacks.DataStack(
        cdk.App(analytics_reporting=False), "data", context=Context(storage="msk", **ZONES, **choices)
    )
    return assertions.Template.from_stack(stack)


@pytest.mark.parametrize(("kind", "instance"), [("express", "express.m7g.large"), ("provisioned", "kafka.m7g.large")])
def test_a_cluster_can_have_brokers(kind, instance):
    """The brokers are in three zones, accept only TLS and IAM, and store each write on two of the three."""
    template = data_stack(msk=kind)
    [cluster] = [each["Properties"] for each in template.find_resources("AWS::MSK::Cluster").values()]
    nodes = cluster["BrokerNodeGroupInfo"]
    configurations = template.find_resources("AWS::MSK::Configuration")

    assert (cluster["NumberOfBrokerNodes"], nodes["InstanceType"]) == (3, instance)
    assert nodes["ClientSubnets"] == ["subnet-1", "subnet-2", "subnet-3"]
    assert cluster["EncryptionInfo"]["EncryptionInTransit"] == {"ClientBroker": "TLS", "InCluster": True}
    assert cluster["ClientAuthentication"] == {
        "Sasl": {"Iam": {"Enabled": True}},
        "Unauthenticated": {"Enabled": False},
    }
    assert ("StorageInfo" in nodes) == (kind == "provisioned")
    assert [
        "min.insync.replicas=2" in text(each["Properties"]["ServerProperties"]) for each in configurations.values()
    ] == [True] * (kind == "provisioned")


def test_a_cluster_that_is_there_is_used():
    """Only the clients' group and a rule that lets it in are created."""
    servers = "b-1.shared.kafka.eu-central-1.amazonaws.com:9098"
    template = data_stack(msk=MSK, msk_servers=servers, msk_security_group="sg-0123456789abcdef0")
    [ingress] = [each["Properties"] for each in template.find_resources("AWS::EC2::SecurityGroupIngress").values()]

    assert not template.find_resources("AWS::MSK::Cluster")
    assert not template.find_resources("AWS::Lambda::Function")
    assert ingress["GroupId"] == "sg-0123456789abcdef0"


def test_events_stay_in_kafka_for_a_day_once_they_are_archived(msk_deployment):
    """The time for which Kafka keeps archived events can be chosen, and reaches the function that removes
    these events.
    """
    settings = Settings.from_env(msk_deployment.serving.environment("log_indexer"))

    assert timedelta(milliseconds=settings.hot_retention_ms) == timedelta(days=1)


def test_what_stands_there_with_msk_is_counted(msk_deployment):
    """`standing` counts neither Kinesis nor its alarms."""
    counted = count_standing_resources(Counted(storage="msk", kinesis_streams=1))
    alarms = msk_deployment.serving.all("AWS::CloudWatch::Alarm").values()
    looked_at = sum(sum("MetricStat" in metric for metric in each.get("Metrics", [])) or 1 for each in alarms)
    scaled = 2 * len(msk_deployment.serving.all("AWS::ApplicationAutoScaling::ScalingPolicy"))

    assert counted.alarm_metrics == looked_at + scaled
    assert (counted.streams, counted.shards) == (0, 0)
    assert counted.encrypted == len(msk_deployment.data.all("AWS::DynamoDB::Table"))
