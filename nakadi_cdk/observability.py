"""What people look at, and what wakes them up."""

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
from nakadi_cdk.msk import Choice
from nakadi_cdk.needs import NEEDS
from nakadi_cdk.streaming import Streaming

MINUTE = Duration.minutes(1)

# Of one alarm.
MOST_METRICS = 10

# Of housekeeping.
A_ROUND = Duration.minutes(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Who hears of alarms, and whether there is a page to look at."""

    alarm_email: str
    dashboard: bool
    late_seconds: int
    """After so long tables are late; 0 where no job is started for news."""


class Observability(Construct):
    """docs/operations.md says of every alarm what it means and what to do."""

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
        told: Told,
    ) -> None:
        super().__init__(scope, name)
        self._data = data
        self._functions = functions.all
        self._streaming = streaming
        self._api = api
        self._set_aside = functions.set_aside
        self.topic = _topic(self, told.alarm_email)
        self.alarms = [*self._of_events(), *self._of_the_api(), *self._of_subscriptions()]
        if streaming:
            self.alarms += self._of_streams(streaming)
        if direct:
            self.alarms.append(self._of_direct_requests(direct))
        if told.late_seconds:
            self.alarms += self._of_tables(told.late_seconds)
        if told.dashboard:
            self._dashboard()

    def _of_events(self) -> Iterator[cloudwatch.Alarm]:
        indexer = self._functions["log_indexer"]
        yield self._alarm(
            "EventsAreNotIndexed",
            self._index_lag,
            600,
            "The oldest event that is not counted and archived is older than ten minutes, or nothing measures it",
            periods=2,
            silence_is_bad=True,
        )
        yield self._alarm(
            "IndexerFails",
            indexer.metric_errors(period=MINUTE),
            1,
            "The log indexer fails again and again",
            periods=10,
        )
        if self._set_aside:
            yield from self._of_streams_indexed(indexer, self._set_aside)
        for name, stream in self._data.streams.items():
            yield from self._of_a_stream(name.removeprefix(self._data.prefix), stream)
        if self._data.cluster and self._data.cluster.choice.has_brokers:
            yield from self._of_brokers(self._data.cluster.choice)
        yield self._alarm(
            "TablesAreThrottled",
            self._sum("Throttled requests", self._throttle_events()),
            10,
            "Tables are asked for more than they give",
            periods=5,
        )
        yield self._alarm(
            "HousekeepingFails",
            self._functions["housekeeping"].metric_errors(period=A_ROUND),
            1,
            "Retention and compaction do not happen",
            periods=3,
        )

    @property
    def _index_lag(self) -> cloudwatch.Metric:
        """It is measured by housekeeping in streams, and by the indexer in topics."""
        told_by = "log_indexer" if self._data.cluster else "housekeeping"
        return self._told("IndexLag", told_by, A_ROUND, statistic="Maximum")

    def _of_streams_indexed(self, indexer: lambda_.Function, set_aside: sqs.Queue) -> Iterator[cloudwatch.Alarm]:
        yield self._alarm(
            "IndexerIsLate",
            indexer.metric("IteratorAge", statistic="Maximum", period=MINUTE),
            300_000,
            "Events are counted and archived later than five minutes after they came",
            periods=5,
        )
        yield self._alarm(
            "EventsWereLost",
            self._told("GapsFound", "housekeeping", A_ROUND, statistic="Maximum"),
            1,
            "A stream has forgotten events that were not indexed; their event types got new timelines",
        )
        yield self._alarm(
            "BatchesAreLost",
            set_aside.metric_approximate_number_of_messages_visible(statistic="Maximum", period=MINUTE),
            1,
            "Batches of the log could not be indexed after all attempts",
        )
        yield self._alarm(
            "RecordsAreSetAside",
            self._told("SetAside", "log_indexer"),
            1,
            "The log has records that cannot be read",
        )

    def _of_brokers(self, choice: Choice) -> Iterator[cloudwatch.Alarm]:
        """What a cluster of brokers says of itself; one that is serverless says nothing of the kind."""
        cluster = {"Cluster Name": self._data.prefix}
        yield self._alarm(
            "PartitionsAreOffline",
            _of_msk("OfflinePartitionsCount", cluster),
            1,
            "Partitions have no leader: nothing is written to them, and nothing is read",
            periods=3,
        )
        for first in range(1, choice.brokers + 1, MOST_METRICS):
            brokers = range(first, min(first + MOST_METRICS, choice.brokers + 1))
            suffix = str(first) if first > 1 else ""
            yield self._alarm(
                f"TooFewCopies{suffix}",
                self._largest("UnderMinIsrPartitionCount", brokers),
                1,
                "Partitions have fewer copies in sync than a write needs: publishing is refused",
                periods=5,
            )
            if choice.kind == "provisioned":
                yield self._alarm(
                    f"DisksAreFull{suffix}",
                    self._largest("KafkaDataLogsDiskUsed", brokers),
                    75,
                    "The disk of a broker has little room left",
                    periods=5,
                )

    def _largest(self, metric: str, brokers: Iterable[int]) -> cloudwatch.IMetric:
        each = {
            f"m{number}": _of_msk(metric, {"Cluster Name": self._data.prefix, "Broker ID": str(number)})
            for number in brokers
        }
        return cloudwatch.MathExpression(
            expression=f"MAX([{', '.join(each)}])", using_metrics=each, period=MINUTE, label=metric
        )

    def _of_a_stream(self, suffix: str, stream: NamedStream) -> Iterator[cloudwatch.Alarm]:
        """Each stream has its own, for an alarm takes ten metrics at most, and says so which stream it is about."""
        yield self._alarm(
            f"IndexerIsAway{suffix}",
            # A mapping that is disabled or throttled away has no iterator age that could be too high.
            cloudwatch.MathExpression(
                expression="IF(FILL(records, 0) > 0 AND FILL(invocations, 0) == 0, 1, 0)",
                using_metrics={
                    "records": stream.sum_of("IncomingRecords", A_ROUND),
                    "invocations": self._functions["log_indexer"].metric_invocations(period=A_ROUND),
                },
                period=A_ROUND,
                label="Records without an invocation of the indexer",
            ),
            1,
            "Events are stored, and the log indexer is not invoked",
            periods=2,
        )
        yield self._alarm(
            f"WritesAreThrottled{suffix}",
            stream.sum_of("WriteProvisionedThroughputExceeded", MINUTE),
            10,
            "Publishing needs more shards",
            periods=5,
        )
        yield self._alarm(
            f"ReadsAreThrottled{suffix}",
            stream.sum_of("ReadProvisionedThroughputExceeded", MINUTE),
            60,
            "Shards are read too often",
            periods=10,
        )

    def _of_the_api(self) -> Iterator[cloudwatch.Alarm]:
        # Where somebody waits for an answer, throttling is an answer by 5xx, and the next alarm tells.
        unasked = [each for name, each in self._functions.items() if not NEEDS[name].areas and name != "authorizer"]
        throttles = [each.metric_throttles(period=MINUTE) for each in unasked]
        yield self._alarm(
            "FunctionsAreThrottled",
            self._sum("Throttled invocations", throttles),
            1,
            "The log indexer or housekeeping is throttled: functions reach the limit of the account",
            periods=3,
        )
        yield self._alarm(
            "ApiFails",
            self._api.metric_server_error(statistic="Sum", period=MINUTE),
            5,
            "Requests are answered by 5xx",
            periods=3,
        )
        yield self._alarm(
            "AuthorizerFails",
            self._told("Faults", "authorizer"),
            1,
            "Tokens cannot be checked",
            periods=3,
        )
        yield self._alarm(
            "AuthorizerIsThrottled",
            self._functions["authorizer"].metric_throttles(period=MINUTE),
            1,
            "Tokens cannot be checked: the function is throttled",
        )

    def _of_streams(self, streaming: Streaming) -> Iterator[cloudwatch.Alarm]:
        yield self._alarm(
            "NoStreamingTask",
            _of_target_group(streaming, "HealthyHostCount", "Minimum"),
            1,
            "No task serves streams",
            periods=3,
            below=True,
            silence_is_bad=True,
        )
        yield self._alarm(
            "StreamingFails",
            _of_target_group(streaming, "HTTPCode_Target_5XX_Count", "Sum"),
            5,
            "Streams are answered by 5xx",
            periods=3,
        )
        yield self._alarm(
            "StreamingIsFull",
            streaming.service.metric_memory_utilization(statistic="Maximum", period=MINUTE),
            85,
            "A task has little memory left",
            periods=5,
        )

    def _of_direct_requests(self, direct: Direct) -> cloudwatch.Alarm:
        return self._alarm(
            "DirectRequestsFail",
            _of_target_group(direct, "HTTPCode_Target_5XX_Count", "Sum"),
            5,
            "Requests that do not come by the gateway are answered by 5xx",
            periods=3,
        )

    def _of_tables(self, late_seconds: int) -> Iterator[cloudwatch.Alarm]:
        """Housekeeping measures the lag, and so it also grows where no job runs. Jobs measure the latency, which has
        the way of an event into the archive in it, too."""
        yield self._alarm(
            "TablesAreLate",
            self._told("TableLag", "housekeeping", A_ROUND, statistic="Maximum"),
            late_seconds,
            "Archived events wait for their tables: no job runs, or one fails",
            periods=2,
        )
        yield self._alarm(
            "TablesAreSlow",
            self._told("TableLatency", "housekeeping", A_ROUND, statistic="Maximum"),
            late_seconds,
            "Events come to their tables long after they were published",
            periods=2,
        )

    def _of_subscriptions(self) -> Iterator[cloudwatch.Alarm]:
        yield self._alarm(
            "SubscriptionsAreStalled",
            self._told("StalledSubscriptions", "housekeeping", A_ROUND),
            1,
            "Subscriptions have events to process, and nothing is committed",
            periods=2,
        )

    def _alarm(
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

    def _told(self, metric: str, function: str, period: Duration = MINUTE, statistic: str = "Sum") -> cloudwatch.Metric:
        """What a function tells of itself."""
        return cloudwatch.Metric(
            namespace=self._data.prefix,
            metric_name=metric,
            dimensions_map={"service": function},
            statistic=statistic,
            period=period,
        )

    def _of_logs(self, metric: str) -> Iterator[cloudwatch.IMetric]:
        for stream in self._data.streams.values():
            yield stream.sum_of(metric, MINUTE)

    def _throttle_events(self) -> Iterator[cloudwatch.IMetric]:
        for table in self._data.tables.values():
            for metric in ("ReadThrottleEvents", "WriteThrottleEvents"):
                yield table.metric(metric, statistic="Sum", period=MINUTE)

    def _sum(self, label: str, metrics: Iterable[cloudwatch.IMetric]) -> cloudwatch.MathExpression:
        each = {f"m{number}": metric for number, metric in enumerate(metrics)}
        return cloudwatch.MathExpression(
            expression=" + ".join(f"FILL({name}, 0)" for name in each), using_metrics=each, period=MINUTE, label=label
        )

    def _dashboard(self) -> None:
        dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=self._data.prefix)
        dashboard.add_widgets(cloudwatch.AlarmStatusWidget(title="Alarms", alarms=self.alarms, width=24))
        dashboard.add_widgets(
            _graph("Requests", self._api.metric_count(), self._api.metric_client_error()),
            _graph("Latency", self._api.metric_latency(statistic="p50"), self._api.metric_latency(statistic="p99")),
            *([_graph("Open streams of a task", self._streaming.open_streams)] if self._streaming else []),
        )
        dashboard.add_widgets(
            *self._graphs_of_streams(),
            _graph("How late the indexer is", *self._indexer_ages(), self._index_lag),
        )
        each = self._functions.values()
        dashboard.add_widgets(
            _graph("Invocations", *(function.metric_invocations() for function in each)),
            _graph("Duration, p99", *(function.metric_duration(statistic="p99") for function in each)),
            _graph("Errors", *(function.metric_errors() for function in each)),
        )

    def _graphs_of_streams(self) -> Iterator[cloudwatch.GraphWidget]:
        if self._data.streams:
            yield _graph("Bytes in", *self._of_logs("IncomingBytes"))
            yield _graph("Records in", *self._of_logs("IncomingRecords"))

    def _indexer_ages(self) -> Iterator[cloudwatch.IMetric]:
        if self._data.streams:
            yield self._functions["log_indexer"].metric("IteratorAge")


def _topic(scope: Construct, email: str) -> sns.Topic:
    """A topic with a policy of its own has to say that alarms may be told to it."""
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


def _of_msk(metric: str, dimensions: dict[str, str]) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace="AWS/Kafka", metric_name=metric, dimensions_map=dimensions, statistic="Maximum", period=MINUTE
    )


def _graph(title: str, *metrics: cloudwatch.IMetric) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(metrics), width=8)


def _of_target_group(streaming: Streaming | Direct, metric: str, statistic: str) -> cloudwatch.Metric:
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
