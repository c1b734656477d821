"""Three stacks: one keeps what people stored; one serves it, and one works on it, and both can be thrown away."""

from __future__ import annotations

from typing import Any

from aws_cdk import Duration, Stack
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from constructs import Construct

from functions.needs import NEEDS
from infra.analytics import Analytics, jobs
from infra.api import STAGE, Api, Domain, Limits
from infra.context import LOG_DAYS, Context
from infra.data import Data
from infra.functions import Functions, Sizes, reserved
from infra.observability import Observability
from infra.settings import environment_of, streaming_environment
from infra.streaming import ServiceSize, Streaming


class DataStack(Stack):
    def __init__(self, scope: Construct, name: str, *, context: Context, **options: Any) -> None:
        super().__init__(scope, name, termination_protection=context.keep_data, **options)
        self.data = Data(
            self,
            "Data",
            prefix=context.prefix,
            on_demand=context.stream_mode == "on-demand",
            shards=context.streams,
            stream_retention=Duration.hours(context.stream_retention_hours),
            keep=context.keep_data,
        )


class ServingStack(Stack):
    def __init__(self, scope: Construct, name: str, *, context: Context, data: Data, **options: Any) -> None:
        super().__init__(scope, name, **options)
        log_retention = logs.RetentionDays[LOG_DAYS[context.log_days]]
        self.functions = Functions(
            self,
            "Functions",
            data=data,
            environments={each: environment_of(each, context, data.settings) for each in NEEDS},
            sizes=Sizes(
                publish_memory=context.publish_memory,
                memory=context.function_memory,
                reserved=reserved(context.concurrency, sum(context.streams.values())),
            ),
            index_every=Duration.seconds(context.index_seconds),
            log_retention=log_retention,
        )
        self.streaming = Streaming(
            self,
            "Streaming",
            data=data,
            environment=streaming_environment(context, data.settings),
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
        )
        self.api = Api(
            self,
            "Api",
            api_name=context.prefix,
            functions=self.functions.all,
            streaming=self.streaming,
            limits=Limits(
                requests_per_second=context.requests_per_second,
                requests_burst=context.requests_burst,
                public_requests_per_second=context.public_requests_per_second,
                authorizer_cache_seconds=context.authorizer_cache_seconds,
                web_acl_arn=context.web_acl_arn,
            ),
            log_retention=log_retention,
            domain=Domain(name=context.domain, certificate_arn=context.certificate_arn) if context.domain else None,
        )
        self.observability = Observability(
            self,
            "Observability",
            data=data,
            api=self.api.api,
            functions=self.functions.all,
            set_aside=self.functions.set_aside,
            streaming=self.streaming,
            alarm_email=context.alarm_email,
        )


class AnalyticsStack(Stack):
    def __init__(
        self, scope: Construct, name: str, *, context: Context, data: Data, alarms: sns.ITopic, **options: Any
    ) -> None:
        super().__init__(scope, name, **options)
        self.analytics = Analytics(
            self,
            "Analytics",
            data=data,
            jobs=jobs(data, max_partitions=context.chosen.max_partitions, compaction_hours=context.compaction_hours),
            workers=context.job_workers,
            alarms=alarms,
        )
