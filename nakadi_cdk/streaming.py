"""The streaming service on Fargate behind an internal load balancer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_apigatewayv2 as apigatewayv2
from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from nakadi_cdk.assets import assets_folder
from nakadi_cdk.context import ECR_IMAGE
from nakadi_cdk.data import Data
from nakadi_cdk.images import STREAMING_IMAGE, image_ignores, repository_and_tag
from nakadi_cdk.network import Network, add_endpoints, new_network
from nakadi_cdk.permissions import PERMISSIONS
from nakadi_cdk.settings import LONGEST_STREAM_SECONDS

PORT = 8080
LISTENER_PORT = 80

# Longer than the longest silence of a stream. The service keeps idle connections longer than the load balancer does.
IDLE_TIMEOUT = Duration.seconds(300)
KEEP_ALIVE = Duration.seconds(310)

# A stopping task gets no new streams for as long as its streams may last; only then does it receive SIGTERM. So
# deployments and scaling in do not cut streams.
DRAIN_TIME = Duration.seconds(LONGEST_STREAM_SECONDS + 60)

# After SIGTERM the service ends remaining streams early. ECS kills the process two minutes later.
STOP_TIMEOUT = Duration.seconds(120)
GRACE_PERIOD = Duration.seconds(90)

# Scaling out is fast. Scaling in waits until clients have had time to reconnect.
SCALE_OUT_COOLDOWN = Duration.minutes(1)
SCALE_IN_COOLDOWN = Duration.minutes(15)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSize:
    """The processor share of a task in 1/1024, its memory in MiB, and the bounds of scaling."""

    cpu: int
    memory: int
    min_tasks: int
    max_tasks: int
    streams_per_task: int


class Streaming(Construct):
    """The service, its internal load balancer, the link from API Gateway, and scaling by CPU and open streams."""

    def __init__(  # noqa: PLR0913  # each is a separate choice
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
        sink_services: Sequence[str] = (),
    ) -> None:
        """`direct`: the service also handles publishing and commits, for clients that bypass the gateway.

        `sink_services`: the services that deliveries call, which a private network gets endpoints for.
        """
        super().__init__(scope, name)
        self.metrics_name = f"{data.prefix}-streaming"
        self.role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"))
        self._tls = tls
        self._network = network or new_network(self, log_retention, private=private)
        self.vpc = self._network.vpc
        link_security_group = self._security_group("OfLink", "The way in from the gateway")
        balancer_security_group = self._security_group("OfBalancer", "The load balancer")
        service_security_group = self._security_group("OfService", "The streaming service")
        _allow_traffic(link_security_group, balancer_security_group, LISTENER_PORT)
        _allow_traffic(balancer_security_group, service_security_group, PORT)
        service_security_group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "AWS, and the issuer of tokens")
        if private and not network:
            add_endpoints(self._network, service_security_group, sink_services=sink_services)

        self.security_group = service_security_group
        self._extra_arguments = ("--direct",) if direct else ()

        self.cluster = ecs.Cluster(self, "Cluster", vpc=self.vpc)
        log_group = logs.LogGroup(self, "Logs", retention=log_retention, removal_policy=RemovalPolicy.DESTROY)
        task = self._create_task(data, environment, path_prefix, size, log_group, self._find_image(image))
        self.service = self._create_service(task, [service_security_group, *self._cluster_access(data)])
        self.load_balancer, self.listener, self.target_group = self._create_balancer(balancer_security_group)
        self.vpc_link = apigatewayv2.VpcLink(
            self, "Link", vpc=self.vpc, subnets=self._network.subnets, security_groups=[link_security_group]
        )
        self.open_streams = self.metric("OpenStreams", statistic="Average")
        self._add_scaling(size)

    def metric(self, name: str, statistic: str) -> cloudwatch.Metric:
        """A metric that tasks report about themselves."""
        return cloudwatch.Metric(
            namespace="Nakadi",
            metric_name=name,
            dimensions_map={"service": self.metrics_name},
            statistic=statistic,
            period=Duration.minutes(1),
        )

    def _security_group(self, name: str, description: str) -> ec2.SecurityGroup:
        return ec2.SecurityGroup(self, name, vpc=self.vpc, description=description, allow_all_outbound=False)

    def _cluster_access(self, data: Data) -> Sequence[ec2.ISecurityGroup]:
        """The security group by which tasks reach the brokers of MSK, if there are any."""
        if not data.cluster:
            return ()
        # Immutable here, since the stack of the cluster manages the rules of this group.
        clients = data.cluster.client_security_group.security_group_id
        return (ec2.SecurityGroup.from_security_group_id(self, "OfClients", clients, mutable=False),)

    def _create_service(
        self, task: ecs.FargateTaskDefinition, security_groups: Sequence[ec2.ISecurityGroup]
    ) -> ecs.FargateService:
        # No desired count: otherwise every deployment would reset the count that scaling has chosen.
        return ecs.FargateService(
            self,
            "Service",
            cluster=self.cluster,
            task_definition=task,
            security_groups=security_groups,
            # Without a NAT, a task needs a public address for outgoing connections. It accepts none from outside.
            assign_public_ip=self._network.public_addresses,
            vpc_subnets=self._network.subnets,
            min_healthy_percent=100,
            max_healthy_percent=200,
            circuit_breaker=ecs.DeploymentCircuitBreaker(rollback=True),
            health_check_grace_period=Duration.seconds(60),
        )

    def _find_image(self, name: str) -> ecs.ContainerImage:
        """The existing image of that name, or one that the deployment builds with Docker or a similar tool."""
        in_ecr = ECR_IMAGE.fullmatch(name)
        if in_ecr:
            return ecs.ContainerImage.from_ecr_repository(*repository_and_tag(self, in_ecr))
        if name:
            return ecs.ContainerImage.from_registry(name)
        return ecs.ContainerImage.from_asset(
            str(assets_folder()),
            file=STREAMING_IMAGE,
            platform=ecr_assets.Platform.LINUX_ARM64,
            exclude=image_ignores(STREAMING_IMAGE),
        )

    def _create_task(
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
                *(
                    "--grace-seconds",
                    str(GRACE_PERIOD.to_seconds()),
                    "--keep-alive-seconds",
                    str(KEEP_ALIVE.to_seconds()),
                ),
                *("--name", self.metrics_name),
                *self._extra_arguments,
                *(["--tls"] if self._tls else []),
            ],
            environment=dict(environment),
            port_mappings=[ecs.PortMapping(container_port=PORT)],
            readonly_root_filesystem=True,
            stop_timeout=STOP_TIMEOUT,
            logging=ecs.LogDrivers.aws_logs(stream_prefix="streaming", log_group=log_group),
        )
        return task

    def _create_balancer(
        self, security_group: ec2.SecurityGroup
    ) -> tuple[elb.ApplicationLoadBalancer, elb.ApplicationListener, elb.ApplicationTargetGroup]:
        balancer = elb.ApplicationLoadBalancer(
            self,
            "Balancer",
            vpc=self.vpc,
            vpc_subnets=self._network.subnets,
            internet_facing=False,
            security_group=security_group,
            idle_timeout=IDLE_TIMEOUT,
            drop_invalid_header_fields=True,
        )
        listener = balancer.add_listener(
            "Listener", port=LISTENER_PORT, protocol=elb.ApplicationProtocol.HTTP, open=False
        )
        target_group = self.create_target_group(self)
        listener.add_target_groups("Streaming", target_groups=[target_group])
        return balancer, listener, target_group

    def create_target_group(self, scope: Construct) -> elb.ApplicationTargetGroup:
        """Create a target group of the tasks for a load balancer."""
        protocol = elb.Protocol.HTTPS if self._tls else elb.Protocol.HTTP
        return elb.ApplicationTargetGroup(
            scope,
            "Tasks",
            vpc=self.vpc,
            port=PORT,
            protocol=elb.ApplicationProtocol.HTTPS if self._tls else elb.ApplicationProtocol.HTTP,
            target_type=elb.TargetType.IP,
            targets=[self.service],
            deregistration_delay=DRAIN_TIME,
            load_balancing_algorithm_type=elb.TargetGroupLoadBalancingAlgorithmType.LEAST_OUTSTANDING_REQUESTS,
            # The check ignores the registry: other tasks could not reach it either, and all streams would be cut.
            health_check=elb.HealthCheck(
                path="/health", protocol=protocol, interval=Duration.seconds(10), healthy_threshold_count=2
            ),
        )

    def _add_scaling(self, size: ServiceSize) -> None:
        tasks = self.service.auto_scale_task_count(min_capacity=size.min_tasks, max_capacity=size.max_tasks)
        target = tasks.node.find_child("Target")
        assert isinstance(target, scaling.ScalableTarget)
        tasks.scale_on_cpu_utilization(
            "OnCpu",
            target_utilization_percent=60,
            scale_in_cooldown=SCALE_IN_COOLDOWN,
            scale_out_cooldown=SCALE_OUT_COOLDOWN,
        )
        scaling.TargetTrackingScalingPolicy(
            self,
            "OnStreams",
            scaling_target=target,
            custom_metric=self.open_streams,
            target_value=size.streams_per_task,
            scale_in_cooldown=SCALE_IN_COOLDOWN,
            scale_out_cooldown=SCALE_OUT_COOLDOWN,
        )


def _allow_traffic(source: ec2.SecurityGroup, target: ec2.SecurityGroup, port: int) -> None:
    source.add_egress_rule(target, ec2.Port.tcp(port))
    target.add_ingress_rule(source, ec2.Port.tcp(port))
