"""The streaming service: its network, its task, and how it comes and goes."""

import re

import pytest

from nakadi.app.settings import Settings
from nakadi_cdk.settings import LONGEST_SILENCE_SECONDS, LONGEST_STREAM_SECONDS
from tests.support.lazy_modules import LazyModule
from tests.support.templates import as_list, text

streaming = LazyModule("nakadi_cdk.streaming")

# The gateway's limits for a streamed response: its duration, and the time without a byte.
GATEWAY_SECONDS, GATEWAY_SILENCE_SECONDS = 900, 300


@pytest.fixture(scope="session")
def container(serving):
    [container] = serving.one("AWS::ECS::TaskDefinition")["ContainerDefinitions"]
    return container


@pytest.fixture(scope="session")
def options(container):
    """The options that the container is started with."""
    words = [text(word) for word in container["Command"]]
    return dict(zip(words[::2], words[1::2], strict=True))


def attributes(resource, name):
    return {each["Key"]: each["Value"] for each in resource[name]}


def test_nothing_in_the_network_costs_by_the_hour(serving):
    """The network has no NAT, and its two endpoints cost nothing."""
    endpoints = serving.all("AWS::EC2::VPCEndpoint").values()

    assert not serving.all("AWS::EC2::NatGateway")
    assert {each["VpcEndpointType"] for each in endpoints} == {"Gateway"}
    assert sorted(text(each["ServiceName"]).rpartition(".")[2] for each in endpoints) == ["dynamodb", "s3"]


def test_only_the_gateway_gets_in(serving):
    """The link may connect to the load balancer, the load balancer to the service, and the service to others only by
    TLS.
    """
    ingress = [
        (text(each["SourceSecurityGroupId"]), text(each["GroupId"]), each["FromPort"], each["ToPort"])
        for each in serving.all("AWS::EC2::SecurityGroupIngress").values()
    ]
    groups = {each["GroupDescription"]: name for name, each in serving.all("AWS::EC2::SecurityGroup").items()}
    link, balancer, service = (
        f"<{groups[description]}.GroupId>"
        for description in ("The way in from the gateway", "The load balancer", "The streaming service")
    )

    assert sorted(ingress) == sorted([(link, balancer, 80, 80), (balancer, service, 8080, 8080)])
    assert not any("SecurityGroupIngress" in each for each in serving.all("AWS::EC2::SecurityGroup").values())
    [way_out] = serving.all("AWS::EC2::SecurityGroup")[groups["The streaming service"]]["SecurityGroupEgress"]
    assert (way_out["FromPort"], way_out["ToPort"]) == (443, 443)
    assert serving.one("AWS::ElasticLoadBalancingV2::LoadBalancer")["Scheme"] == "internal"


def test_the_task_is_as_small_and_closed_as_it_can_be(serving, container):
    """The task runs on arm64, with a read-only root file system, and without the rights of a superuser."""
    task = serving.one("AWS::ECS::TaskDefinition")

    assert (task["Cpu"], task["Memory"]) == ("256", "512")
    assert task["RuntimePlatform"] == {"CpuArchitecture": "ARM64", "OperatingSystemFamily": "LINUX"}
    assert container["ReadonlyRootFilesystem"] is True
    assert not container.get("Privileged")
    assert container["LogConfiguration"]["LogDriver"] == "awslogs"


def test_a_task_remembers_no_more_than_it_has_room_for(container):
    """The memory for a stream's cache, and for requests, are parts of a task's memory."""
    memory = 512 * (1 << 20)
    variables = {each["Name"]: text(each["Value"]) for each in container["Environment"]}

    assert f"&window_bytes={memory // 8}" in variables["NAKADI_EVENT_LOG"]
    assert variables["NAKADI_MAX_REQUEST_MEMORY_BYTES"] == str(memory // 4)


def test_streams_end_before_another_ends_them(serving, options):
    """A stream ends, and sends a keep-alive, before the gateway and the load balancer would cut it."""
    balancer = attributes(serving.one("AWS::ElasticLoadBalancingV2::LoadBalancer"), "LoadBalancerAttributes")
    idle = int(balancer["idle_timeout.timeout_seconds"])

    assert GATEWAY_SECONDS > LONGEST_STREAM_SECONDS
    assert min(GATEWAY_SILENCE_SECONDS, idle) > LONGEST_SILENCE_SECONDS
    # The load balancer closes idle connections before the service does.
    assert int(options["--keep-alive-seconds"]) > idle


def test_a_task_that_goes_cuts_no_stream(serving, container, options):
    """A stopping task gets no new streams for as long as one may last, and has time to end the rest after SIGTERM."""
    group = attributes(serving.one("AWS::ElasticLoadBalancingV2::TargetGroup"), "TargetGroupAttributes")

    assert int(group["deregistration_delay.timeout_seconds"]) > LONGEST_STREAM_SECONDS
    assert int(options["--grace-seconds"]) < container["StopTimeout"] <= 120


def test_a_new_version_comes_before_the_old_one_goes(serving):
    """The number of tasks never falls below the wanted one, and a version that does not start is rolled back."""
    service = serving.one("AWS::ECS::Service")

    assert service["DeploymentConfiguration"] == {
        "DeploymentCircuitBreaker": {"Enable": True, "Rollback": True},
        "MinimumHealthyPercent": 100,
        "MaximumPercent": 200,
    }


def test_the_load_balancer_asks_whether_it_is_well(serving):
    """The load balancer checks the health of a task every ten seconds."""
    group = serving.one("AWS::ElasticLoadBalancingV2::TargetGroup")

    assert (group["HealthCheckPath"], group["HealthCheckIntervalSeconds"]) == ("/health", 10)


def test_tasks_come_with_streams_and_with_work(serving):
    """The number of tasks follows streams and processors."""
    target = serving.one("AWS::ApplicationAutoScaling::ScalableTarget")
    policies = [
        each["TargetTrackingScalingPolicyConfiguration"]
        for each in serving.all("AWS::ApplicationAutoScaling::ScalingPolicy").values()
    ]
    [on_streams] = [each for each in policies if "CustomizedMetricSpecification" in each]
    [on_cpu] = [each for each in policies if "PredefinedMetricSpecification" in each]

    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 2)
    # A deployment would reset the desired count.
    assert "DesiredCount" not in serving.one("AWS::ECS::Service")
    assert on_cpu["PredefinedMetricSpecification"]["PredefinedMetricType"] == "ECSServiceAverageCPUUtilization"
    assert on_streams["TargetValue"] == 2000
    assert on_streams["CustomizedMetricSpecification"]["MetricName"] == "OpenStreams"


