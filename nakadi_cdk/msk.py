"""An Amazon MSK cluster for events, new or existing, with its security groups and server addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aws_cdk import Aws, RemovalPolicy, custom_resources
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_msk as msk
from constructs import Construct

from nakadi_cdk.network import Network

IAM_PORT = 9098
"""The port for clients that authenticate with IAM."""

KAFKA_VERSION = "3.8.x"
REPLICAS, MIN_IN_SYNC_REPLICAS = 3, 2

# Express brokers do not accept these settings; they always keep three replicas.
SERVER_PROPERTIES = f"""auto.create.topics.enable=false
default.replication.factor={REPLICAS}
min.insync.replicas={MIN_IN_SYNC_REPLICAS}
unclean.leader.election.enable=false
"""

CONSUMER_GROUP = "nakadi"
"""Consumers send this group name but do not join the group."""

CONNECT_ACTIONS = ("kafka-cluster:Connect",)
READ = ("kafka-cluster:DescribeTopic", "kafka-cluster:ReadData")
# A writer whose event is refused reads the topic's settings to learn whether the topic is sealed.
WRITE = (*READ, "kafka-cluster:DescribeTopicDynamicConfiguration", "kafka-cluster:WriteData")
# MSK requires the right to delete the topic for deleting records.
REMOVE = (*READ, "kafka-cluster:DeleteTopic")
MANAGE = (
    *WRITE,
    "kafka-cluster:AlterTopic",
    "kafka-cluster:AlterTopicDynamicConfiguration",
    "kafka-cluster:CreateTopic",
    "kafka-cluster:DeleteTopic",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """The cluster to use. `kind` is serverless, express, provisioned, or the ARN of an existing cluster.

    An existing cluster also needs `servers` and `security_group`.
    """

    kind: str
    instance: str = ""
    brokers: int = 3
    disk_gb: int = 100
    servers: str = ""
    security_group: str = ""

    @property
    def exists(self) -> bool:
        return self.kind.startswith("arn:")

    @property
    def has_brokers(self) -> bool:
        """Whether the cluster consists of individual brokers with their own metrics."""
        return self.kind in {"express", "provisioned"}


def resource_arn_prefix(cluster: str, prefix: str, kind: str) -> str:
    """The ARN prefix of a cluster's topics or groups. The id of a new cluster is unknown, so it is a wildcard."""
    if cluster.startswith("arn:"):
        return cluster.replace(":cluster/", f":{kind}/")
    return f"arn:{Aws.PARTITION}:kafka:{Aws.REGION}:{Aws.ACCOUNT_ID}:{kind}/{prefix}/*"


