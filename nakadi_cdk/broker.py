"""`NakadiBroker`, `NakadiData` and `NakadiAnalytics`: the public constructs of this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aws_cdk import Aws, Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from nakadi_cdk.analytics import Analytics, Queries, database_name, define_jobs
from nakadi_cdk.api import STAGE, Api, Domain, Limits
from nakadi_cdk.assets import console_folder
from nakadi_cdk.canary import Canary
from nakadi_cdk.console import INDEX, ConsoleSource
from nakadi_cdk.context import LOG_DAYS, Context
from nakadi_cdk.data import Data
from nakadi_cdk.direct import Direct
from nakadi_cdk.functions import Functions, Sizes, reserve_concurrency
from nakadi_cdk.msk import Cluster, ClusterChoice
from nakadi_cdk.needs import NEEDS
from nakadi_cdk.network import Network, add_endpoints, existing_network, new_network
from nakadi_cdk.observability import AlarmOptions, Observability
from nakadi_cdk.permissions import (
    CONSUME,
    LIST_CONSUMERS,
    REGISTER,
    REMOVE,
    fan_out_statements,
    sink_key_statements,
    sink_target_statements,
)
from nakadi_cdk.queries import QueryFunction
from nakadi_cdk.settings import function_environment, query_environment, streaming_environment
from nakadi_cdk.streaming import ServiceSize, Streaming


class NakadiData(Data):
    """The stored data of a broker: tables, streams or a cluster, and buckets.

    Put it into a stack of its own if the data has to outlive the stack that serves it:

        data = NakadiData(data_stack, "Data", context=context)
        NakadiBroker(serving_stack, "Broker", context=context, data=data)

    :param scope: The construct that contains this one.
    :param name: The id of this construct within `scope`.
    :param context: The configuration of the deployment.
    :param key: The key that encrypts tables, streams and buckets. Default: the key of `context.kms_key_arn`, or else
        keys that AWS owns or manages.
    """

    def __init__(self, scope: Construct, name: str, *, context: Context, key: kms.IKey | None = None) -> None:
        if key is None and context.kms_key_arn:
            key = kms.Key.from_key_arn(scope, f"{name}Key", context.kms_key_arn)
        super().__init__(
            scope,
            name,
            prefix=context.prefix,
            on_demand=context.stream_mode == "on-demand",
            shards=context.streams,
            stream_retention=Duration.hours(context.stream_retention_hours),
            keep=context.keep_data,
            version_days=context.version_days,
            recovery_days=context.recovery_days,
            archive_replica=context.archive_replica,
            key=key,
        )
        if context.has_table_bucket:
            self.add_table_bucket()
        if context.sinks:
            self.add_sink_key()
        if context.on_msk:
            self.cluster = self._create_cluster(context, key)

    def _create_cluster(self, context: Context, key: kms.IKey | None) -> Cluster:
        """Create the cluster and its network, with the removal policy of the data."""
        private = context.network == "private"
        if context.vpc_id:
            network = existing_network(self, context.vpc_id, context.subnets)
        else:
            network = new_network(self, logs.RetentionDays[LOG_DAYS[context.log_days]], private=private)
        choice = ClusterChoice(
            kind=context.msk,
            instance=context.msk_instance,
            brokers=context.msk_brokers,
            disk_gb=context.msk_disk_gb,
            servers=context.msk_servers,
            security_group=context.msk_security_group,
        )
        cluster = Cluster(
            self, "Msk", prefix=context.prefix, choice=choice, network=network, keep=context.keep_data, key=key
        )
        if private and not context.vpc_id:
            add_endpoints(network, cluster.client_security_group, kinesis=False)
        return cluster


class NakadiBroker(Construct):
    """A broker: functions, the streaming service, the REST API and alarms.

        NakadiBroker(stack, "Broker", context=Context(stage="live", auth_issuer="https://issuer.example.org"))

    Its parts are attributes: `data`, `functions`, `streaming` (None while the stage is asleep), `queries` (None unless
    the context asks for queries), `direct` (None without a direct domain), `api`, and `observability`, whose `topic`
    receives alarms.

    :param scope: The construct that contains this one.
    :param name: The id of this construct within `scope`.
    :param context: The configuration of the deployment.
    :param data: The stored data. Default: a new `NakadiData` in the same stack.
    :param network: The network of the streaming service. Default: the VPC of `context.vpc_id`, or else a new one.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        context: Context,
        data: Data | None = None,
        network: Network | None = None,
    ) -> None:
        super().__init__(scope, name)
        self.context = context
        self._log_retention = logs.RetentionDays[LOG_DAYS[context.log_days]]
        _apply_permissions_boundary(self, context)
        self.data = data or NakadiData(self, "Data", context=context)
        self.functions = self._create_functions(context)
        self.streaming = None if context.asleep else self._create_streaming(context, network)
        self.queries = self._create_queries(context) if context.queries else None
        self.direct = self._create_direct(context)
        self.api = self._create_api(context)
        self.observability = self._create_observability(context)
        if self.streaming:
            self.api.keep_link_active(self.functions.link_keeper)
        if context.fans_out:
            self._grant_fan_out()
        self._grant_sinks()
        if context.table_job:
            self._grant_job_starts(context.table_job)
        if data is None:
            self._depend_on_data()

    def _create_functions(self, context: Context) -> Functions:
        return Functions(
            self,
            "Functions",
            data=self.data,
            environments={each: function_environment(each, context, self.data.settings) for each in NEEDS},
            sizes=Sizes(
                publish_memory=context.publish_memory,
                memory=context.function_memory,
                reserved_concurrency=reserve_concurrency(
                    context.concurrency, sum(context.streams.values()) or context.indexers
                ),
                indexers=context.indexers,
            ),
            index_every=Duration.seconds(context.index_seconds),
            log_retention=self._log_retention,
            tracing_layers=context.otel_layers.split(",") if context.otel_layers else (),
        )

    def _create_streaming(self, context: Context, network: Network | None) -> Streaming:
        return Streaming(
            self,
            "Streaming",
            data=self.data,
            environment=streaming_environment(context, self.data.settings),
            path_prefix=f"/{STAGE}",
            size=ServiceSize(
                cpu=context.streaming_cpu,
                memory=context.streaming_memory,
                min_tasks=context.streaming_min_tasks,
                max_tasks=context.streaming_max_tasks,
                streams_per_task=context.streams_per_task,
            ),
            log_retention=self._log_retention,
            image=context.image,
            direct=bool(context.direct_domain),
            network=self.data.cluster.network if self.data.cluster else network or self._find_network(),
            private=context.network == "private",
            tls=context.task_tls,
            sink_services=("kms", *context.targets_by_service) if context.sinks else (),
        )

    def _create_queries(self, context: Context) -> QueryFunction:
        database = database_name(self.data.prefix)
        return QueryFunction(
            self,
            "Queries",
            data=self.data,
            database=database,
            environment=query_environment(context, database),
            memory=context.query_memory,
            image=context.query_image,
            log_retention=self._log_retention,
        )

    def _create_api(self, context: Context) -> Api:
        return Api(
            self,
            "Api",
            api_name=context.prefix,
            functions=self._api_functions(context),
            streaming=self.streaming,
            limits=Limits(
                requests_per_second=context.requests_per_second,
                requests_burst=context.requests_burst,
                public_requests_per_second=context.public_requests_per_second,
                authorizer_cache_seconds=context.authorizer_cache_seconds,
                queries_per_second=context.queries_per_second if context.queries else 0,
                web_acl_arn=context.web_acl_arn,
                detailed_metrics=context.detailed_metrics,
            ),
            log_retention=self._log_retention,
            domain=Domain(name=context.domain, certificate_arn=context.certificate_arn) if context.domain else None,
            console=_console_source(context),
        )

    def _api_functions(self, context: Context) -> Mapping[str, lambda_.IFunction]:
        """The targets that the API invokes: functions, or the aliases of a canary deployment."""
        functions = {
            name: each for name, each in self.functions.all.items() if NEEDS[name].areas or name == "authorizer"
        }
        if self.queries:
            functions["queries"] = self.queries.function
        if not context.canary_minutes:
            return functions
        return Canary(self, "Canary", data=self.data, functions=functions, minutes=context.canary_minutes).aliases

    def _create_direct(self, context: Context) -> Direct | None:
        if not (self.streaming and context.direct_domain):
            return None
        domain = Domain(name=context.direct_domain, certificate_arn=context.direct_certificate_arn)
        return Direct(self, "Direct", streaming=self.streaming, domain=domain, web_acl_arn=context.web_acl_arn)

    def _create_observability(self, context: Context) -> Observability:
        return Observability(
            self,
            "Observability",
            data=self.data,
            api=self.api.api,
            functions=self.functions,
            streaming=self.streaming,
            direct=self.direct,
            options=AlarmOptions(
                alarm_email=context.alarm_email,
                more_alarms=context.more_alarms,
                dashboard=context.dashboard,
                late_seconds=context.late_seconds if context.table_job else 0,
            ),
        )

    def _grant_fan_out(self) -> None:
        """Let tasks register consumers, and let housekeeping remove abandoned ones, even while the stage is asleep."""
        for statement in fan_out_statements(self.data, stream_actions=LIST_CONSUMERS, consumer_actions=REMOVE):
            self.functions.all["housekeeping"].add_to_role_policy(statement)
        if self.streaming:
            for statement in fan_out_statements(self.data, stream_actions=REGISTER, consumer_actions=CONSUME):
                self.streaming.role.add_to_policy(statement)

    def _grant_sinks(self) -> None:
        """Let the functions of subscriptions seal secrets, and let tasks deliver, to exactly the targets that the
        context names."""
        for statement in sink_key_statements(self.data):
            self.functions.all["subscriptions"].add_to_role_policy(statement)
            if self.streaming:
                self.streaming.role.add_to_policy(statement)
        if self.streaming:
            for statement in sink_target_statements(self.context.targets_by_service):
                self.streaming.role.add_to_policy(statement)

    def _grant_job_starts(self, job: str) -> None:
        """Let housekeeping start the table job by name, since another construct creates the job later."""
        self.functions.all["housekeeping"].add_to_role_policy(
            iam.PolicyStatement(
                actions=["glue:StartJobRun"],
                resources=[f"arn:{Aws.PARTITION}:glue:{Aws.REGION}:{Aws.ACCOUNT_ID}:job/{job}"],
            )
        )

    def _depend_on_data(self) -> None:
        """Create the data first. Functions and tasks only know its names, so CloudFormation cannot infer this order."""
        self.functions.node.add_dependency(self.data)
        if self.streaming:
            self.streaming.node.add_dependency(self.data)

    def _find_network(self) -> Network | None:
        return existing_network(self, self.context.vpc_id, self.context.subnets) if self.context.vpc_id else None

    @property
    def url(self) -> str:
        """The address of the API, for clients."""
        return self.api.url

    @property
    def console_url(self) -> str:
        """The address of the console, or "" if the context has none."""
        return f"{self.url}{INDEX.lstrip('/')}" if self.context.console else ""


