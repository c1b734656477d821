"""The entry point of the CDK: `make synth`, `make deploy STAGE=dev`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import aws_cdk as cdk

from infra.review import ReviewedScope, analytics_exceptions, data_exceptions, review, serving_exceptions
from infra.stack import AnalyticsStack, DataStack, ServingStack
from nakadi_cdk import BadContext, Context

# The feature flags of new CDK apps that affect this one.
FLAGS = {
    "@aws-cdk/aws-iam:minimizePolicies": True,
    "@aws-cdk/aws-apigateway:disableCloudWatchRole": True,
    "@aws-cdk/aws-ecs:arnFormatIncludesClusterName": True,
    "@aws-cdk/aws-ecs:removeDefaultDeploymentAlarm": True,
    # CloudFormation refuses to remove data that another stack uses.
    "@aws-cdk/core:defaultCrossStackReferences": "strong",
    "@aws-cdk/core:target-partitions": ["aws"],
    "@aws-cdk/aws-lambda:recognizeVersionProps": True,
    "@aws-cdk/aws-lambda:recognizeLayerVersion": True,
    "@aws-cdk/core:checkSecretUsage": True,
    "@aws-cdk/aws-ec2:noSubnetRouteTableId": True,
}


def create_app(*, is_reviewed: bool = True, **options: Any) -> cdk.App:
    """The app with all its stacks, which synthesis reviews by default."""
    app = cdk.App(post_cli_context=FLAGS, analytics_reporting=False, **options)
    context = Context.of(app.node)
    stacks = list(_create_stacks(app, context))
    if is_reviewed:
        review(app, context, stacks)
    cdk.Tags.of(app).add("application", "nakadi")
    cdk.Tags.of(app).add("stage", context.stage)
    return app


def _create_stacks(app: cdk.App, context: Context) -> Iterator[ReviewedScope]:
    data = DataStack(app, f"{context.prefix}-data", context=context)
    yield ReviewedScope(place=data, exceptions=data_exceptions(context))
    serving = ServingStack(app, context.prefix, context=context, data=data.data)
    # The serving stack knows streams by name only, so CloudFormation cannot infer this order.
    serving.add_stack_dependency(data)
    yield ReviewedScope(place=serving.broker, exceptions=serving_exceptions(context))
    if context.analytics:
        stack = AnalyticsStack(app, f"{context.prefix}-analytics", broker=serving.broker)
        yield ReviewedScope(place=stack, exceptions=analytics_exceptions(context))


def main() -> None:
    try:
        create_app().synth()
    except BadContext as reason:
        sys.exit(f"This cannot be deployed. {reason}")


if __name__ == "__main__":
    main()
