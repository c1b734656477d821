"""The CDK's way in: `make synth`, `make deploy STAGE=dev`."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk

from infra.context import Context
from infra.data import archive_name
from infra.review import review
from infra.stack import DataStack, ServingStack

# What new applications are made with, where it matters to ours.
FLAGS = {
    "@aws-cdk/aws-iam:minimizePolicies": True,
    "@aws-cdk/aws-apigateway:disableCloudWatchRole": True,
    "@aws-cdk/aws-ecs:arnFormatIncludesClusterName": True,
    "@aws-cdk/aws-ecs:removeDefaultDeploymentAlarm": True,
    "@aws-cdk/core:target-partitions": ["aws"],
    "@aws-cdk/aws-lambda:recognizeVersionProps": True,
    "@aws-cdk/aws-lambda:recognizeLayerVersion": True,
    "@aws-cdk/core:checkSecretUsage": True,
    "@aws-cdk/aws-ec2:noSubnetRouteTableId": True,
}


def application(**options: Any) -> cdk.App:
    """Every stack, reviewed when it is synthesized."""
    app = cdk.App(post_cli_context=FLAGS, analytics_reporting=False, **options)
    context = Context.of(app.node)
    data = DataStack(app, f"{context.prefix}-data", context=context)
    serving = ServingStack(app, context.prefix, context=context, data=data.data)
    cdk.Tags.of(app).add("application", "nakadi")
    cdk.Tags.of(app).add("stage", context.stage)
    archive = archive_name(context.prefix, "<AWS::AccountId>", "<AWS::Region>")
    review(app, data, serving, archive=f"arn:<AWS::Partition>:s3:::{archive}")
    return app


if __name__ == "__main__":
    application().synth()
