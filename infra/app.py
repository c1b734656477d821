"""The CDK's way in: `make synth`, `make deploy STAGE=dev`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import aws_cdk as cdk

from infra.review import Reviewed, of_analytics, of_data, of_serving, review
from infra.stack import AnalyticsStack, DataStack, ServingStack
from nakadi_cdk import BadContext, Context

# What new applications are made with, where it matters to ours.
FLAGS = {
    "@aws-cdk/aws-iam:minimizePolicies": True,
    "@aws-cdk/aws-apigateway:disableCloudWatchRole": True,
    "@aws-cdk/aws-ecs:arnFormatIncludesClusterName": True,
    "@aws-cdk/aws-ecs:removeDefaultDeploymentAlarm": True,
    # The data cannot be taken away while something uses it.
    "@aws-cdk/core:defaultCrossStackReferences": "strong",
    "@aws-cdk/core:target-partitions": ["aws"],
    "@aws-cdk/aws-lambda:recognizeVersionProps": True,
    "@aws-cdk/aws-lambda:recognizeLayerVersion": True,
    "@aws-cdk/core:checkSecretUsage": True,
    "@aws-cdk/aws-ec2:noSubnetRouteTableId": True,
}


def application(*, reviewed: bool = True, **options: Any) -> cdk.App:
    """Every stack, reviewed when it is synthesized unless somebody is in a hurry."""
    app = cdk.App(post_cli_context=FLAGS, analytics_reporting=False, **options)
    context = Context.of(app.node)
    stacks = list(_stacks(app, context))
    if reviewed:
        review(app, context, stacks)
    cdk.Tags.of(app).add("application", "nakadi")
    cdk.Tags.of(app).add("stage", context.stage)
    return app


def _stacks(app: cdk.App, context: Context) -> Iterator[Reviewed]:
    data = DataStack(app, f"{context.prefix}-data", context=context)
    yield Reviewed(place=data, exceptions=of_data(context))
    serving = ServingStack(app, context.prefix, context=context, data=data.data)
    # Streams are known by name only, so nothing else says that they come first.
    serving.add_stack_dependency(data)
    yield Reviewed(place=serving.broker, exceptions=of_serving(context))
    if context.analytics:
        stack = AnalyticsStack(app, f"{context.prefix}-analytics", broker=serving.broker)
        yield Reviewed(place=stack, exceptions=of_analytics(context))


def main() -> None:
    try:
        application().synth()
    except BadContext as reason:
        sys.exit(f"This cannot be deployed. {reason}")


if __name__ == "__main__":
    main()
