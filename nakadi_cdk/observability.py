"""Alarms, their topic, and an optional dashboard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from aws_cdk import Aws, Duration
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from nakadi_cdk.data import Data, NamedStream
from nakadi_cdk.direct import Direct
from nakadi_cdk.functions import Functions
from nakadi_cdk.msk import ClusterChoice
from nakadi_cdk.needs import NEEDS
from nakadi_cdk.streaming import Streaming

MINUTE = Duration.minutes(1)

# CloudWatch's limit for one alarm.
MAX_METRICS_PER_ALARM = 10

# An objective of a month that burns at this rate is used up in five days.
BURN_RATE = 6

# The share of requests to publish that may be refused, and how many there have to be in five minutes.
REFUSED_SHARE, MIN_PUBLICATIONS = 0.1, 20

SLOW_REGISTRY_MILLISECONDS = 100

# Housekeeping runs this often.
HOUSEKEEPING_PERIOD = Duration.minutes(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmOptions:
    """The address that alarms are sent to, whether to create more than the necessary alarms, and whether to create a
    dashboard.
    """

    alarm_email: str
    more_alarms: bool
    dashboard: bool
    late_seconds: int
    """The age of events waiting for their tables that raises an alarm; 0 if a schedule starts the job."""


class Observability(Construct):
    """The alarms of a deployment. docs/operations.md explains each one and what to do about it."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        data: Data,
        api: apigateway.SpecRestApi,
        functions: Functions,
        streaming: Streaming | None,
        direct: Direct | None,
        options: AlarmOptions,
    ) -> None:
        super().__init__(scope, name)
        self._data = data
        self._functions = functions.all
        self._streaming = streaming
        self._api = api
        self._failed_batches = functions.failed_batches
        self.topic = _create_topic(self, options.alarm_email)
        self.alarms = [*self._event_alarms(), *self._function_and_api_alarms(), *self._subscription_alarms()]
        if streaming:
            self.alarms += self._streaming_alarms(streaming)
        if direct:
            self.alarms.append(self._direct_alarm(direct))
        if options.late_seconds:
            self.alarms += self._table_alarms(options.late_seconds)
        if options.more_alarms:
            self.alarms += self._more_alarms(streaming)
        if options.dashboard:
            self._create_dashboard()

    def _event_alarms(self) -> Iterator[cloudwatch.Alarm]:
        indexer = self._functions["log_indexer"]
        yield self._create_alarm(
            "EventsAreNotIndexed",
            self._index_lag,
            600,
            "The oldest event that is not counted and archived is older than ten minutes, or nothing measures it",
            periods=2,
            silence_is_bad=True,
        )
        yield self._create_alarm(
            "IndexerFails",
            indexer.metric_errors(period=MINUTE),
            1,
            "The log indexer fails again and again",
            periods=10,
        )
        if self._failed_batches:
            yield from self._indexer_alarms(indexer, self._failed_batches)
        for name, stream in self._data.streams.items():
            yield from self._stream_alarms(name.removeprefix(self._data.prefix), stream)
        if self._data.cluster and self._data.cluster.choice.has_brokers:
            yield from self._kafka_alarms(self._data.cluster.choice)
        yield self._create_alarm(
            "TablesAreThrottled",
            self._sum_metrics("Throttled requests", self._throttle_metrics()),
            10,
            "DynamoDB rejects requests to tables",
            periods=5,
        )
        yield self._create_alarm(
            "HousekeepingFails",
            self._functions["housekeeping"].metric_errors(period=HOUSEKEEPING_PERIOD),
            1,
            "Housekeeping does not remove or compact events",
            periods=3,
        )

    @property
    def _index_lag(self) -> cloudwatch.Metric:
        """The metric of the index's lag. With Kinesis, housekeeping measures this lag; with Kafka, the log indexer
        does.
        """
        reporter = "log_indexer" if self._data.cluster else "housekeeping"
        return self._function_metric("IndexLag", reporter, HOUSEKEEPING_PERIOD, statistic="Maximum")

    def _indexer_alarms(self, indexer: lambda_.Function, failed_batches: sqs.Queue) -> Iterator[cloudwatch.Alarm]:
        yield self._create_alarm(
            "IndexerIsLate",
            indexer.metric("IteratorAge", statistic="Maximum", period=MINUTE),
            300_000,
            "Events are counted and archived more than five minutes after they were stored",
            periods=5,
        )
        yield self._create_alarm(
            "EventsWereLost",
            self._function_metric("GapsFound", "housekeeping", HOUSEKEEPING_PERIOD, statistic="Maximum"),
            1,
            "A stream has forgotten events that were not indexed; their event types got new timelines",
        )
        yield self._create_alarm(
            "BatchesAreLost",
            failed_batches.metric_approximate_number_of_messages_visible(statistic="Maximum", period=MINUTE),
            1,
            "Batches of the log could not be indexed after all attempts",
        )
        yield self._create_alarm(
            "RecordsAreSetAside",
            self._function_metric("SetAside", "log_indexer"),
            1,
            "The log has records that cannot be read",
        )

    def _kafka_alarms(self, choice: ClusterChoice) -> Iterator[cloudwatch.Alarm]:
        """Alarms on metrics of brokers, which a serverless cluster does not publish."""
        cluster = {"Cluster Name": self._data.prefix}
        yield self._create_alarm(
            "PartitionsAreOffline",
            _msk_metric("OfflinePartitionsCount", cluster),
            1,
            "Partitions have no leader: nothing is written to them, and nothing is read",
            periods=3,
        )
        for first in range(1, choice.brokers + 1, MAX_METRICS_PER_ALARM):
            brokers = range(first, min(first + MAX_METRICS_PER_ALARM, choice.brokers + 1))
            suffix = str(first) if first > 1 else ""
            yield self._create_alarm(
                f"TooFewCopies{suffix}",
                self._maximum("UnderMinIsrPartitionCount", brokers),
                1,
                "Partitions have fewer copies in sync than a write needs: publishing is refused",
                periods=5,
            )
            if choice.kind == "provisioned":
                yield self._create_alarm(
                    f"DisksAreFull{suffix}",
                    self._maximum("KafkaDataLogsDiskUsed", brokers),
                    75,
                    "The disk of a broker has little room left",
                    periods=5,
                )

    def _maximum(self, metric: str, brokers: Iterable[int]) -> cloudwatch.IMetric:
        each = {
            f"m{number}": _msk_metric(metric, {"Cluster Name": self._data.prefix, "Broker ID": str(number)})
            for number in brokers
        }
        return cloudwatch.MathExpression(
            expression=f"MAX([{', '.join(each)}])", using_metrics=each, period=MINUTE, label=metric
        )

    def _stream_alarms(self, suffix: str, stream: NamedStream) -> Iterator[cloudwatch.Alarm]:
        """Alarms of one stream: with separate alarms, each has at most ten metrics and names its stream."""
        yield self._create_alarm(
            f"IndexerIsAway{suffix}",
            # A disabled or fully throttled mapping publishes no iterator age.
            cloudwatch.MathExpression(
                expression="IF(FILL(records, 0) > 0 AND FILL(invocations, 0) == 0, 1, 0)",
                using_metrics={
                    "records": stream.sum_metric("IncomingRecords", HOUSEKEEPING_PERIOD),
                    "invocations": self._functions["log_indexer"].metric_invocations(period=HOUSEKEEPING_PERIOD),
                },
                period=HOUSEKEEPING_PERIOD,
                label="Records without an invocation of the indexer",
            ),
            1,
            "Events are stored, and the log indexer is not invoked",
            periods=2,
        )
        yield self._create_alarm(
            f"WritesAreThrottled{suffix}",
            stream.sum_metric("WriteProvisionedThroughputExceeded", MINUTE),
            10,
            "Publishing needs more shards",
            periods=5,
        )
        yield self._create_alarm(
            f"ReadsAreThrottled{suffix}",
            stream.sum_metric("ReadProvisionedThroughputExceeded", MINUTE),
            60,
            "Shards are read too often",
            periods=10,
        )

    def _function_and_api_alarms(self) -> Iterator[cloudwatch.Alarm]:
        # If a client waits for an answer, throttling is a 5xx response, which the next alarm covers.
        background = [each for name, each in self._functions.items() if not NEEDS[name].areas and name != "authorizer"]
        throttles = [each.metric_throttles(period=MINUTE) for each in background]
        yield self._create_alarm(
            "FunctionsAreThrottled",
            self._sum_metrics("Throttled invocations", throttles),
            1,
            "The log indexer or housekeeping is throttled: functions reach the limit of the account",
            periods=3,
        )
        yield self._create_alarm(
            "ApiFails",
            self._api.metric_server_error(statistic="Sum", period=MINUTE),
            5,
            "Requests get 5xx",
            periods=3,
        )
        yield self._create_alarm(
            "AuthorizerFails",
            self._function_metric("Faults", "authorizer"),
            1,
            "Tokens cannot be checked",
            periods=3,
        )
        yield self._create_alarm(
            "AuthorizerIsThrottled",
            self._functions["authorizer"].metric_throttles(period=MINUTE),
            1,
            "Tokens cannot be checked: the function is throttled",
        )

    def _streaming_alarms(self, streaming: Streaming) -> Iterator[cloudwatch.Alarm]:
        yield self._create_alarm(
            "NoStreamingTask",
            _target_group_metric(streaming, "HealthyHostCount", "Minimum"),
            1,
            "No task serves streams",
            periods=3,
            below=True,
            silence_is_bad=True,
        )
        yield self._create_alarm(
            "StreamingFails",
            _target_group_metric(streaming, "HTTPCode_Target_5XX_Count", "Sum"),
            5,
            "Stream requests get 5xx",
            periods=3,
        )
        yield self._create_alarm(
            "StreamingIsFull",
            streaming.service.metric_memory_utilization(statistic="Maximum", period=MINUTE),
            85,
            "A task has little memory left",
            periods=5,
        )

    def _direct_alarm(self, direct: Direct) -> cloudwatch.Alarm:
        return self._create_alarm(
            "DirectRequestsFail",
            _target_group_metric(direct, "HTTPCode_Target_5XX_Count", "Sum"),
            5,
            "Requests to the direct load balancer get 5xx",
            periods=3,
        )

    def _table_alarms(self, late_seconds: int) -> Iterator[cloudwatch.Alarm]:
        """Alarms on tables. Housekeeping measures the lag, which also grows while no job runs. Jobs measure the
        latency, which includes the time until an event is archived, and the defects of new events."""
        yield self._create_alarm(
            "TablesAreLate",
            self._function_metric("TableLag", "housekeeping", HOUSEKEEPING_PERIOD, statistic="Maximum"),
            late_seconds,
            "Archived events wait for their tables: no job runs, or one fails",
            periods=2,
        )
        yield self._create_alarm(
            "TablesAreSlow",
            self._function_metric("TableLatency", "housekeeping", HOUSEKEEPING_PERIOD, statistic="Maximum"),
            late_seconds,
            "Events reach their tables long after they were published",
            periods=2,
        )
        yield self._create_alarm(
            "TablesAreWrong",
            self._function_metric("TableDefects", "housekeeping", HOUSEKEEPING_PERIOD, statistic="Maximum"),
            1,
            "Jobs add events to tables that are misfits, duplicates or not as expected, or cannot read events",
        )
        yield self._objective_alarm()

    def _objective_alarm(self) -> cloudwatch.Alarm:
        """The alarm on tables that miss their objectives: a burn rate is too high, or an event waits for too long."""
        return self._create_alarm(
            "TablesMissObjectives",
            cloudwatch.MathExpression(
                expression=f"MAX([FILL(burned, 0) / {BURN_RATE}, FILL(pressure, 0)])",
                using_metrics={
                    "burned": self._function_metric("TableBurnRate", "housekeeping", HOUSEKEEPING_PERIOD, "Maximum"),
                    "pressure": self._function_metric("TablePressure", "housekeeping", HOUSEKEEPING_PERIOD, "Maximum"),
                },
                period=HOUSEKEEPING_PERIOD,
                label="Burn rate or pressure, of what is allowed",
            ),
            1,
            "Events reach their tables later than the objectives of these tables allow",
            periods=2,
        )

    def _subscription_alarms(self) -> Iterator[cloudwatch.Alarm]:
        yield self._create_alarm(
            "SubscriptionsAreStalled",
            self._function_metric("StalledSubscriptions", "housekeeping", HOUSEKEEPING_PERIOD),
            1,
            "Subscriptions have waiting events, and commit nothing, or later than their objectives allow",
            periods=2,
        )

    def _more_alarms(self, streaming: Streaming | None) -> Iterator[cloudwatch.Alarm]:
        """Alarms for problems that clients notice too. A stage on which nobody depends can save the cost of them."""
        yield self._create_alarm(
            "RegistryIsSlow",
            cloudwatch.Metric(
                namespace="AWS/DynamoDB",
                metric_name="SuccessfulRequestLatency",
                dimensions_map={"TableName": self._data.tables["documents"].table_name, "Operation": "GetItem"},
                statistic="Average",
                period=MINUTE,
            ),
            SLOW_REGISTRY_MILLISECONDS,
            "DynamoDB takes long to read the registry, and everything that needs it waits",
            periods=5,
        )
        yield self._create_alarm(
            "PublishingIsRefused",
            cloudwatch.MathExpression(
                expression=f"IF(FILL(answers, 0) >= {MIN_PUBLICATIONS}, FILL(refusals, 0) / answers, 0)",
                using_metrics={
                    "answers": self._function_metric("Answers", "publish", HOUSEKEEPING_PERIOD),
                    "refusals": self._function_metric("Refusals", "publish", HOUSEKEEPING_PERIOD),
                },
                period=HOUSEKEEPING_PERIOD,
                label="Share of refused requests to publish",
            ),
            REFUSED_SHARE,
            "More than a tenth of the requests to publish get 4xx: usually their events do not fit the schema",
        )
        yield self._create_alarm(
            "SubscriptionsMissObjectives",
            self._function_metric("SubscriptionBurnRate", "housekeeping", HOUSEKEEPING_PERIOD, statistic="Maximum"),
            BURN_RATE,
            "Subscriptions use up their objectives six times too fast, over an hour and still now",
        )
        if streaming:
            yield self._create_alarm(
                "ArchiveIsDamaged",
                streaming.metric("ArchiveUnreadable", statistic="Sum"),
                1,
                "An object of the archive is damaged or missing, and streams stop there",
            )
            yield self._create_alarm(
                "ArchiveCannotBeRead",
                streaming.metric("ArchiveReadFailures", statistic="Sum"),
                1,
                "Reads of the archive fail, and streams of archived events wait",
                periods=3,
            )

    def _create_alarm(
        self,
        name: str,
        metric: cloudwatch.IMetric,
        threshold: float,
        description: str,
        *,
        periods: int = 1,
        below: bool = False,
        silence_is_bad: bool = False,
    ) -> cloudwatch.Alarm:
        comparison = cloudwatch.ComparisonOperator
        missing = cloudwatch.TreatMissingData
        alarm = cloudwatch.Alarm(
            self,
            name,
            alarm_name=f"{self._data.prefix}-{name}",
            metric=metric,
            threshold=threshold,
            evaluation_periods=periods,
            alarm_description=description,
            comparison_operator=comparison.LESS_THAN_THRESHOLD
            if below
            else comparison.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=missing.BREACHING if silence_is_bad else missing.NOT_BREACHING,
        )
        action = actions.SnsAction(self.topic)
        alarm.add_alarm_action(action)
        alarm.add_ok_action(action)
        return alarm

    def _function_metric(
        self, metric: str, function: str, period: Duration = MINUTE, statistic: str = "Sum"
    ) -> cloudwatch.Metric:
        """A metric that a function publishes about itself."""
        return cloudwatch.Metric(
            namespace=self._data.prefix,
            metric_name=metric,
            dimensions_map={"service": function},
            statistic=statistic,
            period=period,
        )

    def _stream_metrics(self, metric: str) -> Iterator[cloudwatch.IMetric]:
        for stream in self._data.streams.values():
            yield stream.sum_metric(metric, MINUTE)

    def _throttle_metrics(self) -> Iterator[cloudwatch.IMetric]:
        for table in self._data.tables.values():
            for metric in ("ReadThrottleEvents", "WriteThrottleEvents"):
                yield table.metric(metric, statistic="Sum", period=MINUTE)

    def _sum_metrics(self, label: str, metrics: Iterable[cloudwatch.IMetric]) -> cloudwatch.MathExpression:
        each = {f"m{number}": metric for number, metric in enumerate(metrics)}
        return cloudwatch.MathExpression(
            expression=" + ".join(f"FILL({name}, 0)" for name in each), using_metrics=each, period=MINUTE, label=label
        )

    def _create_dashboard(self) -> None:
        dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=self._data.prefix)
        dashboard.add_widgets(cloudwatch.AlarmStatusWidget(title="Alarms", alarms=self.alarms, width=24))
        dashboard.add_widgets(
            _graph("Requests", self._api.metric_count(), self._api.metric_client_error()),
            _graph("Latency", self._api.metric_latency(statistic="p50"), self._api.metric_latency(statistic="p99")),
            *([_graph("Open streams of a task", self._streaming.open_streams)] if self._streaming else []),
        )
        dashboard.add_widgets(
            *self._stream_graphs(),
            _graph("How late the indexer is", *self._indexer_age_metrics(), self._index_lag),
        )
        each = self._functions.values()
        dashboard.add_widgets(
            _graph("Invocations", *(function.metric_invocations() for function in each)),
            _graph("Duration, p99", *(function.metric_duration(statistic="p99") for function in each)),
            _graph("Errors", *(function.metric_errors() for function in each)),
        )

    def _stream_graphs(self) -> Iterator[cloudwatch.GraphWidget]:
        if self._data.streams:
            yield _graph("Bytes in", *self._stream_metrics("IncomingBytes"))
            yield _graph("Records in", *self._stream_metrics("IncomingRecords"))

    def _indexer_age_metrics(self) -> Iterator[cloudwatch.IMetric]:
        if self._data.streams:
            yield self._functions["log_indexer"].metric("IteratorAge")


def _create_topic(scope: Construct, email: str) -> sns.Topic:
    """Create the topic. Its policy has to allow CloudWatch explicitly, since a custom policy replaces the default."""
    topic = sns.Topic(scope, "Alarms", enforce_ssl=True)
    topic.add_to_resource_policy(
        iam.PolicyStatement(
            sid="AlarmsAreToldHere",
            principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
            actions=["sns:Publish"],
            resources=[topic.topic_arn],
            conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
        )
    )
    if email:
        topic.add_subscription(subscriptions.EmailSubscription(email))
    return topic


def _msk_metric(metric: str, dimensions: dict[str, str]) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace="AWS/Kafka", metric_name=metric, dimensions_map=dimensions, statistic="Maximum", period=MINUTE
    )


def _graph(title: str, *metrics: cloudwatch.IMetric) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(metrics), width=8)


def _target_group_metric(streaming: Streaming | Direct, metric: str, statistic: str) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace="AWS/ApplicationELB",
        metric_name=metric,
        dimensions_map={
            "LoadBalancer": streaming.load_balancer.load_balancer_full_name,
            "TargetGroup": streaming.target_group.target_group_full_name,
        },
        statistic=statistic,
        period=MINUTE,
    )
