"""Streams: a service on Fargate behind an internal load balancer, in a network without NAT."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aws_cdk import Aws, Duration, RemovalPolicy
from aws_cdk import aws_apigatewayv2 as apigatewayv2
from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.data import Data
from infra.permissions import PERMISSIONS
from infra.settings import LONGEST_STREAM_SECONDS

ROOT = Path(__file__).parents[1]
PORT = 8080
LISTENING = 80

ECR_IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[\w-]+)\.amazonaws\.com/(?P<repository>[\w./-]+)[:@](?P<tag>[\w.:-]+)"
)

# More than a stream is ever silent; the service keeps idle connections longer than the load balancer does.
IDLE = Duration.seconds(300)
KEEP_ALIVE = Duration.seconds(310)

# A task that is to stop first gets no new streams, for as long as those that it has may last; SIGTERM comes after that.
# Nothing is cut when a new version is deployed, or when there are fewer tasks.
DRAIN = Duration.seconds(LONGEST_STREAM_SECONDS + 60)

# Where that was not enough, streams are ended early. A process is killed two minutes after SIGTERM at the latest.
STOP = Duration.seconds(120)
GRACE = Duration.seconds(90)

# Tasks are added quickly, and taken away when streams that ended have had time to come back.
QUICKLY = Duration.minutes(1)
SLOWLY = Duration.minutes(15)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSize:
    """A task's share of a processor in 1/1024 and its memory in MiB, and how many tasks there are when."""

    cpu: int
    memory: int
    min_tasks: int
    max_tasks: int
    streams_per_task: int


