"""The permissions of each function, job and the streaming service, action by action."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aws_cdk import Aws
from aws_cdk import aws_iam as iam

from nakadi.engines.dynamodb.log_index_keys import IDENTITY_KEY, SEGMENTS_KEY_PREFIX, claim_key, topic_key
from nakadi.engines.dynamodb.tables import EID_CLAIM_KEY_PREFIX
from nakadi.event_types.measured_statistics import MEASURED_STATISTICS_KIND as MEASURED_STATISTICS
from nakadi.event_types.table_runs import TABLE_RUNS_KIND as TABLE_RUNS
from nakadi.event_types.table_states import TABLE_STATES_KIND as TABLE_STATES
from nakadi_cdk import msk
from nakadi_cdk.data import TABLES_PREFIX, Data

FIND = ("dynamodb:GetItem",)
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
WRITE = (*READ, "kinesis:PutRecords")  # a writer checks whether the topic is sealed
FOLLOW = (*READ, "kinesis:DescribeStream", "kinesis:DescribeStreamSummary")  # an event source mapping requires these

FETCH = ("s3:GetObject",)
KEEP = ("s3:PutObject",)
REARRANGE = ("s3:DeleteObject", "s3:GetObject", "s3:PutObject")
# In a bucket that keeps versions, old versions contain erased events.
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
KEY_SERVICES = ("dynamodb", "kinesis", "s3")


# Tasks register consumers, to which Kinesis pushes shards. Housekeeping removes the consumers of killed tasks.
REGISTER = ("kinesis:DescribeStreamSummary", "kinesis:RegisterStreamConsumer")
CONSUME = ("kinesis:DeregisterStreamConsumer", "kinesis:DescribeStreamConsumer", "kinesis:SubscribeToShard")
LIST_CONSUMERS = ("kinesis:DescribeStreamSummary", "kinesis:ListStreamConsumers")
REMOVE = ("kinesis:DeregisterStreamConsumer",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a role may do: actions on tables, by the suffixes of their names; on all streams or topics; and on the
    objects of the archive.

    `writable_keys` limits changes of a table to these partition keys; `*` stands for any text.
    """

    tables: Mapping[str, tuple[str, ...]]
    writable_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stream: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    archive: tuple[str, ...] = ()

    def statements(self, data: Data) -> Iterator[iam.PolicyStatement]:
        for suffix, actions in self.tables.items():
            yield iam.PolicyStatement(actions=list(actions), resources=[data.tables[suffix].table_arn])
        for suffix, keys in self.writable_keys.items():
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
            # S3 reports a missing key as such only to callers that may list the bucket; others get "access denied".
            listing = ["s3:ListBucket", *([LIST_VERSIONS] if set(REMOVE_VERSIONS) <= set(self.archive) else [])]
            yield iam.PolicyStatement(actions=listing, resources=[data.archive_arn])
        if data.key and (self.tables or self.stream or self.archive):
            # The role may use the key only through services, within its permissions there.
            yield iam.PolicyStatement(
                actions=list(USE_KEY),
                resources=[data.key.key_arn],
                conditions={
                    "StringEquals": {"kms:ViaService": [f"{each}.{Aws.REGION}.amazonaws.com" for each in KEY_SERVICES]}
                },
            )


# Jobs that write tables also store the state of each table, and reports of their runs.
TABLE_JOB_ACCESS = Access(
    tables={"documents": LOOK_UP, "log-index": LOOK_UP},
    writable_keys={"documents": (TABLE_STATES, TABLE_RUNS)},
    archive=FETCH,
)

# Publishers claim the ids of events that are to be stored once.
EID_CLAIMS: Mapping[str, tuple[str, ...]] = {"coordination": (f"{EID_CLAIM_KEY_PREFIX}*",)}

# Deleting an event type may delete subscriptions together with the state of their streams.
ALL_TABLES: Mapping[str, tuple[str, ...]] = {"documents": CHANGE, "log-index": CHANGE, "coordination": CHANGE}

