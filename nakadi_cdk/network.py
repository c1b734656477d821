"""The network of the streaming service: a new one with public or private subnets, or an existing one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import Aws, CfnCondition, Fn, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

PUBLIC_SUBNETS = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC)
ISOLATED_SUBNETS = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED)

# Regions with zones that do not support VPC links, and two zones of each that do. Other regions allow any zone.
# https://docs.aws.amazon.com/apigateway/latest/developerguide/apigateway-vpc-links-v2.html#apigateway-vpc-links-v2-availability
LINK_ZONES: Mapping[str, tuple[str, str]] = {
    "ap-east-1": ("ape1-az2", "ape1-az3"),
    "ap-northeast-1": ("apne1-az1", "apne1-az4"),
    "ca-central-1": ("cac1-az1", "cac1-az2"),
    "eu-west-3": ("euw3-az1", "euw3-az3"),
    "us-east-1": ("use1-az1", "use1-az4"),
    "us-west-1": ("usw1-az1", "usw1-az3"),
}

# The services that tasks reach through VPC endpoints if the network has no other way out.
ENDPOINTS: Mapping[str, ec2.InterfaceVpcEndpointAwsService] = {
    "Images": ec2.InterfaceVpcEndpointAwsService.ECR,
    "ImageLayers": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Kinesis": ec2.InterfaceVpcEndpointAwsService.KINESIS_STREAMS,
}

SINK_ENDPOINTS: Mapping[str, ec2.InterfaceVpcEndpointAwsService] = {
    "kms": ec2.InterfaceVpcEndpointAwsService.KMS,
    "lambda": ec2.InterfaceVpcEndpointAwsService.LAMBDA_,
    "sqs": ec2.InterfaceVpcEndpointAwsService.SQS,
    "sns": ec2.InterfaceVpcEndpointAwsService.SNS,
    "events": ec2.InterfaceVpcEndpointAwsService.EVENTBRIDGE,
}
"""The services that deliveries need, by their names in ARNs."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network for the streaming service.

    :param vpc: The VPC.
    :param subnets: The subnets of tasks, load balancer and link.
    :param public_addresses: Whether tasks get public addresses, which they need in public subnets without a NAT.
        Default: False.

        Network(vpc, ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS))
    """

    vpc: ec2.IVpc
    subnets: ec2.SubnetSelection
    public_addresses: bool = False


def existing_network(scope: Construct, vpc_id: str, subnets: Mapping[str, str]) -> Network:
    """Refer to an existing VPC by the ids of its private subnets and the zone of each."""
    vpc = ec2.Vpc.from_vpc_attributes(
        scope,
        "Network",
        vpc_id=vpc_id,
        availability_zones=list(subnets.values()),
        private_subnet_ids=list(subnets),
    )
    return Network(vpc, ec2.SubnetSelection(subnets=vpc.private_subnets))


def new_network(scope: Construct, log_retention: logs.RetentionDays, *, private: bool) -> Network:
    """Create a network for streams only. Its gateway endpoints for S3 and DynamoDB are free.

    A public network has no NAT; tasks use public addresses. From a private network tasks reach only services
    that have an endpoint.
    """
    kind = ec2.SubnetType.PRIVATE_ISOLATED if private else ec2.SubnetType.PUBLIC
    vpc = ec2.Vpc(
        scope,
        "Network",
        max_azs=2,
        nat_gateways=0,
        restrict_default_security_group=False,
        create_internet_gateway=not private,
        subnet_configuration=[
            ec2.SubnetConfiguration(name="Private", subnet_type=kind)
            if private
            else ec2.SubnetConfiguration(name="Public", subnet_type=kind, map_public_ip_on_launch=False)
        ],
        gateway_endpoints={
            "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3),
            "DynamoDb": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.DYNAMODB),
        },
    )
    log_group = logs.LogGroup(scope, "RefusedTraffic", retention=log_retention, removal_policy=RemovalPolicy.DESTROY)
    vpc.add_flow_log(
        "Refused",
        destination=ec2.FlowLogDestination.to_cloud_watch_logs(log_group),
        traffic_type=ec2.FlowLogTrafficType.REJECT,
    )
    _choose_link_zones(scope, vpc.isolated_subnets if private else vpc.public_subnets)
    return Network(vpc, ISOLATED_SUBNETS if private else PUBLIC_SUBNETS, public_addresses=not private)


def add_endpoints(
    network: Network,
    service_security_group: ec2.ISecurityGroup,
    *,
    kinesis: bool = True,
    sink_services: Sequence[str] = (),
) -> None:
    """Add interface endpoints to a private network: one address per service and zone, at an hourly price."""
    for name, service in {**ENDPOINTS, **{each.title(): SINK_ENDPOINTS[each] for each in sink_services}}.items():
        if name == "Kinesis" and not kinesis:
            continue
        endpoint = ec2.InterfaceVpcEndpoint(
            network.vpc, name, vpc=network.vpc, service=service, subnets=network.subnets, open=False
        )
        endpoint.connections.allow_from(service_security_group, ec2.Port.tcp(443))


def _choose_link_zones(scope: Construct, subnets: list[ec2.ISubnet]) -> None:
    """Let the template choose zones by region during the deployment. Zone ids are the same in every account."""
    in_region = {
        region: CfnCondition(scope, f"In-{region}", expression=Fn.condition_equals(Aws.REGION, region))
        for region in LINK_ZONES
    }
    any_zone = CfnCondition(scope, "AnyZone", expression=Fn.condition_not(Fn.condition_or(*in_region.values())))
    for number, subnet in enumerate(subnets):
        resource = subnet.node.default_child
        assert isinstance(resource, ec2.CfnSubnet)
        cdk.Validations.of(resource).acknowledge(
            cdk.Acknowledgment(id="CloudFormation-Validate::F3020", reason="Only one of both has a value")
        )
        zone_id = Aws.NO_VALUE
        for region, zones in LINK_ZONES.items():
            zone_id = Fn.condition_if(in_region[region].logical_id, zones[number], zone_id).to_string()
        resource.availability_zone_id = zone_id
        resource.availability_zone = Fn.condition_if(
            any_zone.logical_id, resource.availability_zone, Aws.NO_VALUE
        ).to_string()