class Streaming(Construct):
    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        data: Data,
        environment: Mapping[str, str],
        path_prefix: str,
        size: ServiceSize,
        log_retention: logs.RetentionDays,
        image: str = "",
    ) -> None:
        super().__init__(scope, name)
        self.metrics_name = f"{data.prefix}-streaming"
        self.vpc = self._network(log_retention)
        of_link = self._security_group("OfLink", "The way in from the gateway")
        of_balancer = self._security_group("OfBalancer", "The load balancer")
        of_service = self._security_group("OfService", "The streaming service")
        _let_through(of_link, of_balancer, LISTENING)
        _let_through(of_balancer, of_service, PORT)
        of_service.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "AWS, and the issuer of tokens")

        self.cluster = ecs.Cluster(self, "Cluster", vpc=self.vpc)
        log_group = logs.LogGroup(self, "Logs", retention=log_retention, removal_policy=RemovalPolicy.DESTROY)
        task = self._task(data, environment, path_prefix, size, log_group, self._image(image))
        # How many tasks there are is left to scaling: said here, it would be said anew by every deployment.
        self.service = ecs.FargateService(
            self,
            "Service",
            cluster=self.cluster,
            task_definition=task,
            security_groups=[of_service],
            # An address of its own is the way out where there is no NAT. Nobody gets in by it.
            assign_public_ip=True,
            vpc_subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC),
            min_healthy_percent=100,
            max_healthy_percent=200,
            circuit_breaker=ecs.DeploymentCircuitBreaker(rollback=True),
            health_check_grace_period=Duration.seconds(60),
        )
        self.load_balancer, self.listener, self.target_group = self._balanced(of_balancer)
        self.vpc_link = apigatewayv2.VpcLink(
            self,
            "Link",
            vpc=self.vpc,
            subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC),
            security_groups=[of_link],
        )
        self.open_streams = cloudwatch.Metric(
            namespace="Nakadi",
            metric_name="OpenStreams",
            dimensions_map={"service": self.metrics_name},
            statistic="Average",
            period=Duration.minutes(1),
        )
        self._scaled(size)

    def _network(self, log_retention: logs.RetentionDays) -> ec2.Vpc:
        """Nothing but what streams need. The gateway endpoints of S3 and DynamoDB cost nothing."""
        vpc = ec2.Vpc(
            self,
            "Network",
            max_azs=2,
            nat_gateways=0,
            restrict_default_security_group=False,
            subnet_configuration=[
                ec2.SubnetConfiguration(name="Public", subnet_type=ec2.SubnetType.PUBLIC, map_public_ip_on_launch=False)
            ],
            gateway_endpoints={
                "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3),
                "DynamoDb": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.DYNAMODB),
            },
        )
        refused = logs.LogGroup(self, "RefusedTraffic", retention=log_retention, removal_policy=RemovalPolicy.DESTROY)
        vpc.add_flow_log(
            "Refused",
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(refused),
            traffic_type=ec2.FlowLogTrafficType.REJECT,
        )
        return vpc

    def _security_group(self, name: str, description: str) -> ec2.SecurityGroup:
        return ec2.SecurityGroup(self, name, vpc=self.vpc, description=description, allow_all_outbound=False)

    def _image(self, name: str) -> ecs.ContainerImage:
        """Built while it is deployed, which takes Docker or something like it, or one that exists."""
        in_ecr = ECR_IMAGE.fullmatch(name)
        if in_ecr:
            arn = "arn:{partition}:ecr:{region}:{account}:repository/{repository}".format(
                partition=Aws.PARTITION, **in_ecr.groupdict()
            )
            repository = ecr.Repository.from_repository_attributes(
                self, "Images", repository_arn=arn, repository_name=in_ecr["repository"]
            )
            return ecs.ContainerImage.from_ecr_repository(repository, in_ecr["tag"])
        if name:
            return ecs.ContainerImage.from_registry(name)
        return ecs.ContainerImage.from_asset(
            str(ROOT),
            file="services/streaming/Dockerfile",
            platform=ecr_assets.Platform.LINUX_ARM64,
            exclude=(ROOT / ".dockerignore").read_text().split(),
        )

    def _task(
        self,
        data: Data,
        environment: Mapping[str, str],
        path_prefix: str,
        size: ServiceSize,
        log_group: logs.LogGroup,
        image: ecs.ContainerImage,
    ) -> ecs.FargateTaskDefinition:
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"))
        for statement in PERMISSIONS["streaming"].statements(data):
            role.add_to_policy(statement)
        task = ecs.FargateTaskDefinition(
            self,
            "Task",
            cpu=size.cpu,
            memory_limit_mib=size.memory,
            task_role=role,
            runtime_platform=ecs.RuntimePlatform(
                cpu_architecture=ecs.CpuArchitecture.ARM64, operating_system_family=ecs.OperatingSystemFamily.LINUX
            ),
        )
        task.add_container(
            "streaming",
            image=image,
            command=[
                *("--host", "0.0.0.0", "--port", str(PORT), "--prefix", path_prefix),  # noqa: S104  # in a container
                *("--grace-seconds", str(GRACE.to_seconds()), "--keep-alive-seconds", str(KEEP_ALIVE.to_seconds())),
                *("--name", self.metrics_name),
            ],
            environment=dict(environment),
            port_mappings=[ecs.PortMapping(container_port=PORT)],
            readonly_root_filesystem=True,
            stop_timeout=STOP,
            logging=ecs.LogDrivers.aws_logs(stream_prefix="streaming", log_group=log_group),
        )
        return task

    def _balanced(
        self, security_group: ec2.SecurityGroup
    ) -> tuple[elb.ApplicationLoadBalancer, elb.ApplicationListener, elb.ApplicationTargetGroup]:
        balancer = elb.ApplicationLoadBalancer(
            self,
            "Balancer",
            vpc=self.vpc,
            vpc_subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC),
            internet_facing=False,
            security_group=security_group,
            idle_timeout=IDLE,
            drop_invalid_header_fields=True,
        )
        listener = balancer.add_listener("Listener", port=LISTENING, protocol=elb.ApplicationProtocol.HTTP, open=False)
        target_group = elb.ApplicationTargetGroup(
            self,
            "Tasks",
            vpc=self.vpc,
            port=PORT,
            protocol=elb.ApplicationProtocol.HTTP,
            target_type=elb.TargetType.IP,
            targets=[self.service],
            deregistration_delay=DRAIN,
            load_balancing_algorithm_type=elb.TargetGroupLoadBalancingAlgorithmType.LEAST_OUTSTANDING_REQUESTS,
            # Not whether the registry answers: another task would not reach it either, and all streams would be cut.
            health_check=elb.HealthCheck(path="/health", interval=Duration.seconds(10), healthy_threshold_count=2),
        )
        listener.add_target_groups("Streaming", target_groups=[target_group])
        return balancer, listener, target_group

    def _scaled(self, size: ServiceSize) -> None:
        tasks = self.service.auto_scale_task_count(min_capacity=size.min_tasks, max_capacity=size.max_tasks)
        target = tasks.node.find_child("Target")
        assert isinstance(target, scaling.ScalableTarget)
        tasks.scale_on_cpu_utilization(
            "OnCpu", target_utilization_percent=60, scale_in_cooldown=SLOWLY, scale_out_cooldown=QUICKLY
        )
        scaling.TargetTrackingScalingPolicy(
            self,
            "OnStreams",
            scaling_target=target,
            custom_metric=self.open_streams,
            target_value=size.streams_per_task,
            scale_in_cooldown=SLOWLY,
            scale_out_cooldown=QUICKLY,
        )


def _let_through(source: ec2.SecurityGroup, target: ec2.SecurityGroup, port: int) -> None:
    source.add_egress_rule(target, ec2.Port.tcp(port))
    target.add_ingress_rule(source, ec2.Port.tcp(port))