# Changes of event types, subscriptions, settings and timelines write to the audit log, and create its event types if
# they are missing.
PERMISSIONS: Mapping[str, Access] = {
    "publish": Access(
        tables={"documents": LOOK_UP, "log-index": LOOK_UP, "coordination": FIND},
        writable_keys=EID_CLAIMS,
        stream=WRITE,
        topics=msk.WRITE,
    ),
    "event_types": Access(tables=ALL_TABLES, stream=WRITE, topics=msk.MANAGE, archive=FETCH),
    "cursors": Access(tables={"documents": LOOK_UP, "log-index": LOOK_UP}, stream=READ, topics=msk.READ, archive=FETCH),
    "subscriptions": Access(tables=ALL_TABLES, stream=WRITE, topics=msk.MANAGE, archive=FETCH),
    "admin": Access(
        tables={"documents": CHANGE, "log-index": CHANGE, "coordination": FIND},
        writable_keys=EID_CLAIMS,
        stream=WRITE,
        topics=msk.MANAGE,
    ),
    "authorizer": Access(tables={}),
    "housekeeping": Access(tables=ALL_TABLES, stream=WRITE, topics=msk.MANAGE, archive=REARRANGE),
    "log_indexer": Access(tables={"log-index": CHANGE}, stream=FOLLOW, archive=KEEP),
    # A subscription publishes events that it gives up on to an event type, which it creates if it is missing.
    "streaming": Access(tables=ALL_TABLES, stream=WRITE, topics=msk.MANAGE, archive=FETCH),
    # Jobs on the archive.
    "statistics": Access(
        tables={"documents": LOOK_UP, "log-index": LOOK_UP},
        writable_keys={"documents": (MEASURED_STATISTICS,)},
        archive=FETCH,
    ),
    "compaction": TABLE_JOB_ACCESS,
    "follow": TABLE_JOB_ACCESS,
    # To find unused objects, the job has to read every reference to them. An erasure skips parked events.
    "retention": Access(
        tables={"documents": LOOK_UP, "log-index": SCAN, "coordination": CHANGE},
        writable_keys={"log-index": (topic_key("*"), f"{SEGMENTS_KEY_PREFIX}*", claim_key("*"), IDENTITY_KEY)},
        archive=(*REARRANGE, *REMOVE_VERSIONS),
    ),
}


# The log indexer with Kafka reads documents to find the event type of each topic.
TOPIC_ARCHIVER = Access(tables={"documents": LOOK_UP, "log-index": CHANGE}, topics=msk.REMOVE, archive=(*FETCH, *KEEP))


READ_WITH_KEY = ("kms:Decrypt",)


def query_statements(data: Data, database: str) -> Iterator[iam.PolicyStatement]:
    """Policy statements for reading the tables: their files, and their entries in Glue's catalog."""
    yield iam.PolicyStatement(actions=list(FETCH), resources=[f"{data.tables_arn}/{TABLES_PREFIX}*"])
    glue = f"arn:{Aws.PARTITION}:glue:{Aws.REGION}:{Aws.ACCOUNT_ID}"
    yield iam.PolicyStatement(
        actions=["glue:GetTable"],
        resources=[f"{glue}:catalog", f"{glue}:database/{database}", f"{glue}:table/{database}/*"],
    )
    if data.key:
        yield iam.PolicyStatement(
            actions=list(READ_WITH_KEY),
            resources=[data.key.key_arn],
            conditions={"StringEquals": {"kms:ViaService": f"s3.{Aws.REGION}.amazonaws.com"}},
        )


USE_SINK_KEY = ("kms:Decrypt", "kms:GenerateDataKey")
SINK_ACTIONS: Mapping[str, str] = {
    "lambda": "lambda:InvokeFunction",
    "sqs": "sqs:SendMessage",
    "sns": "sns:Publish",
    "events": "events:PutEvents",
}
"""The action that a delivery needs, by the service of its target."""


def sink_key_statements(data: Data) -> Iterator[iam.PolicyStatement]:
    """Policy statements for sealing and opening the secrets of sinks, if there are sinks."""
    if data.sink_key:
        yield iam.PolicyStatement(actions=list(USE_SINK_KEY), resources=[data.sink_key.key_arn])


def sink_target_statements(targets_by_service: Mapping[str, Sequence[str]]) -> Iterator[iam.PolicyStatement]:
    """Policy statements for deliveries to these ARNs, in which `*` stands for any text."""
    for service, targets in targets_by_service.items():
        yield iam.PolicyStatement(actions=[SINK_ACTIONS[service]], resources=list(targets))


def fan_out_statements(
    data: Data, *, stream_actions: tuple[str, ...], consumer_actions: tuple[str, ...]
) -> Iterator[iam.PolicyStatement]:
    """Policy statements for enhanced fan-out: actions on streams, and on consumers of the stage."""
    streams = [each.arn for each in data.streams.values()]
    yield iam.PolicyStatement(actions=list(stream_actions), resources=streams)
    yield iam.PolicyStatement(actions=list(consumer_actions), resources=[*streams, data.consumers_arn])