class Cluster(Construct):
    """A cluster of MSK. Clients need `client_security_group` to reach it, and authenticate with IAM."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        prefix: str,
        choice: ClusterChoice,
        network: Network,
        keep: bool,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, name)
        self.prefix = prefix
        self.choice = choice
        self.network = network
        self._removal = RemovalPolicy.RETAIN if keep else RemovalPolicy.DESTROY
        self.client_security_group = self._security_group("OfClients", "What reads and writes events in MSK")
        self.client_security_group.add_egress_rule(
            ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "DynamoDB, S3 and other services of AWS"
        )
        server_security_group: ec2.ISecurityGroup
        if choice.exists:
            server_security_group = ec2.SecurityGroup.from_security_group_id(self, "OfServers", choice.security_group)
        else:
            server_security_group = self._security_group("OfServers", "The servers of MSK")
        self.client_security_group.add_egress_rule(server_security_group, ec2.Port.tcp(IAM_PORT), "Events")
        server_security_group.add_ingress_rule(self.client_security_group, ec2.Port.tcp(IAM_PORT), "The broker")
        self.arn = choice.kind if choice.exists else self._create(server_security_group, key)
        self.servers = choice.servers or self._look_up_servers()

    @property
    def event_log(self) -> str:
        """The event log's address. Topic names begin with the stage, since stages may share a cluster."""
        return f"kafka://{self.servers}?iam={Aws.REGION}&prefix={self.topic_prefix}"

    @property
    def topic_prefix(self) -> str:
        return f"{self.prefix}."

    def statements(self, topics: tuple[str, ...]) -> Iterator[iam.PolicyStatement]:
        """The policy statements that allow the given actions on the topics of the stage."""
        cluster_actions = list(CONNECT_ACTIONS)
        if "kafka-cluster:WriteData" in topics:
            cluster_actions.append("kafka-cluster:WriteDataIdempotently")
        yield iam.PolicyStatement(actions=cluster_actions, resources=[self.arn])
        yield iam.PolicyStatement(
            actions=list(topics), resources=[self._resource_arn("topic", f"{self.topic_prefix}*")]
        )
        yield iam.PolicyStatement(
            actions=["kafka-cluster:DescribeGroup"], resources=[self._resource_arn("group", CONSUMER_GROUP)]
        )

    def _resource_arn(self, kind: str, name: str) -> str:
        return f"{resource_arn_prefix(self.choice.kind, self.prefix, kind)}/{name}"

    def _security_group(self, name: str, description: str) -> ec2.SecurityGroup:
        return ec2.SecurityGroup(self, name, vpc=self.network.vpc, description=description, allow_all_outbound=False)

    def _create(self, server_security_group: ec2.ISecurityGroup, key: kms.IKey | None) -> str:
        cluster: msk.CfnServerlessCluster | msk.CfnCluster
        selection = self.network.subnets
        subnets = self.network.vpc.select_subnets(subnet_type=selection.subnet_type, subnets=selection.subnets)
        if self.choice.kind == "serverless":
            cluster = self._create_serverless(subnets.subnet_ids, server_security_group)
        else:
            cluster = self._create_brokers(subnets.subnet_ids, server_security_group, key)
        cluster.apply_removal_policy(self._removal)
        return str(cluster.attr_arn)

    def _create_serverless(
        self, subnets: list[str], server_security_group: ec2.ISecurityGroup
    ) -> msk.CfnServerlessCluster:
        resource = msk.CfnServerlessCluster
        return resource(
            self,
            "Serverless",
            cluster_name=self.prefix,
            client_authentication=resource.ClientAuthenticationProperty(
                sasl=resource.SaslProperty(iam=resource.IamProperty(enabled=True))
            ),
            vpc_configs=[
                resource.VpcConfigProperty(
                    subnet_ids=subnets, security_groups=[server_security_group.security_group_id]
                )
            ],
        )

    def _create_brokers(
        self, subnets: list[str], server_security_group: ec2.ISecurityGroup, key: kms.IKey | None
    ) -> msk.CfnCluster:
        resource, express = msk.CfnCluster, self.choice.kind == "express"
        brokers_log = self._create_log_group("Logs")
        disks = resource.StorageInfoProperty(
            ebs_storage_info=resource.EBSStorageInfoProperty(volume_size=self.choice.disk_gb)
        )
        return resource(
            self,
            "Brokers",
            cluster_name=self.prefix,
            kafka_version=KAFKA_VERSION,
            number_of_broker_nodes=self.choice.brokers,
            broker_node_group_info=resource.BrokerNodeGroupInfoProperty(
                client_subnets=subnets,
                instance_type=self.choice.instance or ("express.m7g.large" if express else "kafka.m7g.large"),
                security_groups=[server_security_group.security_group_id],
                storage_info=None if express else disks,
            ),
            configuration_info=None if express else self._create_configuration(),
            client_authentication=resource.ClientAuthenticationProperty(
                sasl=resource.SaslProperty(iam=resource.IamProperty(enabled=True)),
                unauthenticated=resource.UnauthenticatedProperty(enabled=False),
            ),
            encryption_info=resource.EncryptionInfoProperty(
                encryption_at_rest=resource.EncryptionAtRestProperty(data_volume_kms_key_id=key.key_arn)
                if key
                else None,
                encryption_in_transit=resource.EncryptionInTransitProperty(client_broker="TLS", in_cluster=True),
            ),
            enhanced_monitoring="PER_BROKER",
            logging_info=resource.LoggingInfoProperty(
                broker_logs=resource.BrokerLogsProperty(
                    cloud_watch_logs=resource.CloudWatchLogsProperty(enabled=True, log_group=brokers_log.log_group_name)
                )
            ),
        )

    def _create_configuration(self) -> msk.CfnCluster.ConfigurationInfoProperty:
        configuration = msk.CfnConfiguration(
            self,
            "Configuration",
            name=self.prefix,
            kafka_versions_list=[KAFKA_VERSION],
            server_properties=SERVER_PROPERTIES,
        )
        return msk.CfnCluster.ConfigurationInfoProperty(
            arn=configuration.attr_arn, revision=configuration.attr_latest_revision_revision
        )

    def _create_log_group(self, name: str) -> logs.LogGroup:
        return logs.LogGroup(self, name, retention=logs.RetentionDays.ONE_MONTH, removal_policy=RemovalPolicy.DESTROY)

    def _look_up_servers(self) -> str:
        """Ask MSK for the server addresses of a new cluster, which CloudFormation does not provide."""
        lookup = custom_resources.AwsCustomResource(
            self,
            "Servers",
            on_update=custom_resources.AwsSdkCall(
                service="Kafka",
                action="GetBootstrapBrokers",
                parameters={"ClusterArn": self.arn},
                physical_resource_id=custom_resources.PhysicalResourceId.of(f"{self.prefix}-servers"),
            ),
            policy=custom_resources.AwsCustomResourcePolicy.from_statements(
                [iam.PolicyStatement(actions=["kafka:GetBootstrapBrokers"], resources=[self.arn])]
            ),
            # Lambda's own SDK knows this call.
            install_latest_aws_sdk=False,
            log_group=self._create_log_group("ServersLogs"),
        )
        return str(lookup.get_response_field("BootstrapBrokerStringSaslIam"))
