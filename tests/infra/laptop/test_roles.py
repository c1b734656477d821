"""Roles on the laptop: the permission that a request needs, whether a role has it, and AWS's refusal otherwise."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from infra.laptop.cloud import STRICT, Cloud
from infra.laptop.roles import Permission, Policy, Request, required_permissions
from infra.laptop.templates import ACCOUNT, Template
from nakadi.engines.archive.stores import open_archive
from nakadi.model.log_index import ArchiveLocation
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from tests.support.kinesis import create_stream

TABLE = "arn:aws:dynamodb:eu-central-1:123456789012:table/t"
STREAM = "arn:aws:kinesis:eu-central-1:123456789012:stream/s"
SIGNATURE = "AWS4-HMAC-SHA256 Credential=ann/20261122/eu-central-1/{}/aws4_request, Signature=x"


def statement_allowing(*actions, resource=TABLE, effect="Allow", **condition):
    more = {"Condition": condition} if condition else {}
    return {"Effect": effect, "Action": list(actions), "Resource": resource, **more}


OWN = statement_allowing(
    "dynamodb:PutItem", **{"ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["topic#*", "claim#?"]}}
)


@pytest.mark.parametrize(
    ("statements", "permission", "allowed"),
    [
        ([], Permission("dynamodb:GetItem", TABLE), False),
        ([statement_allowing("dynamodb:GetItem")], Permission("dynamodb:GetItem", TABLE, "k"), True),
        ([statement_allowing("dynamodb:getitem")], Permission("dynamodb:GetItem", TABLE), True),
        ([statement_allowing("dynamodb:GetItem")], Permission("dynamodb:PutItem", TABLE), False),
        ([statement_allowing("dynamodb:GetItem")], Permission("dynamodb:GetItem", f"{TABLE}2"), False),
        (
            [statement_allowing("dynamodb:Get*", resource=f"{TABLE}*")],
            Permission("dynamodb:GetItem", f"{TABLE}2"),
            True,
        ),
        ([statement_allowing("s3:Put", resource="a[b]*")], Permission("s3:Put", "a[b]c"), True),
        ([OWN], Permission("dynamodb:PutItem", TABLE, "topic#1"), True),
        ([OWN], Permission("dynamodb:PutItem", TABLE, "claim#12"), False),
        ([OWN], Permission("dynamodb:PutItem", TABLE, "admins"), False),
        ([OWN], Permission("dynamodb:PutItem", TABLE), True),
        ([statement_allowing("a:B"), statement_allowing("a:B", effect="Deny")], Permission("a:B", TABLE), False),
        ([statement_allowing("a:B", StringEquals={"x:y": "z"})], Permission("a:B", TABLE), False),
        (
            [statement_allowing("a:B"), statement_allowing("a:B", effect="Deny", Bool={"x:y": "z"})],
            Permission("a:B", TABLE),
            False,
        ),
    ],
)
def test_a_policy_is_read_as_iam_reads_it(statements, permission, allowed):
    """A statement has to allow an action, none may deny it, and an unknown condition allows nothing."""
    assert Policy(statements).allows(permission) is allowed


def make_aws_request(service, operation="", *, method="POST", path="/", headers=(), **body):
    target = {"x-amz-target": f"{operation}"} if operation else {}
    return Request(
        method=method,
        url=f"https://{service}.eu-central-1.amazonaws.com{path}",
        headers={"authorization": SIGNATURE.format(service), **target, **dict(headers)},
        body=json.dumps(body).encode() if body else b"",
    )


def table_permission(operation, **body):
    return make_aws_request("dynamodb", f"DynamoDB_20120810.{operation}", **body)


KEY = {"place": {"S": "topic#1"}, "item": {"S": "x"}}
QUERY = {
    "TableName": "t",
    "KeyConditionExpression": "(#0 = :0 AND begins_with (#1, :1))",
    "ExpressionAttributeNames": {"#0": "place", "#1": "item"},
    "ExpressionAttributeValues": {":0": {"S": "topic#1"}, ":1": {"S": "y"}},
}


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (table_permission("PutItem", TableName="t", Item=KEY), [("dynamodb:PutItem", TABLE, "topic#1")]),
        (table_permission("GetItem", TableName="t", Key=KEY), [("dynamodb:GetItem", TABLE, "topic#1")]),
        (table_permission("Query", **QUERY), [("dynamodb:Query", TABLE, "topic#1")]),
        (table_permission("Scan", TableName="t"), [("dynamodb:Scan", TABLE, None)]),
        (table_permission("ListTables", Limit=1), [("dynamodb:ListTables", "*", None)]),
        (
            table_permission(
                "TransactWriteItems",
                TransactItems=[
                    {"Update": {"TableName": "t", "Key": KEY}},
                    {"ConditionCheck": {"TableName": "t", "Key": KEY}},
                ],
            ),
            [("dynamodb:UpdateItem", TABLE, "topic#1"), ("dynamodb:ConditionCheckItem", TABLE, "topic#1")],
        ),
        (
            table_permission("BatchWriteItem", RequestItems={"t": [{"DeleteRequest": {"Key": KEY}}]}),
            [("dynamodb:BatchWriteItem", TABLE, "topic#1")],
        ),
        (
            table_permission("BatchGetItem", RequestItems={"t": {"Keys": [KEY]}}),
            [("dynamodb:BatchGetItem", TABLE, "topic#1")],
        ),
        (
            make_aws_request("kinesis", "Kinesis_20131202.PutRecords", StreamName="s"),
            [("kinesis:PutRecords", STREAM, None)],
        ),
        (
            make_aws_request("kinesis", "Kinesis_20131202.ListShards", StreamARN=STREAM),
            [("kinesis:ListShards", STREAM, None)],
        ),
        (
            make_aws_request("kinesis", "Kinesis_20131202.SubscribeToShard", ConsumerARN=f"{STREAM}/consumer/c:1"),
            [("kinesis:SubscribeToShard", f"{STREAM}/consumer/c:1", None)],
        ),
        (
            make_aws_request("glue", "AWSGlue.GetTable", DatabaseName="d", Name="t"),
            [
                ("glue:GetTable", f"arn:aws:glue:eu-central-1:123456789012:{each}", None)
                for each in ("catalog", "database/d", "table/d/t")
            ],
        ),
        (
            make_aws_request("sqs", "AmazonSQS.SendMessage", QueueUrl="http://x/1/q"),
            [("sqs:SendMessage", "arn:aws:sqs:eu-central-1:123456789012:q", None)],
        ),
        (
            make_aws_request("sqs", "AmazonSQS.SendMessageBatch", QueueUrl="http://x/1/q"),
            [("sqs:SendMessage", "arn:aws:sqs:eu-central-1:123456789012:q", None)],
        ),
        (
            make_aws_request("kms", "TrentService.Decrypt", KeyId="arn:aws:kms:eu-central-1:1:key/k"),
            [("kms:Decrypt", "arn:aws:kms:eu-central-1:1:key/k", None)],
        ),
        (
            make_aws_request("events", "AWSEvents.PutEvents", Entries=[{"EventBusName": "a"}, {"EventBusName": "b"}]),
            [("events:PutEvents", "a", None), ("events:PutEvents", "b", None)],
        ),
        (
            replace(make_aws_request("sns"), body=b"Action=PublishBatch&TopicArn=arn%3Aaws%3Asns%3At"),
            [("sns:Publish", "arn:aws:sns:t", None)],
        ),
        (
            make_aws_request("lambda", path="/2015-03-31/functions/arn%3Aaws%3Alambda%3Af/invocations"),
            [("lambda:InvokeFunction", "arn:aws:lambda:f", None)],
        ),
        (make_aws_request("s3", method="GET", path="/b/a%20key"), [("s3:GetObject", "arn:aws:s3:::b/a key", None)]),
        (make_aws_request("s3", method="GET", path="/b?list-type=2"), [("s3:ListBucket", "arn:aws:s3:::b", None)]),
        (make_aws_request("s3", method="GET", path="/b?versions"), [("s3:ListBucketVersions", "arn:aws:s3:::b", None)]),
        (
            make_aws_request("s3", method="GET", path="/b/k?versionId=1"),
            [("s3:GetObjectVersion", "arn:aws:s3:::b/k", None)],
        ),
        (make_aws_request("s3", method="DELETE", path="/b/k"), [("s3:DeleteObject", "arn:aws:s3:::b/k", None)]),
        (
            make_aws_request("s3", method="DELETE", path="/b/k?uploadId=1"),
            [("s3:AbortMultipartUpload", "arn:aws:s3:::b/k", None)],
        ),
        (
            make_aws_request("s3", method="PUT", path="/b/k", headers={"x-amz-copy-source": "/c/d"}),
            [("s3:GetObject", "arn:aws:s3:::c/d", None), ("s3:PutObject", "arn:aws:s3:::b/k", None)],
        ),
        (make_aws_request("ssm", "AmazonSSM.GetParameter", Name="x"), [("ssm:GetParameter", "*", None)]),
    ],
)
def test_what_a_request_wants(request_, wanted):
    """Every change needs its own action; an unknown request needs all permissions, which no policy grants."""
    assert [tuple(each) for each in required_permissions(request_)] == wanted


def test_objects_that_are_removed_together_are_asked_for_one_by_one():
    """Objects that are removed together need a permission each; their keys are in the body."""
    request = Request(
        method="POST",
        url="https://s3.eu-central-1.amazonaws.com/b?delete",
        headers={"authorization": SIGNATURE.format("s3")},
        body=b"<Delete><Object><Key>a&amp;b</Key></Object><Object><Key>c</Key></Object></Delete>",
    )
    assert [each.resource for each in required_permissions(request)] == ["arn:aws:s3:::b/a&b", "arn:aws:s3:::b/c"]


ROLES = {
    "Resources": {
        "Reader": {"Type": "AWS::IAM::Role", "Properties": {}},
        "Policy": {
            "Type": "AWS::IAM::Policy",
            "Properties": {"Roles": [{"Ref": "Reader"}], "PolicyDocument": {"Statement": [OWN]}},
        },
        "Writer": {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "Policies": [
                    {"PolicyDocument": {"Statement": [statement_allowing("s3:GetObject", resource="arn:aws:s3:::b/*")]}}
                ]
            },
        },
    }
}


def test_roles_have_what_is_written_with_them_and_beside_them(tmp_path):
    """A role has the permissions of its inline policies and of separate policies."""
    (tmp_path / "template.json").write_text(json.dumps(ROLES))
    roles = Template(tmp_path / "template.json").roles()
    assert roles["Reader"] == [OWN]
    assert [each["Action"] for each in roles["Writer"]] == [["s3:GetObject"]]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """A strict substitute for AWS, with some roles and without a deployment."""
    with Cloud(tmp_path_factory.mktemp("logs"), STRICT) as there:
        stream = create_stream(there.client("kinesis"), shards=1)
        arn = f"arn:aws:kinesis:eu-central-1:{ACCOUNT}:stream/{stream}"
        there.enforce(
            {
                "Own": [OWN],
                "Reads": [statement_allowing("s3:GetObject", resource="arn:aws:s3:::bucket/*")],
                "ReadsAndLists": [statement_allowing("s3:GetObject", "s3:ListBucket", resource="arn:aws:s3:::bucket*")],
                "Iterates": [statement_allowing("kinesis:GetShardIterator", resource=arn)],
                "Streams": [statement_allowing("kinesis:Get*", "kinesis:Put*", resource=arn)],
            }
        )
        there.stream = stream
        yield there


def is_refused(call, **make_aws_request):
    with pytest.raises(ClientError) as error:
        call(**make_aws_request)
    return error.value.response["Error"]["Code"]


def test_a_table_is_changed_only_under_the_keys_of_a_role(cloud):
    """A role may change a table only under its keys. Otherwise, and for unknown callers, DynamoDB answers that
    access is denied.
    """
    cloud.client("dynamodb").create_table(
        TableName="t",
        KeySchema=[{"AttributeName": "place", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "place", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    table = cloud.client("dynamodb", "Own")
    table.put_item(TableName="t", Item={"place": {"S": "topic#1"}})

    assert is_refused(table.put_item, TableName="t", Item={"place": {"S": "admins"}}) == "AccessDeniedException"
    assert is_refused(table.get_item, TableName="t", Key={"place": {"S": "topic#1"}}) == "AccessDeniedException"
    assert is_refused(cloud.client("dynamodb", "Nobody").list_tables) == "AccessDeniedException"


def test_who_may_not_list_a_bucket_does_not_learn_that_an_object_is_missing(cloud, monkeypatch):
    """To a role that may not list a bucket, S3 answers "access denied" for a missing object, which the archive treats
    as unavailable.
    """
    cloud.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})

    def archive(role):
        for name, value in cloud.environment(role).items():
            monkeypatch.setenv(name, value)
        return open_archive("s3://bucket/?region=eu-central-1")

    with closing(archive("ReadsAndLists")) as store, pytest.raises(ArchiveObjectGone):
        store.read_range(ArchiveLocation("none", 0, 1))
    with closing(archive("Reads")) as store:
        with pytest.raises(Unavailable):
            store.read_range(ArchiveLocation("none", 0, 1))
        with pytest.raises(Unavailable, match="2 of 2 objects were not removed"):
            store.remove(["a", "b"])


def test_an_iterator_is_for_those_who_may_read_its_stream(cloud):
    """Only a role that may read the stream may use its iterators, although an iterator does not name its stream."""
    client = cloud.client("kinesis", "Iterates")
    make_aws_request = {
        "StreamName": cloud.stream,
        "ShardId": "shardId-000000000000",
        "ShardIteratorType": "TRIM_HORIZON",
    }
    iterator = client.get_shard_iterator(**make_aws_request)["ShardIterator"]

    assert is_refused(client.get_records, ShardIterator=iterator) == "AccessDeniedException"
    assert is_refused(client.put_records, StreamName=cloud.stream, Records=[a_record()]) == "AccessDeniedException"
    consumer = f"arn:aws:kinesis:eu-central-1:{ACCOUNT}:stream/{cloud.stream}/consumer/c:1"
    begin = {"Type": "LATEST"}
    subscribe = cloud.client("kinesis", "Streams").subscribe_to_shard
    assert is_refused(subscribe, ConsumerARN=consumer, ShardId=make_aws_request["ShardId"], StartingPosition=begin) == (
        "AccessDeniedException"
    )
    assert cloud.client("kinesis", "Streams").get_records(ShardIterator=iterator)["Records"] == []
    assert is_refused(client.get_records, ShardIterator="x" * 200) == "ExpiredIteratorException"


def test_a_shard_takes_a_megabyte_a_second(cloud):
    """In one call, records beyond the limit are refused one by one, and the rest is stored in its order."""
    client = cloud.client("kinesis", "Streams")
    answer = client.put_records(StreamName=cloud.stream, Records=[a_record(300_000, n) for n in range(4)])
    codes = [each.get("ErrorCode") for each in answer["Records"]]
    stored = [each["SequenceNumber"] for each in answer["Records"] if "SequenceNumber" in each]

    assert codes == [None, None, None, "ProvisionedThroughputExceededException"]
    assert answer["FailedRecordCount"] == 1
    assert stored == sorted(stored)


def a_record(size=1, number=0):
    return {"Data": b"x" * size, "PartitionKey": str(number)}
