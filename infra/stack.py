"""Three stacks: one stores the data, one serves it, and one runs jobs on it. The latter two can be replaced freely."""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnOutput, Stack
from constructs import Construct

from nakadi_cdk import Context, NakadiAnalytics, NakadiBroker, NakadiData

# The CDK omits this id from the names of resources.
UNNAMED = "Default"


class DataStack(Stack):
    def __init__(self, scope: Construct, name: str, *, context: Context, **options: Any) -> None:
        super().__init__(scope, name, termination_protection=context.keep_data, **options)
        self.data = NakadiData(self, "Data", context=context)


class ServingStack(Stack):
    def __init__(self, scope: Construct, name: str, *, context: Context, data: NakadiData, **options: Any) -> None:
        super().__init__(scope, name, **options)
        self.broker = NakadiBroker(self, UNNAMED, context=context, data=data)
        CfnOutput(self, "Url", value=self.broker.url)
        if self.broker.console_url:
            CfnOutput(self, "ConsoleUrl", value=self.broker.console_url)
        if self.broker.direct:
            CfnOutput(self, "DirectUrl", value=self.broker.direct.url)
            CfnOutput(self, "DirectTarget", value=self.broker.direct.load_balancer.load_balancer_dns_name)
        if self.broker.api.domain_target:
            CfnOutput(self, "DomainTarget", value=self.broker.api.domain_target)


class AnalyticsStack(Stack):
    def __init__(self, scope: Construct, name: str, *, broker: NakadiBroker, **options: Any) -> None:
        super().__init__(scope, name, **options)
        self.analytics = NakadiAnalytics(self, "Analytics", broker=broker)
