"""The Lambda functions: one for each folder of `functions/`, with two layers that they share."""

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

from nakadi_cdk.assets import COMPILED, assets, layer_of_dependencies, layer_of_kafka, layer_of_package
from nakadi_cdk.data import Data
from nakadi_cdk.needs import NEEDS
from nakadi_cdk.permissions import PERMISSIONS, TOPIC_ARCHIVER

# As scripts/build-layers builds for.
PYTHON = lambda_.Runtime.PYTHON_3_13
ARCHITECTURE = lambda_.Architecture.ARM_64

# The namespace of a function's metrics.
NAMESPACE_VARIABLE = "POWERTOOLS_METRICS_NAMESPACE"

# What a layer with OpenTelemetry is started by. Application Signals would need permissions, and cost as much as traces.
TRACED: Mapping[str, str] = {
    "AWS_LAMBDA_EXEC_WRAPPER": "/opt/otel-instrument",
    "OTEL_AWS_APPLICATION_SIGNALS_ENABLED": "false",
}

# What Lambda does in the name of a function that is in a network; to describe interfaces knows no resources.
IN_A_NETWORK = ("ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface", "ec2:DescribeNetworkInterfaces")

# API Gateway waits 29 s.
FOR_AN_ANSWER = Duration.seconds(29)


@dataclass(frozen=True, slots=True)
class Size:
    memory: int
    timeout: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """MiB for publishing and indexing, MiB for the others, and invocations that are kept for some functions.

    `indexers` is how many divide topics among them, where events are in topics.
    """

    publish_memory: int
    memory: int
    reserved: Mapping[str, int]
    indexers: int = 1


