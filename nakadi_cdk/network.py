"""Where the streaming service is: a network of its own, without or with private subnets only, or one that exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import Aws, CfnCondition, Fn, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

PUBLIC = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC)
ISOLATED = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED)

# Regions with zones that a VPC link cannot be in, and two zones of each that it can. Elsewhere any two will do.
# https://docs.aws.amazon.com/apigateway/latest/developerguide/apigateway-vpc-links-v2.html#apigateway-vpc-links-v2-availability
ZONES_OF_LINKS: Mapping[str, tuple[str, str]] = {
    "ap-east-1": ("ape1-az2", "ape1-az3"),
    "ap-northeast-1": ("apne1-az1", "apne1-az4"),
    "ca-central-1": ("cac1-az1", "cac1-az2"),
    "eu-west-3": ("euw3-az1", "euw3-az3"),
    "us-east-1": ("use1-az1", "use1-az4"),
    "us-west-1": ("usw1-az1", "usw1-az3"),
}

# What a task asks for by a network address of the network's own, where it has no other way out.
ENDPOINTS: Mapping[str, ec2.InterfaceVpcEndpointAwsService] = {
    "Images": ec2.InterfaceVpcEndpointAwsService.ECR,
    "ImageLayers": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Kinesis": ec2.InterfaceVpcEndpointAwsService.KINESIS_STREAMS,
}


@dataclass(frozen=True, slots=True)
class Network:
    """A network, its subnets that tasks, balancer and link are in, and whether tasks need addresses to get out."""

    vpc: ec2.IVpc
    subnets: ec2.SubnetSelection
    public_addresses: bool = False


def existing_network(scope: Construct, vpc_id: str, subnets: Mapping[str, str]) -> Network:
    """One that somebody else looks after: private subnets by their ids, and the zone of each."""
    vpc = ec2.Vpc.from_vpc_attributes(
        scope,
        "Network",
        vpc_id=vpc_id,
        availability_zones=list(subnets.values()),
        private_subnet_ids=list(subnets),
    )
    return Network(vpc, ec2.SubnetSelection(subnets=vpc.private_subnets))


def new_network(scope: Construct, log_retention: logs.RetentionDays, *, private: bool) -> Network:
    """Nothing but what streams need. The gateway endpoints of S3 and DynamoDB cost nothing.

    A public one has no NAT, and tasks get out by addresses of their own; from a private one there is no way out at all
    but to the services that streams need.
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
    refused = logs.LogGroup(scope, "RefusedTraffic", retention=log_retention, removal_policy=RemovalPolicy.DESTROY)
    vpc.add_flow_log(
        "Refused",
        destination=ec2.FlowLogDestination.to_cloud_watch_logs(refused),
        traffic_type=ec2.FlowLogTrafficType.REJECT,
    )
    _put_where_links_can_be(scope, vpc.isolated_subnets if private else vpc.public_subnets)
    return Network(vpc, ISOLATED if private else PUBLIC, public_addresses=not private)


def add_endpoints(network: Network, of_service: ec2.ISecurityGroup, *, kinesis: bool = True) -> None:
    """The ways out of a private network: an address in each zone for each service, which is paid for by the hour."""
    for name, service in ENDPOINTS.items():
        if name == "Kinesis" and not kinesis:
            continue
        endpoint = ec2.InterfaceVpcEndpoint(
            network.vpc, name, vpc=network.vpc, service=service, subnets=network.subnets, open=False
        )
        endpoint.connections.allow_from(of_service, ec2.Port.tcp(443))


def _put_where_links_can_be(scope: Construct, subnets: list[ec2.ISubnet]) -> None:
    """Templates know no region, so they decide where they are deployed. A zone has the same id in every account."""
    here = {
        region: CfnCondition(scope, f"In-{region}", expression=Fn.condition_equals(Aws.REGION, region))
        for region in ZONES_OF_LINKS
    }
    any_will_do = CfnCondition(scope, "AnyZone", expression=Fn.condition_not(Fn.condition_or(*here.values())))
    for number, subnet in enumerate(subnets):
        made = subnet.node.default_child
        assert isinstance(made, ec2.CfnSubnet)
        cdk.Validations.of(made).acknowledge(
            cdk.Acknowledgment(id="CloudFormation-Validate::F3020", reason="Only one of both has a value")
        )
        zone_id = Aws.NO_VALUE
        for region, zones in ZONES_OF_LINKS.items():
            zone_id = Fn.condition_if(here[region].logical_id, zones[number], zone_id).to_string()
        made.availability_zone_id = zone_id
        made.availability_zone = Fn.condition_if(
            any_will_do.logical_id, made.availability_zone, Aws.NO_VALUE
        ).to_string()