def test_the_service_reports_streams_under_the_name_that_scaling_uses(serving, options):
    """The service reports its metrics under the name that scaling uses."""
    metrics = [
        each["TargetTrackingScalingPolicyConfiguration"].get("CustomizedMetricSpecification", {})
        for each in serving.all("AWS::ApplicationAutoScaling::ScalingPolicy").values()
    ]

    assert {"Name": "service", "Value": options["--name"]} in [
        dimension for metric in metrics for dimension in metric.get("Dimensions", [])
    ]


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("123456789012.dkr.ecr.eu-central-1.amazonaws.com/nakadi/streaming:1.2.0", "1.2.0"),
        (f"123456789012.dkr.ecr.eu-central-1.amazonaws.com/nakadi@sha256:{'0' * 64}", f"sha256:{'0' * 64}"),
    ],
)
def test_an_image_of_ecr_is_known_by_its_name(image, tag):
    """Tasks may fetch an image of a repository in ECR, by tag or by digest."""
    found = streaming.ECR_IMAGE.fullmatch(image)

    assert (found["account"], found["region"], found["tag"]) == ("123456789012", "eu-central-1", tag)


def test_the_image_is_made_of_what_it_needs(serving):
    """The image's context is the package and the service, and nothing that happens to lie beside them."""
    folders = [path for path in serving.path.parent.glob("asset.*") if (path / "services").is_dir()]

    assert len(folders) == 1
    files = {str(path.relative_to(folders[0])) for path in folders[0].rglob("*") if path.is_file()}
    assert {"services/streaming/Dockerfile", "services/streaming/__main__.py", "services/streaming/program.py"} <= files
    assert all(re.match(r"(services/streaming|layers/nakadi/python/nakadi)/", name) for name in files), files
    assert not any("__pycache__" in name for name in files)


def test_tasks_deliver_to_what_the_context_names_and_to_nothing_else(large_deployment):
    """The role and the setting name the targets. The tasks and the functions have the same key of secrets. (X48)"""
    [container] = large_deployment.serving.one("AWS::ECS::TaskDefinition")["ContainerDefinitions"]
    environment = {each["Name"]: text(each["Value"]) for each in container["Environment"]}
    function, queue = (
        "arn:aws:lambda:eu-central-1:123456789012:function:shop-*",
        "arn:aws:sqs:eu-central-1:123456789012:orders.fifo",
    )
    assert Settings.from_env(environment).sink_targets == (function, queue)
    assert environment["NAKADI_SINK_KEY"]

    allowed = {
        (action, text(resource))
        for statement in large_deployment.serving.statements({"Ref": role_named(large_deployment, "StreamingRole")})
        for action in as_list(statement["Action"])
        for resource in as_list(statement["Resource"])
    }
    assert {each for each in allowed if each[0].partition(":")[0] in {"lambda", "sqs", "sns", "events"}} == {
        ("lambda:InvokeFunction", function),
        ("sqs:SendMessage", queue),
    }
    sealing = {"kms:Decrypt", "kms:GenerateDataKey"}
    for role in ("StreamingRole", "FunctionsRolesubscriptions"):
        assert sealing <= large_deployment.serving.actions({"Ref": role_named(large_deployment, role)})
    assert not sealing & large_deployment.serving.actions(
        {"Ref": role_named(large_deployment, "FunctionsRoleeventtypes")}
    )
    key = large_deployment.data.one("AWS::KMS::Key")
    assert key["EnableKeyRotation"] is True


def test_without_sinks_there_is_no_key(data, container):
    environment = {each["Name"]: text(each["Value"]) for each in container["Environment"]}
    assert not data.all("AWS::KMS::Key")
    assert environment["NAKADI_SINK_KEY"] == environment["NAKADI_SINK_TARGETS"] == ""


def role_named(deployment, beginning):
    roles = deployment.serving.all("AWS::IAM::Role")
    [name] = [each for each in roles if re.fullmatch(rf"{beginning}[0-9A-F]{{8}}", each)]
    return name
