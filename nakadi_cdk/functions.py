"""The Lambda functions: one for each folder of `functions/`, with shared layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import Duration, RemovalPolicy, Stack, Tags
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from nakadi_cdk.assets import (
    COMPILED_FILES,
    assets_folder,
    dependencies_layer_code,
    kafka_layer_code,
    package_layer_code,
)
from nakadi_cdk.data import Data
from nakadi_cdk.needs import NEEDS
from nakadi_cdk.permissions import PERMISSIONS, TOPIC_ARCHIVER

# scripts/build-layers builds for this runtime and architecture.
RUNTIME = lambda_.Runtime.PYTHON_3_13
ARCHITECTURE = lambda_.Architecture.ARM_64

# The namespace of a function's metrics.
NAMESPACE_VARIABLE = "POWERTOOLS_METRICS_NAMESPACE"

# The wrapper that starts an OpenTelemetry layer. Application Signals would need permissions and cost as much as traces.
TRACING_VARIABLES: Mapping[str, str] = {
    "AWS_LAMBDA_EXEC_WRAPPER": "/opt/otel-instrument",
    "OTEL_AWS_APPLICATION_SIGNALS_ENABLED": "false",
}

# Lambda's actions on behalf of a function in a network. Describing interfaces cannot be limited to resources.
NETWORK_ACTIONS = ("ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface", "ec2:DescribeNetworkInterfaces")

# API Gateway waits for 29 s for an answer.
ANSWER_TIMEOUT = Duration.seconds(29)


@dataclass(frozen=True, slots=True)
class Size:
    memory: int
    timeout: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The memory of functions in MiB, and the concurrency that some of them reserve.

    `indexers` is the number of indexers that share the topics of Kafka.
    """

    publish_memory: int
    memory: int
    reserved_concurrency: Mapping[str, int]
    indexers: int = 1


def reserve_concurrency(concurrency: int, shards: int) -> Mapping[str, int]:
    """The concurrency to reserve for each function out of the account's limit; none if that is 0.

    While a shard is throttled, publishing must not take the concurrency of the authorizer and the log indexer.
    A reservation is also a limit, so publishing gets half of the total, and all other functions share the rest.
    """
    if not concurrency:
        return {}
    tenth = concurrency // 10
    return {
        "authorizer": tenth,
        "log_indexer": min(max(shards, 2), tenth),
        "housekeeping": 2,
        "publish": concurrency // 2,
    }


def create_log_group(
    scope: Construct, function: str, retention: logs.RetentionDays, name: str = "Logs"
) -> logs.LogGroup:
    """Create the log group of a function, which is deleted with its stack."""
    return logs.LogGroup(
        scope,
        name,
        log_group_name=f"/aws/lambda/{function}",
        retention=retention,
        removal_policy=RemovalPolicy.DESTROY,
    )


