"""The cost model counts the resources of the templates."""

import pytest

from infra.cost.load import Deployment as Counted
from infra.cost.standing import count_standing_resources
from nakadi_cdk.context import Context
from tests.infra.conftest import CONTEXT
from tests.support.lazy_modules import LazyModule

network = LazyModule("nakadi_cdk.network")

ZONES = 2


def test_what_stands_there_is_what_the_templates_make(data, serving):
    """Everything with an hourly or monthly charge is counted: tables, shards, tasks, balancers, alarms, keys, …"""
    counted = count_standing_resources(Counted(kinesis_streams=2, shards=3))
    alarms = serving.all("AWS::CloudWatch::Alarm").values()
    # An alarm on a sum has the sum itself among its metrics; for each target, AWS creates one alarm above and one below
    # it.
    looked_at = sum(sum("MetricStat" in metric for metric in each.get("Metrics", [])) or 1 for each in alarms)
    scaled = 2 * len(serving.all("AWS::ApplicationAutoScaling::ScalingPolicy"))
    streams = data.all("AWS::Kinesis::Stream").values()
    service = serving.one("AWS::ECS::Service")
    [network] = service["NetworkConfiguration"].values()
    endpoints = [each["VpcEndpointType"] for each in serving.all("AWS::EC2::VPCEndpoint").values()]
    keys = [key for template in (data, serving) for key in template.all("AWS::KMS::Key")]

    assert counted.alarm_metrics == looked_at + scaled
    assert counted.tables == len(data.all("AWS::DynamoDB::Table"))
    assert (counted.streams, counted.shards) == (len(streams), sum(each["ShardCount"] for each in streams))
    assert counted.tasks == serving.one("AWS::ApplicationAutoScaling::ScalableTarget")["MinCapacity"]
    assert counted.addresses == counted.tasks * (network["AssignPublicIp"] == "ENABLED")
    assert counted.balancers == len(serving.all("AWS::ElasticLoadBalancingV2::LoadBalancer"))
    assert counted.endpoints == endpoints.count("Interface")
    assert counted.nats == len(serving.all("AWS::EC2::NatGateway"))
    assert counted.dashboards == len(serving.all("AWS::CloudWatch::Dashboard"))
    assert counted.own_keys == len(keys)
    assert counted.encrypted == sum(
        bool(each.get("SSESpecification", each.get("StreamEncryption")))
        for kind in ("AWS::DynamoDB::Table", "AWS::Kinesis::Stream")
        for each in data.all(kind).values()
    )


def test_what_is_added_is_counted_too(large_deployment):
    """A public balancer with its addresses and its alarm, a dashboard, canaries, and dedicated streams are counted."""
    counted = count_standing_resources(
        Counted(
            kinesis_streams=11,
            shards=11,
            direct=True,
            more_alarms=True,
            dashboard=True,
            canary=True,
            table_minutes=10,
            sinks=1,
            queries=1,
        )
    )
    alarms = large_deployment.serving.all("AWS::CloudWatch::Alarm").values()
    looked_at = sum(sum("MetricStat" in metric for metric in each.get("Metrics", [])) or 1 for each in alarms)
    balancers = large_deployment.serving.all("AWS::ElasticLoadBalancingV2::LoadBalancer").values()
    zones = sum(len(each["Subnets"]) for each in balancers if each["Scheme"] == "internet-facing")

    assert counted.alarm_metrics == looked_at + 2 * len(
        large_deployment.serving.all("AWS::ApplicationAutoScaling::ScalingPolicy")
    )
    assert counted.balancers == len(balancers)
    assert counted.addresses == counted.tasks + zones
    assert counted.dashboards == len(large_deployment.serving.all("AWS::CloudWatch::Dashboard"))
    assert counted.own_keys == len(large_deployment.data.all("AWS::KMS::Key"))


def test_a_private_network_is_counted_with_its_endpoints():
    """In a private network, tasks have no public addresses, and reach AWS by an endpoint for each service and zone."""
    counted = count_standing_resources(Counted(private_network=True))

    assert (counted.addresses, counted.endpoints) == (0, ZONES * len(network.ENDPOINTS))


def test_metrics_of_methods_are_reported_only_when_asked_for(serving):
    """API Gateway's metrics of each method, each of which is paid for, are off."""
    assert not any(each["MetricsEnabled"] for each in serving.one("AWS::ApiGateway::Stage")["MethodSettings"])


def test_a_stage_that_sleeps_has_what_is_counted_for_it(sleeping_deployment):
    """A stage that sleeps has no tasks, balancer and network, nor their alarms."""
    counted = count_standing_resources(Counted(kinesis_streams=2, shards=3, asleep=True))
    alarms = sleeping_deployment.serving.all("AWS::CloudWatch::Alarm").values()
    looked_at = sum(sum("MetricStat" in metric for metric in each.get("Metrics", [])) or 1 for each in alarms)

    assert (counted.tasks, counted.balancers, counted.addresses) == (0, 0, 0)
    assert counted.alarm_metrics == looked_at
    kinds = {each["Type"].split("::")[1] for each in sleeping_deployment.serving.resources.values()}
    assert kinds.isdisjoint({"ECS", "EC2", "ElasticLoadBalancingV2", "ApplicationAutoScaling", "ApiGatewayV2"})


@pytest.mark.parametrize(
    ("counted", "chosen"),
    [
        ("stream_mode", "stream_mode"),
        ("shards", "shards"),
        ("index_seconds", "index_seconds"),
        ("publish_memory", "publish_memory"),
        ("function_memory", "function_memory"),
        ("min_tasks", "streaming_min_tasks"),
        ("streams_per_task", "streams_per_task"),
        ("asleep", "asleep"),
        ("log_days", "log_days"),
        ("recovery_days", "recovery_days"),
        ("version_days", "version_days"),
        ("more_alarms", "more_alarms"),
        ("dashboard", "dashboard"),
        ("table_minutes", "table_minutes"),
        ("table_stream", "table_stream"),
        ("detailed_metrics", "detailed_metrics"),
        ("fan_out", "fans_out"),
    ],
)
def test_the_model_begins_with_the_defaults_of_the_app(counted, chosen):
    """A bill without options is for a deployment without context."""
    assert getattr(Counted(), counted) == getattr(Context(), chosen)


def test_sizes_and_jobs_of_the_model_are_those_of_the_app():
    """A task's size is counted in processors and GB, and jobs in hours of their workers at a minute each."""
    context = Context()
    runs_a_day = 2 + 24 / context.compaction_hours
    assert Counted().streaming_vcpu == context.streaming_cpu / 1024
    assert Counted().streaming_gb == context.streaming_memory / 1024
    assert Counted().dpu_hours_per_day == pytest.approx(runs_a_day * context.job_workers / 60)
    assert "streaming_max_tasks" not in CONTEXT


def test_brokers_of_msk_have_alarms_that_are_counted():
    """Each broker is a separate metric for copies and, if it has one, for its disk."""
    serverless, express, provisioned = (
        count_standing_resources(Counted(storage="msk", msk=kind, brokers=6)).alarm_metrics
        for kind in ("serverless", "express", "provisioned")
    )

    assert (express - serverless, provisioned - serverless) == (7, 13)
