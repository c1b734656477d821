"""Who may do what to the data: each function and the streaming service, action by action."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aws_cdk import Aws
from aws_cdk import aws_iam as iam

from nakadi.engines.dynamodb.log_index_keys import IDENTITY_KEY, SEGMENTS_KEY_PREFIX, claim_key, topic_key
from nakadi.event_types.documents import MEASURED_STATISTICS_KIND as MEASURED_STATISTICS
from nakadi.event_types.documents import TABLE_STATES_KIND as TABLE_STATES
from nakadi_cdk import msk
from nakadi_cdk.data import Data

LOOK_UP = ("dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query")
ALTER = (
    "dynamodb:BatchWriteItem",
    "dynamodb:ConditionCheckItem",
    "dynamodb:DeleteItem",
    "dynamodb:PutItem",
    "dynamodb:UpdateItem",
)
CHANGE = (*LOOK_UP, *ALTER)
SCAN = (*LOOK_UP, "dynamodb:Scan")
READ = ("kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:ListShards")
WRITE = (*READ, "kinesis:PutRecords")  # a writer looks whether a seal came in between
FOLLOW = (*READ, "kinesis:DescribeStream", "kinesis:DescribeStreamSummary")  # what an event source mapping asks for

FETCH = ("s3:GetObject",)
KEEP = ("s3:PutObject",)
REARRANGE = ("s3:DeleteObject", "s3:GetObject", "s3:PutObject")
# In a bucket that keeps versions, what was erased is in the old ones.
REMOVE_VERSIONS = ("s3:DeleteObjectVersion", "s3:GetObjectVersion")
LIST_VERSIONS = "s3:ListBucketVersions"

USE_KEY = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
KEPT_BY = ("dynamodb", "kinesis", "s3")


# Of consumers of their own, to which shards are pushed. Housekeeping removes those of tasks that were killed.
REGISTER = ("kinesis:DescribeStreamSummary", "kinesis:RegisterStreamConsumer")
CONSUME = ("kinesis:DeregisterStreamConsumer", "kinesis:DescribeStreamConsumer", "kinesis:SubscribeToShard")
LIST_CONSUMERS = ("kinesis:DescribeStreamSummary", "kinesis:ListStreamConsumers")
REMOVE = ("kinesis:DeregisterStreamConsumer",)


@dataclass(frozen=True, slots=True, kw_only=True)
class May:
    """Actions on tables by their suffixes, on all streams or else all topics, and on the objects of the archive.

    `own` are the partition keys under which a table may be changed, and no others; `*` stands for any text.
    """

    tables: Mapping[str, tuple[str, ...]]
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stream: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    archive: tuple[str, ...] = ()

    def statements(self, data: Data) -> Iterator[iam.PolicyStatement]:
        for suffix, actions in self.tables.items():
            yield iam.PolicyStatement(actions=list(actions), resources=[data.tables[suffix].table_arn])
        for suffix, keys in self.own.items():
            yield iam.PolicyStatement(
                actions=list(ALTER),
                resources=[data.tables[suffix].table_arn],
                conditions={"ForAllValues:StringLike": {"dynamodb:LeadingKeys": list(keys)}},
            )
        if data.cluster and self.topics:
            yield from data.cluster.statements(self.topics)
        if self.stream and data.streams:
            streams = [each.arn for each in data.streams.values()]
            yield iam.PolicyStatement(actions=list(self.stream), resources=streams)
        if self.archive:
            yield iam.PolicyStatement(actions=list(self.archive), resources=[data.archive_objects])
        if "s3:GetObject" in self.archive:
            # S3 tells only those who may list a bucket that a key is missing; to others it says that they may not.
            listing = ["s3:ListBucket", *([LIST_VERSIONS] if set(REMOVE_VERSIONS) <= set(self.archive) else [])]
            yield iam.PolicyStatement(actions=listing, resources=[data.archive_arn])
        if data.key and (self.tables or self.stream or self.archive):
            # By way of services that the role may use, and so for no more than it may do there.
            yield iam.PolicyStatement(
                actions=list(USE_KEY),
                resources=[data.key.key_arn],
                conditions={
                    "StringEquals": {"kms:ViaService": [f"{each}.{Aws.REGION}.amazonaws.com" for each in KEPT_BY]}
                },
            )


# Of jobs that make tables: they write down what each table has.
MAKE_TABLES = May(
    tables={"documents": LOOK_UP, "log-index": LOOK_UP}, own={"documents": (TABLE_STATES,)}, archive=FETCH
)

# An event type goes with the subscriptions that may go with it, and these with what their streams agreed on.
EVERYTHING: Mapping[str, tuple[str, ...]] = {"documents": CHANGE, "log-index": CHANGE, "coordination": CHANGE}

# Changes of event types, subscriptions, settings and timelines are published to the audit log, whose event types are
# made when they are missing.
PERMISSIONS: Mapping[str, May] = {
    "publish": May(tables={"documents": LOOK_UP, "log-index": LOOK_UP}, stream=WRITE, topics=msk.WRITE),
    "event_types": May(tables=EVERYTHING, stream=WRITE, topics=msk.MANAGE, archive=FETCH),
    "cursors": May(tables={"documents": LOOK_UP, "log-index": LOOK_UP}, stream=READ, topics=msk.READ, archive=FETCH),
    "subscriptions": May(tables=EVERYTHING, stream=WRITE, topics=msk.MANAGE, archive=FETCH),
    "admin": May(tables={"documents": CHANGE, "log-index": CHANGE}, stream=WRITE, topics=msk.MANAGE),
    "authorizer": May(tables={}),
    "housekeeping": May(tables=EVERYTHING, stream=WRITE, topics=msk.MANAGE, archive=REARRANGE),
    "log_indexer": May(tables={"log-index": CHANGE}, stream=FOLLOW, archive=KEEP),
    # Events that a subscription gives up on are published again, into an event type that is made when it is missing.
    "streaming": May(tables=EVERYTHING, stream=WRITE, topics=msk.MANAGE, archive=FETCH),
    # Jobs on the archive.
    "statistics": May(
        tables={"documents": LOOK_UP, "log-index": LOOK_UP},
        own={"documents": (MEASURED_STATISTICS,)},
        archive=FETCH,
    ),
    "compaction": MAKE_TABLES,
    "follow": MAKE_TABLES,
    # Which objects are still referred to is known only to who has seen every reference.
    # An erasure skips parked events.
    "retention": May(
        tables={"documents": LOOK_UP, "log-index": SCAN, "coordination": CHANGE},
        own={"log-index": (topic_key("*"), f"{SEGMENTS_KEY_PREFIX}*", claim_key("*"), IDENTITY_KEY)},
        archive=(*REARRANGE, *REMOVE_VERSIONS),
    ),
}


# The log indexer where events are in topics: it has to know whose they are.
TOPIC_ARCHIVER = May(tables={"documents": LOOK_UP, "log-index": CHANGE}, topics=msk.REMOVE, archive=(*FETCH, *KEEP))


def fan_out(data: Data, *, of_stream: tuple[str, ...], of_consumer: tuple[str, ...]) -> Iterator[iam.PolicyStatement]:
    """What is done with streams to have their shards pushed, and with consumers, whose names begin like the stage's."""
    streams = [each.arn for each in data.streams.values()]
    yield iam.PolicyStatement(actions=list(of_stream), resources=streams)
    yield iam.PolicyStatement(actions=list(of_consumer), resources=[*streams, data.consumers_arn])
