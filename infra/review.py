"""cdk-nag's rules, and the places where there are reasons not to follow one."""

from __future__ import annotations

from dataclasses import dataclass

import aws_cdk as cdk
import cdk_nag
from constructs import IConstruct


@dataclass(frozen=True, slots=True)
class NotFollowed:
    """A rule that is not followed below a place, which is a path in a stack, and why."""

    place: str
    rule: str
    reason: str


DATA = (
    NotFollowed(
        "Data/Archive",
        "S1",
        "Only functions and the streaming service touch it; CloudTrail can tell who did, where that has to be known",
    ),
)

SERVING = (
    NotFollowed(
        "Functions",
        "IAM5[Resource::*]",
        "X-Ray's two actions to send traces know no resources: nothing narrower exists",
    ),
    NotFollowed(
        "Functions", "IAM5[Resource::{archive}/*]", "Objects of the archive have names that nobody knows before"
    ),
    NotFollowed(
        "Streaming", "IAM5[Resource::{archive}/*]", "Objects of the archive have names that nobody knows before"
    ),
    NotFollowed("Streaming", "IAM5[Resource::*]", "ecr:GetAuthorizationToken knows no resources"),
    NotFollowed("Functions", "L1", "The layer of dependencies is built and tested for this version of Python"),
    NotFollowed("Functions/SetAside", "SQS3", "It is a dead-letter queue: an event source mapping writes to it"),
    NotFollowed("Streaming/Cluster", "ECS4", "It costs more than it tells: streams and CPU are told without it"),
    NotFollowed("Streaming/Task", "ECS2", "No variable is a secret: they are names of places, limits and public URLs"),
    NotFollowed("Streaming/Balancer", "ELB2", "Every request came through the gateway, and is in its access log"),
    NotFollowed("Api/Rest", "APIG2", "The broker validates requests, and explains what is wrong in its own words"),
    NotFollowed(
        "Api/Rest", "APIG3", "A firewall is a matter of who is let in from where: it can be added to the stage"
    ),
    NotFollowed(
        "Api/Rest",
        "IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/AmazonAPIGatewayPushToCloudWatchLogs]",
        "The account's role for the gateway's logs is defined by AWS, and is one for all APIs of the account",
    ),
)


def review(app: cdk.App, data: cdk.Stack, serving: cdk.Stack, *, archive: str) -> None:
    cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app))
    for stack, exceptions in ((data, DATA), (serving, SERVING)):
        for each in exceptions:
            place = _at(stack, each.place)
            rule = f"AwsSolutions::AwsSolutions-{each.rule.format(archive=archive)}"
            cdk.Validations.of(place).acknowledge(cdk.Acknowledgment(id=rule, reason=each.reason))


def _at(stack: cdk.Stack, place: str) -> IConstruct:
    found: IConstruct = stack
    for name in place.split("/"):
        found = found.node.find_child(name)
    return found