def reserved(concurrency: int, shards: int) -> Mapping[str, int]:
    """How many invocations at once are kept for a function, of all that the account may run; none where that is 0.

    What publishing takes when a shard is throttled must not be taken from those who check tokens and who count events.
    A reservation is a limit as well, so publishing has half of everything, and the others what is left over.
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


class Functions(Construct):
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
        # The code is in the layers: without this, a version would be the same with other layers.
        self.node.set_context("@aws-cdk/aws-lambda:recognizeLayerVersion", value=True)
        self._data = data
        self._environments = environments
        self._log_retention = log_retention
        self._reserved = sizes.reserved
        self._layers = [*self._layer_versions(), *self._imported(tracing_layers)]
        self._tracing = TRACED if tracing_layers else {}
        memory, publish_memory = sizes.memory, sizes.publish_memory
        usual = Size(memory, FOR_AN_ANSWER)
        special = {
            "publish": Size(publish_memory, FOR_AN_ANSWER),
            "authorizer": Size(memory, Duration.seconds(10)),
            "log_indexer": Size(publish_memory, Duration.minutes(2)),
            "housekeeping": Size(memory, Duration.minutes(10)),
        }
        self.all = {name: self._function(name, special.get(name, usual)) for name in NEEDS}
        self.set_aside: sqs.Queue | None = None
        # One that can reach what is not in the network of the others.
        self.outside = self.all["housekeeping"]
        if data.cluster:
            self._archive_topics(self.all["log_indexer"], sizes.indexers)
            self.outside = self._link_keeper()
        else:
            self.set_aside = self._index_the_log(self.all["log_indexer"], index_every)
        self._keep_house(self.all["housekeeping"])

    def _layer_versions(self) -> list[lambda_.LayerVersion]:
        return [
            lambda_.LayerVersion(
                self,
                f"Layer-{name}",
                code=code,
                compatible_runtimes=[PYTHON],
                compatible_architectures=[ARCHITECTURE],
            )
            for name, code in self._layers_made()
        ]

    def _layers_made(self) -> Iterator[tuple[str, lambda_.Code]]:
        yield "nakadi", layer_of_package()
        yield "dependencies", layer_of_dependencies()
        if self._data.cluster:
            yield "kafka", layer_of_kafka()

    def _imported(self, arns: Sequence[str]) -> list[lambda_.ILayerVersion]:
        return [
            lambda_.LayerVersion.from_layer_version_arn(self, f"Tracing-{number}", arn)
            for number, arn in enumerate(arns)
        ]

    def _function(self, name: str, size: Size) -> lambda_.Function:
        on_topics = self._data.cluster and "event_log" in NEEDS[name].settings
        function = self._made(name, name, size, self._environments[name], self._in_network() if on_topics else {})
        role = function.role
        assert isinstance(role, iam.Role)
        may = TOPIC_ARCHIVER if on_topics and name == "log_indexer" else PERMISSIONS[name]
        for statement in may.statements(self._data):
            role.add_to_policy(statement)
        if on_topics:
            role.add_to_policy(iam.PolicyStatement(actions=list(IN_A_NETWORK), resources=["*"]))
        Tags.of(function).add("function", name)
        return function

    def _in_network(self) -> Mapping[str, Any]:
        """Where the servers of MSK are. A way out to anything but AWS's own is not needed, and there is none."""
        cluster = self._data.cluster
        assert cluster is not None
        return {
            "vpc": cluster.network.vpc,
            "vpc_subnets": cluster.network.subnets,
            "security_groups": [cluster.of_clients],
            "allow_public_subnet": True,
        }

    def _link_keeper(self) -> lambda_.Function:
        """The code of housekeeping, for what is asked of the gateway: from the network there is no way to it."""
        return self._made("link", "housekeeping", Size(256, Duration.minutes(2)), {}, {})

    def _made(
        self, name: str, folder: str, size: Size, environment: Mapping[str, str], network: Mapping[str, Any]
    ) -> lambda_.Function:
        full_name = f"{self._data.prefix}-{name.replace('_', '-')}"
        log_group = logs.LogGroup(
            self,
            f"Logs-{name}",
            log_group_name=f"/aws/lambda/{full_name}",
            retention=self._log_retention,
            removal_policy=RemovalPolicy.DESTROY,
        )
        role = iam.Role(self, f"Role-{name}", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        function = lambda_.Function(
            self,
            name,
            function_name=full_name,
            code=lambda_.Code.from_asset(str(assets() / "functions" / folder), exclude=COMPILED),
            handler="handler.handler",
            runtime=PYTHON,
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

    def _archive_topics(self, indexer: lambda_.Function, parts: int) -> None:
        """A mapping of MSK reads one topic, and each timeline has its own: so the function is started by the clock."""
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

    def _index_the_log(self, indexer: lambda_.Function, every: Duration) -> sqs.Queue:
        """What cannot be indexed after all attempts is reported to a queue, as shard and sequence numbers."""
        set_aside = sqs.Queue(
            self,
            "SetAside",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=Duration.days(14),
        )
        set_aside.grant_send_messages(indexer)
        for name, stream in self._data.streams.items():
            mapping = lambda_.CfnEventSourceMapping(
                self,
                f"Log{name.removeprefix(self._data.prefix)}",
                event_source_arn=stream.arn,
                function_name=indexer.function_name,
                starting_position="TRIM_HORIZON",
                # A batch costs the index some writes for each partition, however many events are in it. No request
                # waits: readers count by themselves what is not indexed yet.
                batch_size=10_000,
                maximum_batching_window_in_seconds=every.to_seconds(),
                # Several at once for a shard would count its partitions side by side.
                parallelization_factor=1,
                bisect_batch_on_function_error=True,
                maximum_retry_attempts=20,
                function_response_types=["ReportBatchItemFailures"],
                destination_config={"onFailure": {"destination": set_aside.queue_arn}},
            )
            # The mapping is refused while its function may not read the stream.
            mapping.node.add_dependency(indexer.role)
        return set_aside

    def _keep_house(self, housekeeping: lambda_.Function) -> None:
        # A round that is still running when the next one starts does no harm, and neither does one that was missed.
        target = targets.LambdaFunction(housekeeping, retry_attempts=0, max_event_age=Duration.minutes(5))
        events.Rule(
            self,
            "EveryFiveMinutes",
            description=f"Housekeeping of {Stack.of(self).stack_name}",
            schedule=events.Schedule.rate(Duration.minutes(5)),
            targets=[target],
        )
