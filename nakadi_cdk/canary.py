"""Canary deployments: a tenth of the requests tries a new version of a function, and failures roll it back."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_codedeploy as codedeploy
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from nakadi_cdk.data import Data

ALIAS = "live"

# CodeDeploy's durations for a canary of a tenth of the requests.
DEPLOYMENT_CONFIGS: Mapping[int, str] = {
    5: "CANARY_10_PERCENT_5_MINUTES",
    10: "CANARY_10_PERCENT_10_MINUTES",
    15: "CANARY_10_PERCENT_15_MINUTES",
    30: "CANARY_10_PERCENT_30_MINUTES",
}

MINUTE = Duration.minutes(1)


class Canary(Construct):
    """An alias for each function that answers requests. CodeDeploy moves the alias to a new version of the function.

    Functions for which no client waits have no alias: AWS retries their failed invocations, so a canary would not help.
    """

    def __init__(
        self, scope: Construct, name: str, *, data: Data, functions: Mapping[str, lambda_.Function], minutes: int
    ) -> None:
        super().__init__(scope, name)
        self._data = data
        self._application = codedeploy.LambdaApplication(self, "Application")
        self._configuration = getattr(codedeploy.LambdaDeploymentConfig, DEPLOYMENT_CONFIGS[minutes])
        self.aliases = {each: self._create_alias(each, function) for each, function in functions.items()}

    def _create_alias(self, name: str, function: lambda_.Function) -> lambda_.Alias:
        alias = lambda_.Alias(self, f"Alias-{name}", alias_name=ALIAS, version=function.current_version)
        codedeploy.LambdaDeploymentGroup(
            self,
            f"Deployment-{name}",
            application=self._application,
            alias=alias,
            deployment_config=self._configuration,
            alarms=[self._create_alarm(name, alias)],
            auto_rollback=codedeploy.AutoRollbackConfig(deployment_in_alarm=True, failed_deployment=True),
        )
        return alias

    def _create_alarm(self, name: str, alias: lambda_.Alias) -> cloudwatch.Alarm:
        """Create the alarm that rolls back. The function counts 5xx responses itself, since Lambda does not."""
        faults = cloudwatch.Metric(
            namespace=self._data.prefix,
            metric_name="Faults",
            dimensions_map={"service": name},
            statistic="Sum",
            period=MINUTE,
        )
        return cloudwatch.Alarm(
            self,
            f"NewVersionFails-{name}",
            alarm_name=f"{self._data.prefix}-NewVersionFails-{name.replace('_', '-')}",
            alarm_description=f"Requests fail with a new version of the function {name}: CodeDeploy rolls it back",
            metric=cloudwatch.MathExpression(
                expression="FILL(errors, 0) + FILL(faults, 0)",
                using_metrics={"errors": alias.metric_errors(statistic="Sum", period=MINUTE), "faults": faults},
                period=MINUTE,
                label="Failed invocations and 5xx responses",
            ),
            threshold=3,
            evaluation_periods=2,
            datapoints_to_alarm=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