class NakadiAnalytics(Analytics):
    """The jobs on the archive: statistics, tables and retention, with optional access for Athena and Lake Formation.

        NakadiAnalytics(stack, "Analytics", broker=broker)

    Its attribute `jobs` has the Glue jobs by name.

    :param scope: The construct that contains this one, in the broker's stack or another.
    :param name: The id of this construct within `scope`.
    :param broker: The broker whose archive the jobs read. Its context configures them.
    """

    def __init__(self, scope: Construct, name: str, *, broker: NakadiBroker) -> None:
        context = broker.context
        super().__init__(
            scope,
            name,
            data=broker.data,
            jobs=define_jobs(broker.data, context=context),
            workers=context.job_workers,
            alarms=broker.observability.topic,
            queries=Queries(athena=context.athena, readers=context.readers),
        )
        _apply_permissions_boundary(self, context)


def _console_source(context: Context) -> ConsoleSource | None:
    if not context.console:
        return None
    settings = context.chosen
    return ConsoleSource(
        folder=Path(settings.console) if settings.console else console_folder(),
        sign_in=dict(settings.console_sign_in),
        has_queries=context.queries,
    )


def _apply_permissions_boundary(scope: Construct, context: Context) -> None:
    """Limit every role in the scope by the account's permissions boundary."""
    if context.permissions_boundary:
        boundary = iam.ManagedPolicy.from_managed_policy_arn(scope, "Boundary", context.permissions_boundary)
        iam.PermissionsBoundary.of(scope).apply(boundary)
