"""Streams: a service on Fargate behind an internal load balancer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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

from nakadi_cdk.assets import IMAGE_IGNORES, assets
from nakadi_cdk.data import Data
from nakadi_cdk.network import Network, add_endpoints, new_network
from nakadi_cdk.permissions import PERMISSIONS
from nakadi_cdk.settings import LONGEST_STREAM_SECONDS

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
    def __init__(  # noqa: PLR0913  # each is a choice of its own
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
        direct: bool = False,
        network: Network | None = None,
        private: bool = False,
        tls: bool = False,
    ) -> None:
        """`direct`: it serves publishing and commits as well, for clients that do not come by the gateway."""
        super().__init__(scope, name)
        self.metrics_name = f"{data.prefix}-streaming"
        self.role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"))
        self._tls = tls
        self._network = network or new_network(self, log_retention, private=private)
        self.vpc = self._network.vpc
        of_link = self._security_group("OfLink", "The way in from the gateway")
        of_balancer = self._security_group("OfBalancer", "The load balancer")
        of_service = self._security_group("OfService", "The streaming service")
        _let_through(of_link, of_balancer, LISTENING)
        _let_through(of_balancer, of_service, PORT)
        of_service.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "AWS, and the issuer of tokens")
        if private and not network:
            add_endpoints(self._network, of_service)

        self.security_group = of_service
        security_groups: list[ec2.ISecurityGroup] = [of_service]
        if data.cluster:
            # Its rules are its own stack's: the load balancer would add some of this one.
            of_clients = data.cluster.of_clients.security_group_id
            security_groups.append(
                ec2.SecurityGroup.from_security_group_id(self, "OfClients", of_clients, mutable=False)
            )
        self._more = ("--direct",) if direct else ()

        self.cluster = ecs.Cluster(self, "Cluster", vpc=self.vpc)
        log_group = logs.LogGroup(self, "Logs", retention=log_retention, removal_policy=RemovalPolicy.DESTROY)
        task = self._task(data, environment, path_prefix, size, log_group, self._image(image))
        # How many tasks there are is left to scaling: said here, it would be said anew by every deployment.
        self.service = ecs.FargateService(
            self,
            "Service",
            cluster=self.cluster,
            task_definition=task,
            security_groups=security_groups,
            # An address of its own is the way out where there is no other. No connection comes in by it.
            assign_public_ip=self._network.public_addresses,
            vpc_subnets=self._network.subnets,
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
            subnets=self._network.subnets,
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
            str(assets()),
            file="services/streaming/Dockerfile",
            platform=ecr_assets.Platform.LINUX_ARM64,
            exclude=IMAGE_IGNORES,
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
        for statement in PERMISSIONS["streaming"].statements(data):
            self.role.add_to_policy(statement)
        task = ecs.FargateTaskDefinition(
            self,
            "Task",
            cpu=size.cpu,
            memory_limit_mib=size.memory,
            task_role=self.role,
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
                *self._more,
                *(["--tls"] if self._tls else []),
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
            vpc_subnets=self._network.subnets,
            internet_facing=False,
            security_group=security_group,
            idle_timeout=IDLE,
            drop_invalid_header_fields=True,
        )
        listener = balancer.add_listener("Listener", port=LISTENING, protocol=elb.ApplicationProtocol.HTTP, open=False)
        target_group = self.targets(self)
        listener.add_target_groups("Streaming", target_groups=[target_group])
        return balancer, listener, target_group

    def targets(self, scope: Construct) -> elb.ApplicationTargetGroup:
        """The tasks, as one load balancer sees them."""
        spoken = elb.Protocol.HTTPS if self._tls else elb.Protocol.HTTP
        return elb.ApplicationTargetGroup(
            scope,
            "Tasks",
            vpc=self.vpc,
            port=PORT,
            protocol=elb.ApplicationProtocol.HTTPS if self._tls else elb.ApplicationProtocol.HTTP,
            target_type=elb.TargetType.IP,
            targets=[self.service],
            deregistration_delay=DRAIN,
            load_balancing_algorithm_type=elb.TargetGroupLoadBalancingAlgorithmType.LEAST_OUTSTANDING_REQUESTS,
            # Not whether the registry answers: another task would not reach it either, and all streams would be cut.
            health_check=elb.HealthCheck(
                path="/health", protocol=spoken, interval=Duration.seconds(10), healthy_threshold_count=2
            ),
        )

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
