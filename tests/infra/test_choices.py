"""What becomes of choices that are not the usual ones."""

import aws_cdk as cdk
import pytest
from aws_cdk import aws_logs as logs
from aws_cdk.assertions import Template

from infra.context import Context
from infra.data import Data
from infra.stack import DataStack
from infra.streaming import ServiceSize, Streaming

ECR = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/nakadi/streaming"
SIZE = ServiceSize(cpu=256, memory=512, min_tasks=2, max_tasks=4, streams_per_task=500)


@pytest.fixture
def app():
    return cdk.App(analytics_reporting=False)


def all_of(template, kind):
    return [each for each in template["Resources"].values() if each["Type"] == kind]


def test_streams_can_grow_by_themselves(app):
    """On-demand streams have no number of shards."""
    stack = DataStack(app, "data", context=Context(stream_mode="on-demand", dedicated_streams="orders=4"))
    streams = [each["Properties"] for each in all_of(Template.from_stack(stack).to_json(), "AWS::Kinesis::Stream")]

    assert sorted(each["Name"] for each in streams) == ["nakadi-dev", "nakadi-dev-orders"]
    assert [each["StreamModeDetails"] for each in streams] == [{"StreamMode": "ON_DEMAND"}] * 2
    assert not any("ShardCount" in each for each in streams)


def test_a_trial_can_be_removed_without_a_trace(app):
    """Who says so gets tables, streams and buckets that go with their stack, and a stack that can be deleted."""
    stack = DataStack(app, "data", context=Context(keep_data=False))
    template = Template.from_stack(stack).to_json()
    kept = [
        each
        for kind in ("AWS::DynamoDB::Table", "AWS::Kinesis::Stream", "AWS::S3::Bucket")
        for each in all_of(template, kind)
    ]

    assert stack.termination_protection is False
    assert {each["DeletionPolicy"] for each in kept} == {"Delete"}
    assert not any(each["Properties"].get("DeletionProtectionEnabled") for each in kept)


def streaming(app, image):
    stack = cdk.Stack(app, "serving")
    data = Data(
        stack,
        "Data",
        prefix="nakadi-dev",
        on_demand=False,
        shards={"nakadi-dev": 1},
        stream_retention=cdk.Duration.hours(24),
    )
    Streaming(
        stack,
        "Streaming",
        data=data,
        environment={},
        path_prefix="/api",
        size=SIZE,
        log_retention=logs.RetentionDays.ONE_DAY,
        image=image,
    )
    return Template.from_stack(stack).to_json()


def image_of(template):
    [task] = all_of(template, "AWS::ECS::TaskDefinition")
    [container] = task["Properties"]["ContainerDefinitions"]
    return container["Image"]


def test_an_image_can_be_one_that_exists(app):
    """An image of ECR needs no Docker here, and its repository is the only one that the task may fetch from."""
    template = streaming(app, f"{ECR}:1.2.0")
    fetching = [
        statement["Resource"]
        for policy in all_of(template, "AWS::IAM::Policy")
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if "ecr:BatchGetImage" in statement["Action"]
    ]

    assert image_of(template)["Fn::Join"][1][0] == "123456789012.dkr.ecr.eu-central-1."
    assert image_of(template)["Fn::Join"][1][-1] == "/nakadi/streaming:1.2.0"
    assert [each["Fn::Join"][1][-1] for each in fetching] == [
        ":ecr:eu-central-1:123456789012:repository/nakadi/streaming"
    ]


def test_an_image_can_be_of_another_registry(app):
    """Whatever else is named is fetched from where it is."""
    assert image_of(streaming(app, "public.ecr.aws/somebody/nakadi:1")) == "public.ecr.aws/somebody/nakadi:1"
