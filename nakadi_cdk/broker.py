"""The broker as one construct, for this project's app and for others: what serves, and unless it is given, the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aws_cdk import Aws, Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from nakadi_cdk.analytics import Analytics, Queries, jobs
from nakadi_cdk.api import STAGE, Api, Domain, Limits
from nakadi_cdk.assets import console_folder
from nakadi_cdk.canary import Canary
from nakadi_cdk.console import INDEX, ConsoleSource
from nakadi_cdk.context import LOG_DAYS, Context
from nakadi_cdk.data import Data
from nakadi_cdk.direct import Direct
from nakadi_cdk.functions import Functions, Sizes, reserved
from nakadi_cdk.msk import Choice, Cluster
from nakadi_cdk.needs import NEEDS
from nakadi_cdk.network import Network, add_endpoints, existing_network, new_network
from nakadi_cdk.observability import Observability, Told
from nakadi_cdk.permissions import CONSUME, LIST_CONSUMERS, REGISTER, REMOVE, fan_out
from nakadi_cdk.settings import environment_of, streaming_environment
from nakadi_cdk.streaming import ServiceSize, Streaming


class NakadiData(Data):
    """What people stored, in a stack of its own where that is to outlive what serves it.

    `key` encrypts it, instead of the context's.
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
            key=key,
        )
        if context.has_table_bucket:
            self.add_table_bucket()
        if context.on_msk:
            self.cluster = self._cluster(context, key)

    def _cluster(self, context: Context, key: kms.IKey | None) -> Cluster:
        """It lives as long as what is kept, and so does the network that it is in."""
        private = context.network == "private"
        if context.vpc_id:
            network = existing_network(self, context.vpc_id, context.subnets)
        else:
            network = new_network(self, logs.RetentionDays[LOG_DAYS[context.log_days]], private=private)
        choice = Choice(
            kind=context.msk,
            instance=context.msk_instance,
            brokers=context.msk_brokers,
            disk_gb=context.msk_disk_gb,
            servers=context.msk_servers,
            security_group=context.msk_security_group,
        )
        made = Cluster(
            self, "Msk", prefix=context.prefix, choice=choice, network=network, keep=context.keep_data, key=key
        )
        if private and not context.vpc_id:
            add_endpoints(network, made.of_clients, kinesis=False)
        return made


