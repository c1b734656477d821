"""The review by cdk-nag's rules, and the reasons for each exception."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import aws_cdk as cdk
import cdk_nag
from aws_cdk import Aws
from constructs import IConstruct

from nakadi_cdk import Context
from nakadi_cdk.analytics import database_name
from nakadi_cdk.context import MSK_KINDS
from nakadi_cdk.data import bucket_name
from nakadi_cdk.msk import CONSUMER_GROUP, resource_arn_prefix


@dataclass(frozen=True, slots=True)
class RuleException:
    """An exception to a rule below a place, which is a path within the reviewed scope."""

    place: str
    rule: str
    reason: str


DATA = tuple(
    RuleException(
        place,
        "S1",
        "Only the broker and its jobs use the bucket; CloudTrail can record each access if that is needed",
    )
    for place in ("Data/Archive", "Data/Tables")
)

# Exceptions with a customer's key
OWN_KEY = (RuleException("Data", "KDS3", "The owners of the account manage this key"),)

SERVING = (
    RuleException(
        "Functions",
        "IAM5[Resource::*]",
        "The two actions of X-Ray that send traces, and those for network interfaces, cannot be limited to resources",
    ),
    RuleException(
        "Functions", "IAM5[Resource::{archive}/*]", "Objects of the archive have names that are not known before"
    ),
    RuleException("Functions", "L1", "The layer of dependencies is built and tested for this version of Python"),
    RuleException("Api/Rest", "APIG2", "The broker validates requests, and explains what is wrong in its own words"),
    RuleException("Api/Rest", "APIG3", "A firewall depends on the clients of the stage, and can be added to it"),
    RuleException(
        "Api/Rest",
        "IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/AmazonAPIGatewayPushToCloudWatchLogs]",
        "The account's role for the gateway's logs is defined by AWS, and is one for all APIs of the account",
    ),
)

# Exceptions with queries
QUERIES = (
    RuleException(
        "Queries", "IAM5[Resource::{tables}/tables/*]", "Files of tables have names that are not known before"
    ),
    RuleException("Queries", "IAM5[Resource::{catalog}/*]", "There is a table for each event type"),
    RuleException(
        "Queries", "IAM5[Resource::*]", "The two actions of X-Ray that send traces cannot be limited to resources"
    ),
)

# Exceptions with Kinesis
STREAMS = (
    RuleException("Functions/SetAside", "SQS3", "It is a dead-letter queue: an event source mapping writes to it"),
)

# Exceptions with MSK
TOPICS = tuple(
    RuleException(place, f"IAM5[Resource::{{{what}}}]", reason)
    for place in ("Functions", "Streaming")
    for what, reason in (
        ("topics", "There is a topic for each timeline, and the id of a cluster is not known before it is made"),
        ("groups", "The id of a cluster is not known before it is made"),
    )
)
MSK = (
    RuleException(
        "AWS679f53fac002430cb0da5b7982bd2287",
        "IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole]",
        "The function that asks where a cluster's servers are is the CDK's own, and its role is as well",
    ),
)

# Exceptions with a streaming service
STREAMING = (
    RuleException(
        "Streaming", "IAM5[Resource::{archive}/*]", "Objects of the archive have names that are not known before"
    ),
    RuleException("Streaming", "IAM5[Resource::*]", "ecr:GetAuthorizationToken cannot be limited to resources"),
    RuleException(
        "Streaming/Cluster",
        "ECS4",
        "Container Insights costs more than it shows: streams and CPU have other metrics",
    ),
    RuleException(
        "Streaming/Task", "ECS2", "No variable is a secret: they are names of places, limits and public URLs"
    ),
    RuleException("Streaming/Balancer", "ELB2", "Every request came through the gateway, and is in its access log"),
)

# Exceptions with a load balancer beside the gateway
DIRECT = (
    RuleException(
        "Direct/OfBalancer", "EC23", "Clients reach this load balancer from any address; each request has a token"
    ),
    RuleException(
        "Direct/Balancer", "ELB2", "Logs of a balancer need a bucket of their own; requests can be events of the broker"
    ),
)

# Exceptions with canary deployments
CANARY = (
    RuleException(
        "Canary",
        "IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/AWSCodeDeployRoleForLambdaLimited]",
        "What CodeDeploy may do with functions is defined by AWS",
    ),
)

# Exceptions with enhanced fan-out
FAN_OUT = tuple(
    RuleException(place, "IAM5[Resource::{consumers}]", "Each task registers a consumer whose name is not known before")
    for place in ("Functions", "Streaming")
)


ANALYTICS = (
    RuleException(
        "Analytics", "IAM5[Resource::{archive}/*]", "Objects of the archive have names that are not known before"
    ),
    RuleException("Analytics", "IAM5[Resource::{tables}/*]", "The names of files in tables are not known before"),
    RuleException("Analytics", "IAM5[Resource::{logs}/*]", "Glue makes its own log groups, below a name that is fixed"),
    RuleException(
        "Analytics",
        "IAM5[Resource::*]",
        "cloudwatch:PutMetricData cannot be limited to resources; a condition limits it to the namespace of Glue",
    ),
    RuleException("Analytics", "GL1", "Logs contain numbers of events and bytes, but no events"),
    RuleException("Analytics", "GL3", "Jobs use no bookmarks: the tables record their progress"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedScope:
    """A stack or a construct, and its exceptions."""

    place: IConstruct
    exceptions: Sequence[RuleException]


def serving_exceptions(context: Context) -> Sequence[RuleException]:
    fan_out = FAN_OUT if context.fans_out else ()
    functions = [
        *SERVING,
        *(TOPICS if context.on_msk else STREAMS),
        *(QUERIES if context.queries else ()),
        *(CANARY if context.canary_minutes else ()),
    ]
    if context.asleep:
        return [each for each in (*functions, *fan_out) if each.place != "Streaming"]
    return [*functions, *STREAMING, *fan_out, *(DIRECT if context.direct_domain else ()), *_sink_exceptions(context)]


def _sink_exceptions(context: Context) -> Sequence[RuleException]:
    targets = [target for found in context.targets_by_service.values() for target in found if "*" in target]
    return [
        RuleException("Streaming", f"IAM5[Resource::{target}]", "The person who deploys names the targets of sinks")
        for target in targets
    ]


def data_exceptions(context: Context) -> Sequence[RuleException]:
    looks_up_servers = context.on_msk and context.msk in MSK_KINDS
    return [*DATA, *(OWN_KEY if context.kms_key_arn else ()), *(MSK if looks_up_servers else ())]


def analytics_exceptions(context: Context) -> Sequence[RuleException]:
    catalog = "{table_bucket}/table" if context.has_table_bucket else "{catalog}"
    return [
        *ANALYTICS,
        RuleException("Analytics", f"IAM5[Resource::{catalog}/*]", "There is a table for each event type"),
    ]


def review(app: cdk.App, context: Context, reviewed: Iterable[ReviewedScope]) -> None:
    cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app))
    for each in reviewed:
        for exception in each.exceptions:
            place = _find_construct(each.place, exception.place)
            rule = f"AwsSolutions::AwsSolutions-{exception.rule.format(**_resources(context))}"
            cdk.Validations.of(place).acknowledge(cdk.Acknowledgment(id=rule, reason=exception.reason))


def _resources(context: Context) -> Mapping[str, str]:
    """The ARNs of resources with fixed names, as the findings of the rules contain them, by the names used here."""
    prefix = context.prefix
    partition, region, account = "<AWS::Partition>", "<AWS::Region>", "<AWS::AccountId>"
    buckets = {
        purpose: f"arn:{partition}:s3:::{bucket_name(prefix, purpose, account, region)}"
        for purpose in ("archive", "tables")
    }
    in_msk = {kind: _normalize(resource_arn_prefix(context.msk, prefix, kind)) for kind in ("topic", "group")}
    return {
        **buckets,
        "topics": f"{in_msk['topic']}/{prefix}.*",
        "groups": f"{in_msk['group']}/{CONSUMER_GROUP}",
        "consumers": f"arn:{partition}:kinesis:{region}:{account}:stream/{prefix}*/consumer/{prefix}-*",
        "catalog": f"arn:{partition}:glue:{region}:{account}:table/{database_name(prefix)}",
        "table_bucket": f"arn:{partition}:s3tables:{region}:{account}:bucket/{prefix}-tables",
        "logs": f"arn:{partition}:logs:{region}:{account}:log-group:/aws-glue",
    }


def _normalize(arn: str) -> str:
    for token, name in ((Aws.PARTITION, "Partition"), (Aws.REGION, "Region"), (Aws.ACCOUNT_ID, "AccountId")):
        arn = arn.replace(token, f"<AWS::{name}>")
    return arn


def _find_construct(root: IConstruct, place: str) -> IConstruct:
    found = root
    for name in place.split("/"):
        found = found.node.find_child(name)
    return found