class Functions(Construct):
    """All functions with their layers, roles and log groups, the indexer's event sources and the schedules."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        data: Data,
        environments: Mapping[str, Mapping[str, str]],
        sizes: Sizes,
        index_every: Duration,
        log_retention: logs.RetentionDays,
        tracing_layers: Sequence[str] = (),
    ) -> None:
        super().__init__(scope, name)
        # The layers contain the code. Without this flag, a change of layers would not create a new version.
        self.node.set_context("@aws-cdk/aws-lambda:recognizeLayerVersion", value=True)
        self._data = data
        self._environments = environments
        self._log_retention = log_retention
        self._reserved = sizes.reserved_concurrency
        self._layers = [*self._create_layers(), *self._import_layers(tracing_layers)]
        self._tracing = TRACING_VARIABLES if tracing_layers else {}
        memory, publish_memory = sizes.memory, sizes.publish_memory
        default = Size(memory, ANSWER_TIMEOUT)
        overrides = {
            "publish": Size(publish_memory, ANSWER_TIMEOUT),
            "authorizer": Size(memory, Duration.seconds(10)),
            "log_indexer": Size(publish_memory, Duration.minutes(2)),
            "housekeeping": Size(memory, Duration.minutes(10)),
        }
        self.all = {name: self._create_function(name, overrides.get(name, default)) for name in NEEDS}
        self.failed_batches: sqs.Queue | None = None
        # The link keeper has to reach the gateway, which functions inside the network cannot.
        self.link_keeper = self.all["housekeeping"]
        if data.cluster:
            self._schedule_topic_archiver(self.all["log_indexer"], sizes.indexers)
            self.link_keeper = self._create_link_keeper()
        else:
            self.failed_batches = self._map_streams_to_indexer(self.all["log_indexer"], index_every)
        self._schedule_housekeeping(self.all["housekeeping"])

    def _create_layers(self) -> list[lambda_.LayerVersion]:
        return [
            lambda_.LayerVersion(
                self,
                f"Layer-{name}",
                code=code,
                compatible_runtimes=[RUNTIME],
                compatible_architectures=[ARCHITECTURE],
            )
            for name, code in self._layer_codes()
        ]

    def _layer_codes(self) -> Iterator[tuple[str, lambda_.Code]]:
        yield "nakadi", package_layer_code()
        yield "dependencies", dependencies_layer_code()
        if self._data.cluster:
            yield "kafka", kafka_layer_code()

    def _import_layers(self, arns: Sequence[str]) -> list[lambda_.ILayerVersion]:
        return [
            lambda_.LayerVersion.from_layer_version_arn(self, f"Tracing-{number}", arn)
            for number, arn in enumerate(arns)
        ]

    def _create_function(self, name: str, size: Size) -> lambda_.Function:
        on_kafka = self._data.cluster and "event_log" in NEEDS[name].settings
        function = self._create_lambda(
            name, name, size, self._environments[name], self._network_options() if on_kafka else {}
        )
        role = function.role
        assert isinstance(role, iam.Role)
        access = TOPIC_ARCHIVER if on_kafka and name == "log_indexer" else PERMISSIONS[name]
        for statement in access.statements(self._data):
            role.add_to_policy(statement)
        if on_kafka:
            role.add_to_policy(iam.PolicyStatement(actions=list(NETWORK_ACTIONS), resources=["*"]))
        Tags.of(function).add("function", name)
        return function

    def _network_options(self) -> Mapping[str, Any]:
        """The network of the MSK servers. It has no way out except to AWS services, and functions need no other."""
        cluster = self._data.cluster
        assert cluster is not None
        return {
            "vpc": cluster.network.vpc,
            "vpc_subnets": cluster.network.subnets,
            "security_groups": [cluster.client_security_group],
            "allow_public_subnet": True,
        }

    def _create_link_keeper(self) -> lambda_.Function:
        """A second housekeeping function outside the network, from which the gateway can be reached."""
        return self._create_lambda("link", "housekeeping", Size(256, Duration.minutes(2)), {}, {})

    def _create_lambda(
        self, name: str, folder: str, size: Size, environment: Mapping[str, str], network: Mapping[str, Any]
    ) -> lambda_.Function:
        full_name = f"{self._data.prefix}-{name.replace('_', '-')}"
        log_group = create_log_group(self, full_name, self._log_retention, f"Logs-{name}")
        role = iam.Role(self, f"Role-{name}", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        function = lambda_.Function(
            self,
            name,
            function_name=full_name,
            code=lambda_.Code.from_asset(str(assets_folder() / "functions" / folder), exclude=COMPILED_FILES),
            handler="handler.handler",
            runtime=RUNTIME,
            architecture=ARCHITECTURE,
            layers=self._layers,
            memory_size=size.memory,
            timeout=size.timeout,
            reserved_concurrent_executions=self._reserved.get(name),
            environment={**environment, **self._tracing, NAMESPACE_VARIABLE: self._data.prefix},
            role=role,
            log_group=log_group,
            tracing=lambda_.Tracing.ACTIVE,
            **network,
        )
        log_group.grant_write(role)
        return function

    def _schedule_topic_archiver(self, indexer: lambda_.Function, parts: int) -> None:
        """Invoke the indexer every minute. An MSK event source would not do, because it reads only one topic, and each
        timeline has a topic of its own.
        """
        inputs = [events.RuleTargetInput.from_object({"part": part, "parts": parts}) for part in range(parts)]
        events.Rule(
            self,
            "EveryMinute",
            description=f"The log indexer of {Stack.of(self).stack_name}",
            schedule=events.Schedule.rate(Duration.minutes(1)),
            targets=[
                targets.LambdaFunction(indexer, event=each, retry_attempts=0, max_event_age=Duration.minutes(1))
                for each in inputs
            ],
        )

    def _map_streams_to_indexer(self, indexer: lambda_.Function, window: Duration) -> sqs.Queue:
        """Invoke the indexer for the batches of each stream. Returns the queue for positions of batches that always
        fail.
        """
        failed_batches = sqs.Queue(
            self,
            "SetAside",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=Duration.days(14),
        )
        failed_batches.grant_send_messages(indexer)
        for name, stream in self._data.streams.items():
            mapping = lambda_.CfnEventSourceMapping(
                self,
                f"Log{name.removeprefix(self._data.prefix)}",
                event_source_arn=stream.arn,
                function_name=indexer.function_name,
                starting_position="TRIM_HORIZON",
                # A batch costs a few index writes per partition regardless of its number of events. No request waits
                # for it: readers count events that are not indexed yet.
                batch_size=10_000,
                maximum_batching_window_in_seconds=window.to_seconds(),
                # Parallel batches of a shard would count the same partitions concurrently.
                parallelization_factor=1,
                bisect_batch_on_function_error=True,
                maximum_retry_attempts=20,
                function_response_types=["ReportBatchItemFailures"],
                destination_config={"onFailure": {"destination": failed_batches.queue_arn}},
            )
            # AWS refuses the mapping until the function may read the stream.
            mapping.node.add_dependency(indexer.role)
        return failed_batches

    def _schedule_housekeeping(self, housekeeping: lambda_.Function) -> None:
        # Rounds of housekeeping may overlap, and may be skipped, because each does all work that is due.
        target = targets.LambdaFunction(housekeeping, retry_attempts=0, max_event_age=Duration.minutes(5))
        events.Rule(
            self,
            "EveryFiveMinutes",
            description=f"Housekeeping of {Stack.of(self).stack_name}",
            schedule=events.Schedule.rate(Duration.minutes(5)),
            targets=[target],
        )