class NakadiBroker(Construct):
    """Everything that serves: functions, streams, the API, and alarms.

    Without `data` it makes its own, beside it in the same stack. `network` is where streams are served, instead of the
    context's.
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
        _bound(self, context)
        log_retention = logs.RetentionDays[LOG_DAYS[context.log_days]]
        self.data = data or NakadiData(self, "Data", context=context)
        self.functions = Functions(
            self,
            "Functions",
            data=self.data,
            environments={each: environment_of(each, context, self.data.settings) for each in NEEDS},
            sizes=Sizes(
                publish_memory=context.publish_memory,
                memory=context.function_memory,
                reserved=reserved(context.concurrency, sum(context.streams.values()) or context.indexers),
                indexers=context.indexers,
            ),
            index_every=Duration.seconds(context.index_seconds),
            log_retention=log_retention,
            tracing_layers=context.otel_layers.split(",") if context.otel_layers else (),
        )
        self.streaming = None if context.asleep else self._streaming(context, log_retention, network)
        if context.fans_out:
            self._let_it_fan_out()
        self.direct = self._direct(context)
        self.api = Api(
            self,
            "Api",
            api_name=context.prefix,
            functions=self._answering(context),
            streaming=self.streaming,
            limits=Limits(
                requests_per_second=context.requests_per_second,
                requests_burst=context.requests_burst,
                public_requests_per_second=context.public_requests_per_second,
                authorizer_cache_seconds=context.authorizer_cache_seconds,
                web_acl_arn=context.web_acl_arn,
                detailed_metrics=context.detailed_metrics,
            ),
            log_retention=log_retention,
            domain=Domain(name=context.domain, certificate_arn=context.certificate_arn) if context.domain else None,
            console=_console(context),
        )
        if self.streaming:
            self.api.keep_link_awake(self.functions.outside)
        self.observability = Observability(
            self,
            "Observability",
            data=self.data,
            api=self.api.api,
            functions=self.functions,
            streaming=self.streaming,
            direct=self.direct,
            told=Told(
                alarm_email=context.alarm_email,
                dashboard=context.dashboard,
                late_seconds=context.late_seconds if context.table_job else 0,
            ),
        )
        if context.table_job:
            self._let_it_start_jobs(context.table_job)
        if data is None:
            # Data of its own is known by name only, so nothing else says that it comes first.
            self.functions.node.add_dependency(self.data)
            if self.streaming:
                self.streaming.node.add_dependency(self.data)

    def _streaming(self, context: Context, log_retention: logs.RetentionDays, network: Network | None) -> Streaming:
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
            log_retention=log_retention,
            image=context.image,
            direct=bool(context.direct_domain),
            network=self.data.cluster.network if self.data.cluster else network or self._existing_network(),
            private=context.network == "private",
            tls=context.task_tls,
        )

    def _answering(self, context: Context) -> Mapping[str, lambda_.IFunction]:
        """What the API invokes: functions, or aliases that new versions come to by and by."""
        asked = {name: each for name, each in self.functions.all.items() if NEEDS[name].areas or name == "authorizer"}
        if not context.canary_minutes:
            return asked
        return Canary(self, "Canary", data=self.data, functions=asked, minutes=context.canary_minutes).aliases

    def _direct(self, context: Context) -> Direct | None:
        if not (self.streaming and context.direct_domain):
            return None
        domain = Domain(name=context.direct_domain, certificate_arn=context.direct_certificate_arn)
        return Direct(self, "Direct", streaming=self.streaming, domain=domain, web_acl_arn=context.web_acl_arn)

    def _let_it_fan_out(self) -> None:
        """Tasks register consumers, and housekeeping, also while the stage is asleep, removes those that stayed."""
        for statement in fan_out(self.data, of_stream=LIST_CONSUMERS, of_consumer=REMOVE):
            self.functions.all["housekeeping"].add_to_role_policy(statement)
        if self.streaming:
            for statement in fan_out(self.data, of_stream=REGISTER, of_consumer=CONSUME):
                self.streaming.role.add_to_policy(statement)

    def _let_it_start_jobs(self, job: str) -> None:
        """Housekeeping sees that events wait for their tables, and starts the job, which is made later than it."""
        self.functions.all["housekeeping"].add_to_role_policy(
            iam.PolicyStatement(
                actions=["glue:StartJobRun"],
                resources=[f"arn:{Aws.PARTITION}:glue:{Aws.REGION}:{Aws.ACCOUNT_ID}:job/{job}"],
            )
        )

    def _existing_network(self) -> Network | None:
        return existing_network(self, self.context.vpc_id, self.context.subnets) if self.context.vpc_id else None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return self.api.url

    @property
    def console_url(self) -> str:
        """Where people look at it; empty if the context has no console."""
        return f"{self.url}{INDEX.lstrip('/')}" if self.context.console else ""


class NakadiAnalytics(Analytics):
    """Jobs on the archive, for a stack of its own or beside the broker."""

    def __init__(self, scope: Construct, name: str, *, broker: NakadiBroker) -> None:
        context = broker.context
        super().__init__(
            scope,
            name,
            data=broker.data,
            jobs=jobs(broker.data, context=context),
            workers=context.job_workers,
            alarms=broker.observability.topic,
            queries=Queries(athena=context.athena, readers=context.readers),
        )
        _bound(self, context)


def _console(context: Context) -> ConsoleSource | None:
    if not context.console:
        return None
    chosen = context.chosen
    return ConsoleSource(Path(chosen.console) if chosen.console else console_folder(), dict(chosen.console_sign_in))


def _bound(scope: Construct, context: Context) -> None:
    """No role may more than the account's administrators say, whatever its own policies say."""
    if context.permissions_boundary:
        boundary = iam.ManagedPolicy.from_managed_policy_arn(scope, "Boundary", context.permissions_boundary)
        iam.PermissionsBoundary.of(scope).apply(boundary)
