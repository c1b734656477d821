"""What becomes of choices that are not the usual ones."""

import aws_cdk as cdk
import pytest
from aws_cdk import aws_logs as logs
from aws_cdk.assertions import Template

from infra.context import Context
from infra.data import Data
from infra.functions import reserved
from infra.stack import DataStack
from infra.streaming import ServiceSize, Streaming
from tests.infra.conftest import CONTEXT
from tests.support.templates import Deployment

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


@pytest.mark.parametrize(
    ("concurrency", "shards", "kept"),
    [
        (0, 1, {}),
        (200, 1, {"authorizer": 20, "log_indexer": 2, "housekeeping": 2, "publish": 100}),
        (1000, 64, {"authorizer": 100, "log_indexer": 64, "housekeeping": 2, "publish": 500}),
        (1000, 500, {"authorizer": 100, "log_indexer": 100, "housekeeping": 2, "publish": 500}),
    ],
)
def test_publishing_cannot_take_every_function(concurrency, shards, kept):
    """Of what the account may run at once, the authorizer and the indexer have their part, and all others some."""
    assert reserved(concurrency, shards) == kept
    assert not concurrency or sum(kept.values()) <= concurrency - 50


def test_a_firewall_can_be_put_in_front(tmp_path):
    """A web ACL is bound to the stage of the API, and functions have their reservations."""
    from infra.app import application  # noqa: PLC0415  # it starts node: not before it is needed

    acl = "arn:aws:wafv2:eu-central-1:123456789012:regional/webacl/mine/0-1"
    context = {**CONTEXT, "web_acl_arn": acl, "concurrency": "1000"}
    application(outdir=str(tmp_path), context=context, reviewed=False).synth()
    serving = Deployment(tmp_path, "nakadi-test").serving

    assert serving.one("AWS::WAFv2::WebACLAssociation")["WebACLArn"] == acl
    functions = serving.functions()
    assert functions["authorizer"]["ReservedConcurrentExecutions"] == 100
    assert "ReservedConcurrentExecutions" not in functions["cursors"]
