"""A CDK app with a broker in it, and a pipeline that deploys the app from GitHub.

All parts of the broker come from its wheel: `pip install 'nakadi-serverless[cdk]'`.
"""

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from aws_cdk import pipelines

from nakadi_cdk import Context, NakadiAnalytics, NakadiBroker

# Create the connection in the console, with the account's consent: Developer Tools, Connections.
CONNECTION = "arn:aws:codeconnections:eu-central-1:123456789012:connection/00000000-0000-0000-0000-000000000000"

# The image of the streaming service is for arm64, so the machine that builds it is arm64 too.
ON_ARM = pipelines.CodeBuildOptions(
    build_environment=codebuild.BuildEnvironment(
        build_image=codebuild.LinuxArmBuildImage.AMAZON_LINUX_2_STANDARD_3_0, privileged=True
    )
)


class Shop(cdk.Stage):
    """A broker beside the shop's other resources."""

    def __init__(self, scope: cdk.App | cdk.Stack, name: str, *, context: Context) -> None:
        super().__init__(scope, name)
        stack = cdk.Stack(self, "Events", termination_protection=context.keep_data)
        broker = NakadiBroker(stack, "Broker", context=context)
        NakadiAnalytics(stack, "Analytics", broker=broker)
        self.url = cdk.CfnOutput(stack, "Url", value=broker.url)

        # Other parts of the app refer to the broker by its construct, not by its name.
        tasks = iam.ManagedPolicy(stack, "SeesTheLog")
        tasks.add_statements(
            iam.PolicyStatement(
                actions=["kinesis:DescribeStreamSummary"], resources=[each.arn for each in broker.data.streams.values()]
            )
        )


class Pipeline(cdk.Stack):
    """Synthesizes the branch `main`, waits for an approval, deploys the branch, and checks that the broker is up."""

    def __init__(self, scope: cdk.App, name: str) -> None:
        super().__init__(scope, name)
        pipeline = pipelines.CodePipeline(
            self,
            "Pipeline",
            synth=pipelines.ShellStep(
                "Synth",
                input=pipelines.CodePipelineSource.connection("example/shop", "main", connection_arn=CONNECTION),
                install_commands=["pip install -r requirements.txt"],
                commands=["npx aws-cdk synth"],
            ),
            docker_enabled_for_synth=False,
            code_build_defaults=ON_ARM,
        )
        # For a test stage, add another stage before this one, with its own context: stage="trial", keep_data=False.
        live = Shop(self, "Live", context=Context(stage="live", auth_issuer="https://issuer.example", shards=2))
        is_it_up = pipelines.ShellStep(
            "IsItUp", env_from_cfn_outputs={"URL": live.url}, commands=['curl --fail "${URL}health"']
        )
        pipeline.add_stage(live, pre=[pipelines.ManualApprovalStep("GoLive")], post=[is_it_up])


app = cdk.App()
Pipeline(app, "ShopPipeline")
app.synth()
