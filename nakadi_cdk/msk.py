"""Events in Amazon MSK: a cluster, made or given, who may reach it over the network, and where its servers are."""

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

PORT = 9098
"""Where servers take those who sign in by IAM."""

VERSION = "3.8.x"
COPIES, LEAST_IN_SYNC = 3, 2

# What cannot be chosen for Express brokers, which always have three copies.
SERVER_PROPERTIES = f"""auto.create.topics.enable=false
default.replication.factor={COPIES}
min.insync.replicas={LEAST_IN_SYNC}
unclean.leader.election.enable=false
"""

GROUP = "nakadi"
"""Consumers name it, and do not join it."""

CONNECT = ("kafka-cluster:Connect",)
READ = ("kafka-cluster:DescribeTopic", "kafka-cluster:ReadData")
# Settings of a topic tell those who are refused that it was sealed.
WRITE = (*READ, "kafka-cluster:DescribeTopicDynamicConfiguration", "kafka-cluster:WriteData")
# Deleting records takes the right to delete the topic.
REMOVE = (*READ, "kafka-cluster:DeleteTopic")
MANAGE = (
    *WRITE,
    "kafka-cluster:AlterTopic",
    "kafka-cluster:AlterTopicDynamicConfiguration",
    "kafka-cluster:CreateTopic",
    "kafka-cluster:DeleteTopic",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`kind` is serverless, express, provisioned, or the ARN of a cluster with its servers and security group."""

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
        """Whether it is made of brokers that can be counted and watched."""
        return self.kind in {"express", "provisioned"}


def within(cluster: str, prefix: str, kind: str) -> str:
    """What the names of topics or groups of a cluster begin with. The id of one that is made is not known before."""
    if cluster.startswith("arn:"):
        return cluster.replace(":cluster/", f":{kind}/")
    return f"arn:{Aws.PARTITION}:kafka:{Aws.REGION}:{Aws.ACCOUNT_ID}:{kind}/{prefix}/*"


class Cluster(Construct):
    """`of_clients` is the security group of those who may reach the servers, besides which they sign in."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        prefix: str,
        choice: Choice,
        network: Network,
        keep: bool,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, name)
        self.prefix = prefix
        self.choice = choice
        self.network = network
        self._removal = RemovalPolicy.RETAIN if keep else RemovalPolicy.DESTROY
        self.of_clients = self._security_group("OfClients", "What reads and writes events in MSK")
        self.of_clients.add_egress_rule(
            ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "DynamoDB, S3 and other services of AWS"
        )
        of_servers: ec2.ISecurityGroup
        if choice.exists:
            of_servers = ec2.SecurityGroup.from_security_group_id(self, "OfServers", choice.security_group)
        else:
            of_servers = self._security_group("OfServers", "The servers of MSK")
        self.of_clients.add_egress_rule(of_servers, ec2.Port.tcp(PORT), "Events")
        of_servers.add_ingress_rule(self.of_clients, ec2.Port.tcp(PORT), "The broker")
        self.arn = choice.kind if choice.exists else self._made(of_servers, key)
        self.servers = choice.servers or self._found_servers()

    @property
    def event_log(self) -> str:
        """Where the engine finds it. Topics have the stage in front, for a cluster may have several."""
        return f"kafka://{self.servers}?iam={Aws.REGION}&prefix={self.topic_prefix}"

    @property
    def topic_prefix(self) -> str:
        return f"{self.prefix}."

    def statements(self, topics: tuple[str, ...]) -> Iterator[iam.PolicyStatement]:
        """What may be done with the topics of the stage. Resources of a cluster are named by it and its own id."""
        of_cluster = list(CONNECT)
        if "kafka-cluster:WriteData" in topics:
            of_cluster.append("kafka-cluster:WriteDataIdempotently")
        yield iam.PolicyStatement(actions=of_cluster, resources=[self.arn])
        yield iam.PolicyStatement(actions=list(topics), resources=[self._within("topic", f"{self.topic_prefix}*")])
        yield iam.PolicyStatement(actions=["kafka-cluster:DescribeGroup"], resources=[self._within("group", GROUP)])

    def _within(self, kind: str, name: str) -> str:
        return f"{within(self.choice.kind, self.prefix, kind)}/{name}"

    def _security_group(self, name: str, description: str) -> ec2.SecurityGroup:
        return ec2.SecurityGroup(self, name, vpc=self.network.vpc, description=description, allow_all_outbound=False)

    def _made(self, of_servers: ec2.ISecurityGroup, key: kms.IKey | None) -> str:
        cluster: msk.CfnServerlessCluster | msk.CfnCluster
        chosen = self.network.subnets
        found = self.network.vpc.select_subnets(subnet_type=chosen.subnet_type, subnets=chosen.subnets)
        if self.choice.kind == "serverless":
            cluster = self._serverless(found.subnet_ids, of_servers)
        else:
            cluster = self._of_brokers(found.subnet_ids, of_servers, key)
        cluster.apply_removal_policy(self._removal)
        return str(cluster.attr_arn)

    def _serverless(self, subnets: list[str], of_servers: ec2.ISecurityGroup) -> msk.CfnServerlessCluster:
        made = msk.CfnServerlessCluster
        return made(
            self,
            "Serverless",
            cluster_name=self.prefix,
            client_authentication=made.ClientAuthenticationProperty(
                sasl=made.SaslProperty(iam=made.IamProperty(enabled=True))
            ),
            vpc_configs=[made.VpcConfigProperty(subnet_ids=subnets, security_groups=[of_servers.security_group_id])],
        )

    def _of_brokers(self, subnets: list[str], of_servers: ec2.ISecurityGroup, key: kms.IKey | None) -> msk.CfnCluster:
        made, express = msk.CfnCluster, self.choice.kind == "express"
        brokers_log = self._logs("Logs")
        disks = made.StorageInfoProperty(ebs_storage_info=made.EBSStorageInfoProperty(volume_size=self.choice.disk_gb))
        return made(
            self,
            "Brokers",
            cluster_name=self.prefix,
            kafka_version=VERSION,
            number_of_broker_nodes=self.choice.brokers,
            broker_node_group_info=made.BrokerNodeGroupInfoProperty(
                client_subnets=subnets,
                instance_type=self.choice.instance or ("express.m7g.large" if express else "kafka.m7g.large"),
                security_groups=[of_servers.security_group_id],
                storage_info=None if express else disks,
            ),
            configuration_info=None if express else self._configuration(),
            client_authentication=made.ClientAuthenticationProperty(
                sasl=made.SaslProperty(iam=made.IamProperty(enabled=True)),
                unauthenticated=made.UnauthenticatedProperty(enabled=False),
            ),
            encryption_info=made.EncryptionInfoProperty(
                encryption_at_rest=made.EncryptionAtRestProperty(data_volume_kms_key_id=key.key_arn) if key else None,
                encryption_in_transit=made.EncryptionInTransitProperty(client_broker="TLS", in_cluster=True),
            ),
            enhanced_monitoring="PER_BROKER",
            logging_info=made.LoggingInfoProperty(
                broker_logs=made.BrokerLogsProperty(
                    cloud_watch_logs=made.CloudWatchLogsProperty(enabled=True, log_group=brokers_log.log_group_name)
                )
            ),
        )

    def _configuration(self) -> msk.CfnCluster.ConfigurationInfoProperty:
        made = msk.CfnConfiguration(
            self,
            "Configuration",
            name=self.prefix,
            kafka_versions_list=[VERSION],
            server_properties=SERVER_PROPERTIES,
        )
        return msk.CfnCluster.ConfigurationInfoProperty(arn=made.attr_arn, revision=made.attr_latest_revision_revision)

    def _logs(self, name: str) -> logs.LogGroup:
        return logs.LogGroup(self, name, retention=logs.RetentionDays.ONE_MONTH, removal_policy=RemovalPolicy.DESTROY)

    def _found_servers(self) -> str:
        """CloudFormation does not say where a cluster's servers are, so they are asked for once it is made."""
        asked = custom_resources.AwsCustomResource(
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
            # The one that Lambda has knows this call.
            install_latest_aws_sdk=False,
            log_group=self._logs("ServersLogs"),
        )
        return str(asked.get_response_field("BootstrapBrokerStringSaslIam"))
